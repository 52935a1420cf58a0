"""A repair makes a new file and a new revision out of what a damaged episode still holds, once, and touches nothing."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megahour.cli import main
from megahour.episode import writer
from megahour.episode.check import check_episode
from megahour.episode.model import EpisodeError
from megahour.episode.reader import open_episode
from megahour.episode.salvage import Salvaged, salvage
from megahour.episode.tail import FOOTER_BYTES
from megahour.ingest.measure import measure_batch
from megahour.ingest.repair import repair_episode
from megahour.manifest.build import build_manifest
from megahour.manifest.load import load_manifest
from megahour.manifest.recipe import Recipe
from megahour.settings import Settings
from megahour.storage import Lake
from megahour.warehouse.queries import query
from megahour.warehouse.tables import append
from tests.ingest.recordings import contents, discovered, ingest_all, landing, make_lake, rows, write_recording

REPO = Path(__file__).parents[2]
RECIPE = Recipe.model_validate(
    {
        "name": "push",
        "mixture": [{"name": "all", "filter": "success"}],
        "windows": {"future_frames": [1], "actions": 1},
        "observation": {"cameras": ["front"], "size": [32, 48]},
        "validation_share": 0,
    }
)
Row = dict[str, Any]


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a lake with two ingested and measured episodes of 12 pictures, GOP 10."""
    root = tmp_path_factory.mktemp("ingested")
    lake, settings = make_lake(root)
    for seed in range(2):
        write_recording(landing(lake) / f"toys/{seed}.hdf5", seed)
    ingest_all(lake, settings)
    for batch in discovered(lake, settings):
        measure_batch(lake, settings, batch)
    return root


def copy(root: Path, target: Path) -> tuple[Lake, Settings]:
    """The same lake in another place."""
    shutil.copytree(root / "lake", target / "lake")
    return make_lake(target)


@pytest.fixture
def home(ingested: Path, tmp_path: Path) -> tuple[Lake, Settings]:
    return copy(ingested, tmp_path)


def latest(lake: Lake, number: int = 0) -> Row:
    found: list[Row] = query(lake, "FROM episodes ORDER BY recording_uri").to_pylist()
    return found[number]


def path_of(lake: Lake, row: Row) -> Path:
    path = lake.local_path(row["uri"])
    assert path is not None
    return path


def files(lake: Lake) -> dict[str, bytes]:
    root = lake.local_path("episodes")
    assert root is not None
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*.mcap"))}


def overwrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def damage_a_picture(lake: Lake, row: Row, number: int = 4) -> bytes:
    """Flip a byte of a picture of 'front'; returns the file's bytes as they were."""
    path = path_of(lake, row)
    good = path.read_bytes()
    camera = open_episode(lake, row["uri"]).index.cameras[0]
    at = int(camera.offsets[number] + camera.lengths[number]) - 3
    overwrite(path, good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
    return good


def test_a_damaged_episode_becomes_a_new_revision_of_what_is_whole(home: tuple[Lake, Settings]) -> None:
    lake, settings = home
    old, other = latest(lake, 0), latest(lake, 1)
    original = open_episode(lake, old["uri"])
    coded, state = original.coded("front", 0, 12), original.series("state")
    damage_a_picture(lake, old)
    before = files(lake)

    repaired = repair_episode(lake, old, settings.scratch)

    assert repaired is not None and repaired.note.code == "repaired"
    assert repaired.note.text == "saved from a damaged file: 6 of 12 pictures of 'front' were lost"
    new = latest(lake, 0)
    assert (new["uri"], new["revision"], new["frames"]) == (repaired.uri, 2, 6)
    changed = {"uri", "etag", "size_bytes", "sha256", "frames", "camera_frames", "notes", "ingested_at", "revision"}
    assert {name for name in new if new[name] != old[name]} == changed
    assert new["notes"] == sorted({*(old["notes"] or ()), "repaired"})
    assert latest(lake, 1) == other, "the others are not touched"
    kept = files(lake)
    assert {name: kept[name] for name in before} == before, "nor are files"
    assert len(kept) == len(before) + 1

    assert check_episode(lake, new["uri"], new["sha256"]) == []
    reader = open_episode(lake, new["uri"], new["size_bytes"])
    assert reader.facts == original.facts and reader.notes == (*original.notes, repaired.note)
    survivors = [0, 1, 2, 3, 10, 11]
    assert reader.cameras["front"].times_ns.tolist() == original.cameras["front"].times_ns[survivors].tolist()
    assert reader.coded("front", 0, 6) == [coded[i] for i in survivors]
    assert reader.series("state").values.tobytes() == state.values.tobytes()
    assert reader.series("state").times_ns.tolist() == state.times_ns.tolist()


def test_readers_of_tables_and_new_manifests_meet_the_new_file(home: tuple[Lake, Settings]) -> None:
    lake, settings = home
    old = latest(lake)
    earlier = build_manifest(lake, RECIPE)
    damage_a_picture(lake, old)
    repaired = repair_episode(lake, old, settings.scratch)
    assert repaired is not None
    (curated,) = query(lake, "FROM curated WHERE episode_id = ?", [old["episode_id"]]).to_pylist()
    new = latest(lake)
    assert (curated["uri"], curated["etag"]) == (new["uri"], new["etag"])
    assert curated["dropped_frames"] == 6, "the signals are those of the new file"
    later = build_manifest(lake, RECIPE)
    assert later.header.digest != earlier.header.digest
    by_key = {row["key"]: row for row in load_manifest(lake, later.key, settings.scratch).table().to_pylist()}
    assert (by_key[new["key"]]["uri"], by_key[new["key"]]["sha256"]) == (new["uri"], new["sha256"])
    # A manifest of before the repair still names the damaged file, which is still there.
    pinned = load_manifest(lake, earlier.key, settings.scratch).table().to_pylist()
    assert old["uri"] in {row["uri"] for row in pinned}


def test_a_good_episode_and_a_second_repair_change_nothing(home: tuple[Lake, Settings]) -> None:
    lake, settings = home
    old = latest(lake)
    before = contents(lake), files(lake)
    assert repair_episode(lake, old, settings.scratch) is None
    assert (contents(lake), files(lake)) == before
    damage_a_picture(lake, old)
    first = repair_episode(lake, old, settings.scratch)
    after = contents(lake), files(lake)
    assert repair_episode(lake, latest(lake), settings.scratch) is None
    assert repair_episode(lake, old, settings.scratch) == first, "somebody who has not seen the new row yet"
    assert (contents(lake), files(lake)) == after
    assert len(rows(lake, "episodes")) == 3
    assert list((settings.scratch / "repair").iterdir()) == []


def test_a_repaired_file_that_is_damaged_again_is_repaired_again(home: tuple[Lake, Settings]) -> None:
    lake, settings = home
    for revision in (2, 3):
        damage_a_picture(lake, latest(lake), number=5 - revision)
        assert repair_episode(lake, latest(lake), settings.scratch) is not None
        assert latest(lake)["revision"] == revision
    reader = open_episode(lake, latest(lake)["uri"])
    assert [note.code for note in reader.notes if note.code == "repaired"] == ["repaired"] * 2
    assert reader.cameras["front"].frames == 4


def test_facts_come_from_the_row_when_the_file_has_lost_them(home: tuple[Lake, Settings]) -> None:
    lake, settings = home
    old = latest(lake)
    facts = open_episode(lake, old["uri"]).facts
    path = path_of(lake, old)
    data = path.read_bytes()
    overwrite(path, data[: data.rindex(b"megahour.episode", 0, data.rindex(b"megahour.episode"))])
    repaired = repair_episode(lake, old, settings.scratch)
    assert repaired is not None and "its metadata is gone: facts are those of the table" in repaired.note.text
    assert facts.attributes != {}
    reader = open_episode(lake, repaired.uri)
    assert reader.facts == type(facts)(**{**vars(facts), "attributes": {}})
    assert reader.cameras["front"].frames == 12 and len(reader.series("state").times_ns) == 12
    assert [note.code for note in reader.notes] == [*(old["notes"] or ()), "repaired"]
    assert latest(lake)["state_stats"] == old["state_stats"]


def test_what_is_gone_is_said_to_be_gone(home: tuple[Lake, Settings]) -> None:
    """A file that was cut before its rows, which lie last: the row says that it has no state any more."""
    lake, settings = home
    old = latest(lake)
    path = path_of(lake, old)
    index = open_episode(lake, old["uri"]).index
    overwrite(path, path.read_bytes()[: index.chunks[0].offset])
    assert repair_episode(lake, old, settings.scratch) is not None
    new = latest(lake)
    assert (new["frames"], new["state_dim"], new["action_stats"]) == (12, None, None)


Spoil = Callable[[Lake, Row], None]


def _missing(lake: Lake, row: Row) -> None:
    path_of(lake, row).unlink()


def _replaced(lake: Lake, row: Row) -> None:
    overwrite(path_of(lake, row), path_of(lake, latest(lake, 1)).read_bytes())


def _replaced_and_damaged(lake: Lake, row: Row) -> None:
    data = bytearray(path_of(lake, latest(lake, 1)).read_bytes())
    data[300] ^= 1
    overwrite(path_of(lake, row), bytes(data))


def _nothing_left(lake: Lake, row: Row) -> None:
    path = path_of(lake, row)
    overwrite(path, bytes(path.stat().st_size - FOOTER_BYTES) + path.read_bytes()[-FOOTER_BYTES:])


def _newer(lake: Lake, row: Row) -> None:
    from megahour.episode.writer import write_episode
    from tests.samples import FACTS, raw_episode

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "CONTAINER_VERSION", 99)
        write_episode(path_of(lake, row), raw_episode(4, (32, 32)), FACTS)


REFUSED: dict[str, tuple[Spoil, str, str]] = {
    "missing": (_missing, "missing", r"is gone: ingest its recording landing/toys/0\.hdf5 again"),
    "replaced": (_replaced, "replaced", "is whole, but not what was ingested.* Put the right file back"),
    "replaced and damaged": (_replaced_and_damaged, "replaced", "is the damaged file of another episode"),
    "nothing left": (_nothing_left, "corrupt", "Nothing of .* can be saved.* Ingest its recording again"),
    "newer": (_newer, "version", "has version 99.*: repair it with the Megahour that wrote it"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_repaired_is_refused_with_a_sentence(home: tuple[Lake, Settings], kind: str) -> None:
    lake, settings = home
    spoil, reason, text = REFUSED[kind]
    row = latest(lake)
    spoil(lake, row)
    before = contents(lake), files(lake)
    with pytest.raises(EpisodeError, match=text) as caught:
        repair_episode(lake, row, settings.scratch)
    assert caught.value.reason == reason
    assert (contents(lake), files(lake)) == before
    assert list((settings.scratch / "repair").glob("*")) == []


# Killed.


def start(lake: Lake, settings: Settings, row: Row, die_at: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.ingest.repair_victim", lake.uri, str(settings.scratch), row["episode_id"]]
    return subprocess.run([*command, "--die-at", str(die_at)], cwd=REPO, capture_output=True, text=True, timeout=120)


STEPS = 7
"""Before, in and after storing the file, before and after the row of its signals, before and after its own."""


Told = tuple[dict[str, list[Row]], dict[str, bytes]]


def told(lake: Lake) -> Told:
    """All rows, without etags, and all files: a local file's etag holds its inode."""
    plain = {
        table: [{name: value for name, value in row.items() if name != "etag"} for row in found]
        for table, found in contents(lake).items()
    }
    return plain, files(lake)


@pytest.fixture(scope="module")
def undisturbed(ingested: Path, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """What a repair leaves that nobody killed."""
    lake, settings = copy(ingested, tmp_path_factory.mktemp("undisturbed"))
    damage_a_picture(lake, latest(lake))
    done = start(lake, settings, latest(lake))
    assert (done.returncode, done.stdout.strip()) == (0, str(STEPS)), done.stderr
    assert [row["revision"] for row in rows(lake, "episodes")].count(2) == 1
    return told(lake)


@pytest.mark.parametrize("die_at", range(1, STEPS + 1))
def test_killed_at_any_step_and_run_again(home: tuple[Lake, Settings], undisturbed: Told, die_at: int) -> None:
    lake, settings = home
    damage_a_picture(lake, latest(lake))
    assert start(lake, settings, latest(lake), die_at).returncode == -signal.SIGKILL
    again = repair_episode(lake, latest(lake), settings.scratch)
    assert (again is None) == (die_at == STEPS), "the last step had nothing left to do"
    assert told(lake) == undisturbed
    if again is not None:
        assert list((settings.scratch / "repair").iterdir()) == []


def test_what_a_repair_of_another_version_left_behind_is_in_nobodys_way(home: tuple[Lake, Settings]) -> None:
    """It was killed before it appended its row, and its compressor packed the same content differently."""
    lake, settings = home
    row = latest(lake)
    damage_a_picture(lake, row)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "COMPRESSED_CHUNK_BYTES", 100)
        patch.setattr("megahour.ingest.repair._append", lambda *_: None)
        left = repair_episode(lake, row, settings.scratch)
    done = repair_episode(lake, row, settings.scratch)
    assert left is not None and done is not None and left.uri != done.uri
    assert latest(lake)["uri"] == done.uri


# The command.

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(home: tuple[Lake, Settings], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    _, settings = home
    monkeypatch.setenv("MEGAHOUR_LAKE", settings.lake)
    monkeypatch.setenv("MEGAHOUR_SCRATCH", str(settings.scratch))
    # As wide as it takes: a table in a narrow terminal breaks its sentences.
    monkeypatch.setenv("COLUMNS", "400")

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(arguments)
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return run


def test_the_command_repairs_and_is_clean_afterwards(home: tuple[Lake, Settings], cli: Cli) -> None:
    lake, _ = home
    row = latest(lake)
    damage_a_picture(lake, row)
    code, out, _ = cli("episodes", "check")
    assert code == 1 and row["episode_id"] in out
    code, out, err = cli("episodes", "check", "--repair")
    assert code == 0 and err.strip() == ""
    assert "6 of 12 pictures of 'front' were lost" in out
    assert latest(lake)["uri"] in out
    code, out, _ = cli("episodes", "check")
    assert code == 0 and "2 episodes checked, all good" in out
    code, out, _ = cli("episodes", "check", "--repair")
    assert code == 0 and "2 episodes checked, all good" in out
    shown = json.loads(cli("episodes", "show", row["episode_id"], "--json")[1])
    assert any(note.startswith("repaired: saved from a damaged file") for note in shown["file"]["notes"])


def test_the_command_repairs_the_episodes_it_is_told(home: tuple[Lake, Settings], cli: Cli) -> None:
    lake, _ = home
    one, other = latest(lake, 0), latest(lake, 1)
    damage_a_picture(lake, one)
    damage_a_picture(lake, other)
    code, out, _ = cli("episodes", "check", other["episode_id"][:12], "--repair", "--json")
    told = json.loads(out)
    assert code == 0
    assert told["checked"] == 1 and {problem["episode_id"] for problem in told["problems"]} == {other["episode_id"]}
    assert [(done["episode_id"], done["uri"]) for done in told["repaired"]] == [
        (other["episode_id"], latest(lake, 1)["uri"])
    ]
    assert latest(lake, 0)["revision"] == 1 and latest(lake, 1)["revision"] == 2


def test_the_command_fails_when_one_cannot_be_repaired(home: tuple[Lake, Settings], cli: Cli) -> None:
    lake, _ = home
    one, other = latest(lake, 0), latest(lake, 1)
    damage_a_picture(lake, one)
    _nothing_left(lake, other)
    code, out, _ = cli("episodes", "check", "--repair", "--json")
    told = {done["episode_id"]: done for done in json.loads(out)["repaired"]}
    assert code == 1
    assert told[one["episode_id"]]["uri"] == latest(lake, 0)["uri"]
    assert told[other["episode_id"]]["uri"] is None
    assert told[other["episode_id"]]["outcome"].startswith("corrupt: Nothing of ")
    code, out, _ = cli("episodes", "check", "--repair")
    assert code == 1 and "Ingest its recording again" in out, "what is repaired is good, the other one is still not"


def test_pictures_of_a_repaired_episode_decode_as_before(home: tuple[Lake, Settings]) -> None:
    lake, settings = home
    row = latest(lake)
    pictures = open_episode(lake, row["uri"]).frames("front", [0, 3, 10, 11])
    damage_a_picture(lake, row)
    repaired = repair_episode(lake, row, settings.scratch)
    assert repaired is not None
    assert np.array_equal(open_episode(lake, repaired.uri).frames("front", [0, 3, 4, 5]), pictures)


def test_what_happens_to_the_row_while_an_episode_is_saved_is_kept(
    home: tuple[Lake, Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, settings = home
    old = latest(lake)
    damage_a_picture(lake, old)

    def meanwhile(*arguments: Any) -> Salvaged:
        append(lake, "episodes", [{**old, "superseded_by": "another", "revision": 2}], once="meanwhile")
        return salvage(*arguments)

    monkeypatch.setattr("megahour.ingest.repair.salvage", meanwhile)
    repaired = repair_episode(lake, old, settings.scratch)
    new = latest(lake)
    assert repaired is not None
    assert (new["uri"], new["superseded_by"], new["revision"]) == (repaired.uri, "another", 3)

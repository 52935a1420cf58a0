"""The command line over a small lake that went through the real rooms: ingest, manifest, a run, an evaluation."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from megahour.cli import main
from megahour.ingest.discover import discover
from megahour.ingest.land import LandingReport, land_batch
from megahour.ingest.plan import Batch, read_batch
from megahour.ingest.run import ingest_batch
from megahour.ingest.verdict import IngestError
from megahour.manifest.build import build_manifest
from megahour.manifest.recipe import Recipe
from megahour.recording import write_recording
from megahour.runs import Intent, append_event, read_intent, write_intent
from megahour.settings import Settings
from megahour.simulators.model import Demonstration
from megahour.storage import Lake, open_lake, put_file
from megahour.warehouse.queries import query
from megahour.warehouse.tables import append
from tests.samples import write_aloha

RUN = "0123456789abcdef"
NO_RUN = "megahour: A run is named by its key, or its first digits: `megahour runs ls` lists them\n"
NO_EPISODE = "megahour: An episode is named by its id, or its first digits: `megahour episodes ls` lists them\n"


def demonstration(seed: int, steps: int = 24) -> Demonstration:
    random = np.random.default_rng(seed)
    return Demonstration(
        pictures={"corner2": np.repeat(random.integers(0, 255, (steps, 4, 4, 3), np.uint8), 16, 1).repeat(16, 2)},
        state=random.normal(size=(steps, 4)).astype(np.float32),
        action=random.normal(size=(steps, 4)).astype(np.float32),
        success=(False,) * (steps - 1) + (seed != 2,),
        rate_hz=80.0,
        robot="sawyer",
    )


@dataclass(frozen=True)
class House:
    """A lake with three episodes and one broken recording, a manifest, a run and its evaluation."""

    settings: Settings
    digest: str
    demos: Path


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    root = tmp_path_factory.mktemp("house")
    settings = Settings(lake=str(root / "lake"), scratch=root / "scratch", settle_s=0)
    demos = root / "demos"
    demos.mkdir()
    for index in range(3):
        write_recording(demos / f"episode_{index}.hdf5", demonstration(index), {"task": "press"})
    (demos / "broken.hdf5").write_bytes((demos / "episode_0.hdf5").read_bytes()[:5000])
    with pytest.MonkeyPatch.context() as patch:
        _use(settings, patch)
        with pytest.raises(SystemExit, match="0"):
            main(["land", str(demos), "--source", "bench"])
    lake = open_lake(settings.lake_uri)
    ready = datetime.now(UTC) + timedelta(hours=1)
    found = discover(lake, settings, "", ready, time.monotonic() + 60)
    for key in found.batches_to_request:
        land_batch(lake, settings, read_batch(lake, key))
        ingest_batch(lake, settings, read_batch(lake, key))
    recipe = Recipe.model_validate(
        {
            "name": "press",
            "mixture": [{"name": "all", "filter": "success"}],
            "observation": {"cameras": ["corner2"]},
            "validation_share": 0,
        }
    )
    manifest = build_manifest(lake, recipe)
    intent = Intent(
        run_key=RUN,
        recipe="press",
        lake=settings.lake_uri,
        manifest=manifest.key,
        manifest_digest=manifest.header.digest,
        table_versions=manifest.header.table_versions,
        config={"train": {"steps": 300}},
        code_version="abc",
        seed=0,
        created_at="2026-01-01T00:00:00+00:00",
    )
    run_dir = write_intent(settings.runs_dir, intent)
    append_event(run_dir, "started", step=0, attempt=1)
    append_event(run_dir, "step", step=50, attempt=1, loss=0.25)
    (run_dir / "step_000050").mkdir()
    (run_dir / "step_000050" / "manifest.json").write_text("{}")
    append_event(run_dir, "checkpoint", step=50, attempt=1, path="step_000050", size_bytes=2)
    write_intent(settings.runs_dir, replace(intent, run_key="fedcba9876543210", created_at="2025-01-01T00:00:00+00:00"))
    rollouts = [
        {
            "run_key": RUN,
            "step": step,
            "policy": policy,
            "simulator": "metaworld",
            "task": "press",
            "rollout": i,
            "init_state": 1000 + i,
            "env_seed": 0,
            "policy_seed": 0,
            "success_once": policy == "trained" and i > 0,
            "success_at_end": False,
            "success_at_reset": False,
            "steps": 200,
            "error": "the simulator died" if i == 0 else None,
            "video": None,
            "versions": "{}",
            "evaluated_at": datetime.now(UTC),
            "revision": 1,
        }
        for step in (50, 100)
        for policy in ("trained", "untrained", "blind")
        for i in range(4)
    ]
    append(lake, "evaluations", rollouts, once="test")
    return House(settings, manifest.header.digest, demos)


def _use(settings: Settings, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("MEGAHOUR_LAKE", settings.lake)
    patch.setenv("MEGAHOUR_SCRATCH", str(settings.scratch))
    patch.delenv("MEGAHOUR_RUNS", raising=False)


Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(house: House, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    _use(house.settings, monkeypatch)

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(arguments)
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return run


def test_help_comes_in_under_half_a_second() -> None:
    """In seconds of CPU: wall time is the same on a quiet machine, and tests run on busy ones."""
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-m", "megahour.cli", "--help"], capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert done.returncode == 0
    for command in ("record", "land", "episodes", "quarantine", "manifest", "lineage", "runs", "eval"):
        assert f" {command} " in done.stdout
    assert min(seconds) < 0.5


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom megahour.cli import main\ntry: main(['record', '--help'])\nexcept SystemExit: pass\n"
        "heavy = {'av', 'duckdb', 'deltalake', 'h5py', 'matplotlib', 'mcap', 'pyarrow', 'numpy', 'mujoco'}\n"
        "print('loaded:', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"


def test_episodes_are_listed_filtered_and_counted(cli: Cli) -> None:
    code, out, _ = cli("episodes", "ls", "--json")
    rows = json.loads(out)
    assert code == 0 and len(rows) == 3
    assert {row["recording_uri"] for row in rows} == {f"landing/bench/demos/episode_{i}.hdf5" for i in range(3)}
    assert {row["frames"] for row in rows} == {24}
    assert len(json.loads(cli("episodes", "ls", "--where", "NOT success", "--json")[1])) == 1
    assert json.loads(cli("episodes", "ls", "--robot", "nobody's", "--json")[1]) == []
    code, out, _ = cli("episodes", "ls", "--limit", "2")
    assert code == 0 and "2 of 3 episodes" in out and "sawyer" in out


def test_a_wrong_condition_is_one_sentence_and_exit_code_1(cli: Cli) -> None:
    code, out, err = cli("episodes", "ls", "--where", "colour = 1")
    assert code == 1 and out == ""
    assert err.startswith("megahour: --where is not a condition over episodes") and "Traceback" not in err


def test_an_episode_is_shown_by_its_first_digits_and_checked(cli: Cli, house: House) -> None:
    row = json.loads(cli("episodes", "ls", "--json")[1])[0]
    shown = json.loads(cli("episodes", "show", row["episode_id"][:10], "--json")[1])
    assert shown["file"]["facts"]["episode_id"] == row["episode_id"]
    assert shown["file"]["cameras"]["corner2"] == {"width": 64, "height": 64, "frames": 24}
    assert "corner2" in cli("episodes", "show", row["episode_id"])[1]
    code, out, _ = cli("episodes", "check")
    assert code == 0 and "3 episodes checked, all good" in out
    code, _, err = cli("episodes", "show", "nothing")
    assert code == 1 and err == "megahour: There is no episode nothing: `megahour episodes ls` lists them\n"


def test_a_damaged_episode_fails_the_check(cli: Cli, house: House) -> None:
    row = json.loads(cli("episodes", "ls", "--json")[1])[-1]
    path = open_lake(house.settings.lake_uri).local_path(row["uri"])
    assert path is not None
    good = path.read_bytes()
    path.write_bytes(good[:2000] + bytes(64) + good[2064:])
    try:
        code, out, _ = cli("episodes", "check", row["episode_id"], "--json")
    finally:
        path.write_bytes(good)
    assert code == 1
    assert [problem["episode_id"] for problem in json.loads(out)["problems"]][:1] == [row["episode_id"]]


def test_another_episode_in_its_place_fails_the_check(cli: Cli, house: House) -> None:
    one, other = (row["uri"] for row in json.loads(cli("episodes", "ls", "--json")[1])[:2])
    path, stranger = (house_path(house, uri) for uri in (one, other))
    good = path.read_bytes()
    path.write_bytes(stranger.read_bytes())
    try:
        code, out, _ = cli("episodes", "check", "--json")
    finally:
        path.write_bytes(good)
    assert code == 1
    assert [(each["uri"], each["reason"]) for each in json.loads(out)["problems"]] == [(one, "replaced")]


def house_path(house: House, uri: str) -> Path:
    path = open_lake(house.settings.lake_uri).local_path(uri)
    assert path is not None
    return path


def test_quarantine_lists_the_broken_one_and_plans_another_try(cli: Cli) -> None:
    rows = json.loads(cli("quarantine", "ls", "--json")[1])
    assert [(row["uri"], row["state"]) for row in rows] == [("landing/bench/demos/broken.hdf5", "held")]
    assert rows[0]["error"]
    assert "broken.hdf5" in cli("quarantine", "ls")[1]
    assert cli("quarantine", "retry")[0] == 1
    code, out, _ = cli("quarantine", "retry", "--all")
    assert code == 0 and "will try 1 recordings again" in out
    assert json.loads(cli("quarantine", "ls", "--json")[1])[0]["state"] == "retrying"


def test_a_manifest_is_shown_with_its_digest_and_rows(cli: Cli, house: House) -> None:
    shown = json.loads(cli("manifest", "show", "press", "--rows", "--json")[1])
    assert shown["digest"] == house.digest and shown["rows"] == len(shown["episodes"]) == 2
    listed = {row["episode_id"]: row["sha256"] for row in json.loads(cli("episodes", "ls", "--json")[1])}
    assert all(row["sha256"] == listed[row["episode_id"]] for row in shown["episodes"])
    assert json.loads(cli("manifest", "show", "press", "--digest", house.digest[:8], "--json")[1])["rows"] == 2
    assert house.digest in cli("manifest", "show", "press")[1]
    code, _, err = cli("manifest", "show", "pour")
    assert code == 1 and "recipes with manifests: press" in err


def test_lineage_goes_from_run_to_recordings_and_back(cli: Cli) -> None:
    found = json.loads(cli("lineage", RUN[:6], "--json")[1])
    assert [checkpoint["step"] for checkpoint in found["checkpoints"]] == [50]
    assert {row["uri"] for row in found["recordings"]} == {f"landing/bench/demos/episode_{i}.hdf5" for i in (0, 1)}
    assert json.loads(cli("lineage", "--json")[1])["run"]["run_key"] == RUN, "the latest run by default"
    episode, content = (found["episodes"][0][name] for name in ("episode_id", "sha256"))
    back = json.loads(cli("lineage", "--episode", episode, "--json")[1])
    assert RUN in {run["run_key"] for run in back["runs"]}
    assert back["episode"]["sha256"] == content
    text = cli("lineage", RUN)[1]
    assert "episode_0.hdf5" in text and RUN in text
    assert cli("lineage", RUN, "--episode", episode)[0] == 1


def test_runs_say_how_far_they_are(cli: Cli) -> None:
    rows = json.loads(cli("runs", "ls", "--json")[1])
    assert [(row["run_key"], row["state"]) for row in rows] == [("fedcba9876543210", "waiting"), (RUN, "training")]
    assert (rows[1]["step"], rows[1]["of"], rows[1]["loss"], rows[1]["checkpoints"]) == (50, 300, 0.25, [50])
    shown = json.loads(cli("runs", "show", "--json")[1])
    assert [event["kind"] for event in shown["events"]] == ["started", "checkpoint"]
    assert shown["intent"]["recipe"] == "press"
    assert "training" in cli("runs", "ls")[1] and "abc" in cli("runs", "show", RUN)[1]
    code, _, err = cli("runs", "show", "zzz")
    assert code == 1 and "no run that begins with zzz" in err


def test_a_run_that_is_not_one_is_told(cli: Cli) -> None:
    assert cli("runs", "show", "zzz")[2].startswith("megahour: There is no run that begins with zzz; the latest are: ")
    assert cli("runs", "show", "")[2] == NO_RUN


def test_an_evaluation_shows_the_last_checkpoint_beside_its_controls(cli: Cli) -> None:
    shown = json.loads(cli("eval", "show", "--rollouts", "--json")[1])
    assert [(row["policy"], row["success"], row["errors"]) for row in shown["success"]] == [
        ("trained", "3/4", 1),
        ("untrained", "0/4", 1),
        ("blind", "0/4", 1),
    ]
    assert {row["step"] for row in shown["rollouts"]} == {100}
    assert "3/4" in cli("eval", "show", RUN)[1]
    code, _, err = cli("eval", "show", "fed")
    assert code == 1 and "not rolled out in a simulator" in err


def test_without_a_run_the_evaluation_shown_is_the_latest_there_is(cli: Cli, house: House) -> None:
    """A newer run without rollouts, as of a recipe that names no simulator, does not hide it."""
    runs_dir = house.settings.runs_dir
    newer = write_intent(runs_dir, replace(read_intent(runs_dir / RUN), run_key="newer", created_at="2999-01-01"))
    try:
        assert json.loads(cli("runs", "show", "--json")[1])["run_key"] == "newer"
        assert json.loads(cli("eval", "show", "--json")[1])["run_key"] == RUN
    finally:
        shutil.rmtree(newer)


def test_landing_again_copies_nothing_and_a_changed_file_is_refused(cli: Cli, house: House, tmp_path: Path) -> None:
    code, out, _ = cli("land", str(house.demos), "--source", "bench")
    assert code == 0 and "0 files (0 B) landed" in out and "4 were there before" in out
    other = tmp_path / "demos"
    other.mkdir()
    (other / "episode_0.hdf5").write_bytes(b"changed")
    code, _, err = cli("land", str(other), "--source", "bench")
    assert code == 1 and "Land it under another --source" in err


def test_what_landed_is_ingested_once_without_dagster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cli: Cli
) -> None:
    for name, value in {"LAKE": tmp_path / "lake", "SCRATCH": tmp_path / "scratch", "SETTLE_S": 0}.items():
        monkeypatch.setenv(f"MEGAHOUR_{name}", str(value))
    write_aloha(tmp_path / "lab/good.hdf5")
    (tmp_path / "lab/bad.hdf5").write_bytes(b"no HDF5")
    cli("land", str(tmp_path / "lab"))
    code, out, _ = cli("ingest")
    assert code == 1 and "1 recordings became 1 episodes" in out and "bad.hdf5" in out
    code, out, _ = cli("ingest")
    assert code == 0 and "Nothing to do" in out
    assert " will try 1 recordings again" in cli("quarantine", "retry", "--all")[1]
    assert cli("ingest")[0] == 1
    code, out, _ = cli("ingest")
    assert code == 0 and "Nothing to do" in out, "what is still bad was tried once"
    cli("land", str(tmp_path / "lab/good.hdf5"), "--source", "copies")
    code, out, _ = cli("ingest")
    assert code == 0 and "0 recordings became 0 episodes" in out
    code, out, _ = cli("ingest")
    assert code == 0 and "Nothing to do" in out, "a copy was hashed once"
    write_aloha(tmp_path / "more/two.hdf5", seed=2)
    cli("land", str(tmp_path / "more"))
    code, out, _ = cli("ingest")
    assert code == 0 and "1 recordings became 1 episodes" in out
    assert len(json.loads(cli("episodes", "ls", "--json")[1])) == 2


def test_a_batch_that_the_machine_stops_does_not_stop_those_behind_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cli: Cli
) -> None:
    values = {"LAKE": tmp_path / "lake", "SCRATCH": tmp_path / "scratch", "SETTLE_S": 0, "BATCH_RECORDINGS": 1}
    for name, value in values.items():
        monkeypatch.setenv(f"MEGAHOUR_{name}", str(value))
    for number in range(2):
        write_aloha(tmp_path / f"lab/{number}.hdf5", seed=number)
    cli("land", str(tmp_path / "lab"))
    stopped: list[str] = []

    def once(lake: Lake, settings: Settings, batch: Batch) -> LandingReport:
        if not stopped:
            stopped.append(batch.key)
            raise IngestError("the disk is full")
        return land_batch(lake, settings, batch)

    monkeypatch.setattr("megahour.ingest.land.land_batch", once)
    code, out, err = cli("ingest")
    assert code == 1 and "1 recordings became 1 episodes" in out and err.endswith("megahour: the disk is full\n")
    code, out, _ = cli("ingest")
    assert code == 0 and "1 recordings became 1 episodes" in out, "what was stopped is tried again"


def test_an_empty_lake_answers_every_listing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cli: Cli) -> None:
    monkeypatch.setenv("MEGAHOUR_LAKE", str(tmp_path / "empty"))
    (tmp_path / "empty").mkdir()
    for command in (("episodes", "ls"), ("quarantine", "ls"), ("runs", "ls")):
        code, out, _ = cli(*command)
        assert code == 0 and out.startswith("No")
        assert json.loads(cli(*command, "--json")[1]) == []
    for arguments in (["manifest", "show", "press"], ["lineage"], ["eval", "show"], ["runs", "show"]):
        code, _, err = cli(*arguments)
        assert code == 1 and err.startswith("megahour: There ")


def test_record_makes_its_folder_and_says_what_is_next(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("metaworld", reason="the simulation extra is not installed")
    code, out, _ = cli(
        "record", "--task", "button-press-topdown-v3", "--episodes", "1", "--size", "64", "--out", str(tmp_path / "new")
    )
    assert code == 0 and f"1 succeeded. Next: megahour land {tmp_path / 'new'}" in out.replace("\n", "")
    code, _, err = cli("record", "--task", "press", "--episodes", "1", "--out", str(tmp_path / "none"))
    assert code == 1 and "no task 'press'" in err


def test_a_wrong_setting_is_named_as_it_is_set(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.setenv("MEGAHOUR_BATCH_BYTES", "lots")
    code, _, said = cli("episodes", "ls")
    assert code == 1
    assert said.startswith("megahour: MEGAHOUR_BATCH_BYTES is 'lots': ")
    assert "pydantic" not in said


def test_an_empty_variable_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LAKE", "RUNS", "BATCH_BYTES"):
        monkeypatch.setenv(f"MEGAHOUR_{name}", "")
    settings = Settings()
    assert (settings.lake, settings.runs) == (".megahour/lake", None)


def test_a_filter_that_finds_nothing_is_not_an_empty_lake(cli: Cli) -> None:
    assert cli("episodes", "ls", "--task", "fly")[1].strip() == "No episode is like that"


def test_a_recipe_without_manifest_says_what_is_wrong_with_its_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cli: Cli
) -> None:
    monkeypatch.setenv("MEGAHOUR_RECIPES", str(tmp_path))
    (tmp_path / "typo.yaml").write_text("name: typo\nmixtures: []\n")
    code, _, said = cli("manifest", "show", "typo")
    assert code == 1
    assert "mixtures: Extra inputs are not permitted" in said


def test_damaged_tables_are_one_sentence_that_blames_no_filter(house: House, cli: Cli) -> None:
    root = open_lake(house.settings.lake_uri).local_path("tables/episodes")
    assert root is not None
    damages = [(next(root.glob("*.parquet")), "No files found"), (root / f"_delta_log/{0:020d}.json", "damaged")]
    for path, said in damages:
        kept = path.read_bytes()
        path.unlink()
        if said == "damaged":
            path.write_text("{")
        try:
            code, _, err = cli("episodes", "ls")
        finally:
            path.write_bytes(kept)
        assert code == 1
        assert err.startswith("megahour: ") and said in err and "--where" not in err


@pytest.fixture
def alone(house: House, cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    """The command line over a lake that holds one episode and one run of the house's."""
    lake = open_lake((tmp_path / "alone").as_uri())
    rows = query(open_lake(house.settings.lake_uri), "SELECT * EXCLUDE (key) FROM episodes LIMIT 1").to_pylist()
    put_file(lake, rows[0]["uri"], house_path(house, rows[0]["uri"]))
    append(lake, "episodes", rows, once="one")
    shutil.copytree(house.settings.runs_dir / RUN, tmp_path / "alone/runs" / RUN)
    monkeypatch.setenv("MEGAHOUR_LAKE", str(tmp_path / "alone"))
    return cli


def test_no_digits_name_no_episode_and_no_run_even_where_there_is_one(alone: Cli) -> None:
    (episode,) = json.loads(alone("episodes", "ls", "--json")[1])
    assert alone("episodes", "show", episode["episode_id"][0])[0] == 0
    assert alone("runs", "show", RUN[0])[0] == 0
    for words in ("episodes show", "episodes view", "episodes check", "lineage --episode"):
        assert alone(*words.split(), "") == (1, "", NO_EPISODE), words
    for words in ("runs show", "lineage", "eval show"):
        assert alone(*words.split(), "") == (1, "", NO_RUN), words


def test_only_what_brings_recordings_makes_a_lake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cli: Cli) -> None:
    place = tmp_path / "mistyped"
    monkeypatch.setenv("MEGAHOUR_LAKE", str(place))
    readers = (
        *(("episodes", name) for name in ("ls", "check")),
        *(("episodes", name, "0") for name in ("show", "view", "check")),
        *(("quarantine", *words) for words in (("ls",), ("retry", "--all"), ("retry", "landing/x"))),
        *(("manifest", "show", "press"), ("export", "lerobot", str(tmp_path / "out"), "--recipe", "press")),
        *(("runs", "ls"), ("runs", "show"), ("lineage",), ("lineage", "--episode", "0"), ("eval", "show")),
        ("ingest",),
        ("land", str(tmp_path / "nothing")),
    )
    for command in readers:
        code, out, err = cli(*command)
        said = "nothing at" if command[0] == "land" else f"no lake at {place}: set MEGAHOUR_LAKE to where it is"
        assert (code, out) == (1, "") and err.startswith(f"megahour: There is {said}"), command
        assert not place.exists(), command
    write_aloha(tmp_path / "lab/good.hdf5")
    assert cli("land", str(tmp_path / "lab"))[0] == 0 and place.is_dir()
    assert str(place) in cli("episodes", "ls")[1], "an empty lake says where it is: it may be the wrong one"


def test_a_policy_that_is_no_control_is_shown_after_them(house: House, alone: Cli, tmp_path: Path) -> None:
    rows = query(open_lake(house.settings.lake_uri), "SELECT * EXCLUDE (key) FROM evaluations").to_pylist()
    other = {"untrained": "noisy", "trained": "trained", "blind": "blind"}
    lake = open_lake((tmp_path / "alone").as_uri())
    append(lake, "evaluations", [{**row, "policy": other[row["policy"]]} for row in rows], once="x")
    code, out, _ = alone("eval", "show", "--json")
    assert code == 0 and [each["policy"] for each in json.loads(out)["success"]] == ["trained", "blind", "noisy"]


def test_what_is_no_recipes_name_is_told(cli: Cli) -> None:
    for name in ("", "../press", "press.yaml", "Press"):
        code, out, err = cli("manifest", "show", name)
        assert (code, out) == (1, "") and err.startswith(f"megahour: {name!r} is no recipe's name: "), name

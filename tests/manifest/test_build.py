"""Manifests: one row per chosen episode, the same digest for the same data, and a reason where there is none."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from megahour.files import sha256_of
from megahour.manifest import write
from megahour.manifest.build import build_manifest, manifest_digest
from megahour.manifest.load import ManifestError, latest_key, latest_manifest, load_manifest, manifest_keys
from megahour.manifest.peek import peek
from megahour.manifest.recipe import Component, Observation, Recipe, Train, Windows
from megahour.storage import Lake, sha256
from megahour.warehouse.tables import append, open_table, table_versions
from tests.lake import INGESTED_AT, Row, episode_row, make_lake, series_of


def a_recipe(*filters: str, **changes: Any) -> Recipe:
    mixture = tuple(
        Component(name=f"part{i}", filter=text, weight=i + 1.0) for i, text in enumerate(filters or ("true",))
    )
    observation = Observation(cameras=("front", "wrist"))
    return Recipe(
        **{"name": "demo", "mixture": mixture, "observation": observation, "validation_share": 0.2, **changes}
    )


def a_lake(folder: Path, rows: list[Row]) -> Lake:
    lake = make_lake(folder)
    append(lake, "episodes", rows, once="rows")
    return lake


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return a_lake(tmp_path / "lake", [episode_row(i) for i in range(40)])


def test_the_rows_are_the_chosen_episodes_in_order(lake: Lake) -> None:
    manifest = build_manifest(lake, a_recipe("success"))
    table = manifest.table()
    assert sorted(table["episode_id"].to_pylist()) == [f"e{i:05d}" for i in range(40) if i % 4]
    assert table["split"].to_pylist() == sorted(table["split"].to_pylist())
    for split in ("train", "validation"):
        rows = manifest.rows(split)
        assert rows["key"].to_pylist() == sorted(rows["key"].to_pylist())
        assert set(rows["split"].to_pylist()) == {split}
        assert manifest.header.rows_by_split[split] == rows.num_rows
        assert manifest.header.windows_by_split[split] == sum(rows["windows"].to_pylist())
    row = next(row for row in table.to_pylist() if row["episode_id"] == "e00013")
    expected = {"uri": "episodes/2026-01-02/e00013.mcap", "etag": '"13"', "bytes": 1013, "start": 0, "end": 56}
    assert expected.items() <= row.items()
    assert row["sha256"] == episode_row(13)["sha256"]


@pytest.mark.parametrize(
    ("stride", "future", "actions"), [(1, (4, 8), 8), (3, (4,), 2), (7, (20,), 30), (100, (1,), 1)]
)
def test_every_window_lies_inside_its_episode(lake: Lake, stride: int, future: tuple[int, ...], actions: int) -> None:
    windows = Windows(future_frames=future, actions=actions, stride=stride)
    for row in build_manifest(lake, a_recipe(windows=windows)).table().to_pylist():
        starts = range(0, row["end"] - windows.span, stride)
        assert row["windows"] == len(starts) > 0
        assert starts[-1] + windows.span <= row["end"] - 1


def test_episodes_shorter_than_a_window_are_left_out_and_counted(tmp_path: Path) -> None:
    lake = a_lake(tmp_path, [episode_row(i, frames=frames) for i, frames in enumerate((8, 9, 30, 30))])
    header = build_manifest(lake, a_recipe()).header
    assert (header.rows, header.too_short) == (3, 1)


def test_an_episode_of_two_components_belongs_to_the_first(lake: Lake) -> None:
    manifest = build_manifest(lake, a_recipe("episode_id < 'e00010'", "episode_id < 'e00015' -- the rest"))
    rows = manifest.table().to_pylist()
    assert {row["episode_id"]: (row["component"], row["weight"]) for row in rows} == {
        f"e{i:05d}": ("part0", 1.0) if i < 10 else ("part1", 2.0) for i in range(15)
    }
    assert manifest.header.rows_by_component == {"part0": 10, "part1": 5}


def test_filters_may_ask_for_quality(lake: Lake) -> None:
    measured = [{"episode_id": f"e{i:05d}", "idle_share": i / 40, "revision": 1} for i in range(30)]
    append(lake, "episode_quality", measured, once="quality")
    table = build_manifest(lake, a_recipe("idle_share < 0.25 AND success")).table()
    assert sorted(table["episode_id"].to_pylist()) == [f"e{i:05d}" for i in range(10) if i % 4]


def test_the_digest_does_not_depend_on_the_order_of_rows_or_files(tmp_path: Path) -> None:
    rows = [episode_row(i) for i in range(200)]
    straight = build_manifest(a_lake(tmp_path / "straight", rows), a_recipe("success"))
    random.Random(0).shuffle(rows)
    lake = make_lake(tmp_path / "shuffled")
    for start in range(0, 200, 25):
        append(lake, "episodes", rows[start : start + 25], once=str(start))
    shuffled = build_manifest(lake, a_recipe("success"))
    assert shuffled.header.digest == straight.header.digest
    assert shuffled.path.read_bytes() == straight.path.read_bytes()
    assert shuffled.header.normalization == straight.header.normalization
    delta = open_table(lake, "episodes")
    assert delta is not None
    delta.optimize.compact()
    assert build_manifest(lake, a_recipe("success")).key == shuffled.key


def test_the_digest_does_not_depend_on_unrelated_ingests_the_clock_or_how_to_train(lake: Lake) -> None:
    recipe = a_recipe("robot = 'sawyer'")
    first = build_manifest(lake, recipe)
    append(lake, "episodes", [episode_row(i, robot="g1") for i in range(100, 110)], once="other")
    again = build_manifest(lake, recipe.model_copy(update={"train": Train(steps=7), "description": "the same data"}))
    assert again.header == first.header
    assert len(manifest_keys(lake)) == 1


def move_the_files(lake: Lake) -> None:
    """Revisions that say where the files lie now, and change nothing of what is in them."""
    rows = [episode_row(i, uri=f"episodes/moved/e{i:05d}.mcap", etag='"new"', revision=2) for i in range(40)]
    append(lake, "episodes", rows, once="moved")


def test_where_the_files_lie_is_no_part_of_the_digest_and_the_first_places_stay(lake: Lake) -> None:
    first = build_manifest(lake, a_recipe())
    before = first.path.read_bytes()
    seen = peek(lake, a_recipe())
    move_the_files(lake)
    again = build_manifest(lake, a_recipe())
    assert again.header == first.header
    assert again.path.read_bytes() == before
    assert peek(lake, a_recipe()) == seen, "nothing to build again"


def test_a_build_that_died_before_its_header_is_finished_after_the_files_moved(lake: Lake) -> None:
    first = build_manifest(lake, a_recipe())
    before = first.path.read_bytes()
    first.path.with_suffix(".json").unlink()
    move_the_files(lake)
    again = build_manifest(lake, a_recipe())
    assert again.key == first.key
    assert again.path.read_bytes() == before
    assert again.header.sha256 == first.header.sha256 == sha256_of(again.path)


def test_the_same_on_an_object_store(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without local paths, files are put, read and staged as from a bucket.
    monkeypatch.setattr(Lake, "local_path", lambda self, key: None)
    first = build_manifest(lake, a_recipe(), scratch=tmp_path / "scratch")
    (tmp_path / "lake" / first.key).with_suffix(".json").unlink()
    move_the_files(lake)
    again = build_manifest(lake, a_recipe(), scratch=tmp_path / "scratch")
    assert again.table().equals(first.table())
    assert again.header.sha256 == first.header.sha256 == sha256(lake, first.key)


def test_other_content_under_a_digest_is_not_adopted(lake: Lake) -> None:
    first = build_manifest(lake, a_recipe())
    other = build_manifest(lake, a_recipe("success"))
    first.path.with_suffix(".json").unlink()
    first.path.write_bytes(other.path.read_bytes())
    with pytest.raises(FileExistsError, match="other content"):
        build_manifest(lake, a_recipe())


def test_a_digest_can_be_had_without_a_trace(lake: Lake) -> None:
    pinned = table_versions(lake)
    first = build_manifest(lake, a_recipe())
    append(lake, "episodes", [episode_row(99)], once="more")

    def everything() -> dict[Path, int]:
        assert lake.root is not None
        return {path: path.stat().st_mtime_ns for path in [lake.root, *lake.root.rglob("*")]}

    before = everything()
    now = manifest_digest(lake, a_recipe())
    assert manifest_digest(lake, a_recipe(), pinned) == first.header.digest
    assert everything() == before
    assert build_manifest(lake, a_recipe()).header.digest == now != first.header.digest


def test_the_digest_changes_with_what_is_trained_on(lake: Lake) -> None:
    recipe = a_recipe("robot = 'sawyer'")
    digests = [build_manifest(lake, recipe).header.digest]
    parts: list[dict[str, Any]] = [{"windows": Windows(actions=4)}, {"observation": Observation(cameras=("front",))}]
    for part in [*parts, {"validation_share": 0.5}]:
        digests.append(build_manifest(lake, recipe.model_copy(update=part)).header.digest)
    other = episode_row(4)["action_stats"]
    for revision, changes in ((2, {"sha256": "new"}), (3, {"sha256": "new", "action_stats": other})):
        append(lake, "episodes", [episode_row(3, revision=revision, **changes)], once=str(revision))
        digests.append(build_manifest(lake, recipe).header.digest)
    assert len(set(digests)) == len(digests)


def test_pinned_versions_give_the_manifest_of_then(lake: Lake) -> None:
    pinned = table_versions(lake)
    first = build_manifest(lake, a_recipe())
    append(lake, "episodes", [episode_row(99)], once="more")
    second = build_manifest(lake, a_recipe())
    assert second.key != first.key
    again = build_manifest(lake, a_recipe(), pinned)
    assert again.key == first.key
    assert latest_key(lake, "demo") == second.key, "a look back is not the latest"
    assert first.header.table_versions == pinned


def test_the_latest_manifest_is_the_one_built_last_not_the_newest_file(lake: Lake) -> None:
    assert latest_manifest(lake, "demo") is None
    first = build_manifest(lake, a_recipe("success"))
    second = build_manifest(lake, a_recipe("NOT success"))
    assert latest_key(lake, "demo") == second.key
    build_manifest(lake, a_recipe("success"))
    latest = latest_manifest(lake, "demo")
    assert latest is not None
    assert latest.key == first.key


def test_normalization_is_of_the_train_rows_alone(lake: Lake) -> None:
    manifest = build_manifest(lake, a_recipe())
    train = [int(name[1:]) for name in manifest.rows("train")["episode_id"].to_pylist()]
    for series, columns in (("state", 4), ("action", 2)):
        values = np.concatenate([series_of(i, 50 + i % 7, columns) for i in train])
        found = manifest.header.normalization[series]
        np.testing.assert_allclose(found["mean"], values.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(found["std"], values.std(axis=0), rtol=1e-12)
        assert found["min"] == values.min(axis=0).tolist()
        assert found["max"] == values.max(axis=0).tolist()


def test_the_split_stays_as_episodes_come(lake: Lake) -> None:
    before = build_manifest(lake, a_recipe()).table()
    append(lake, "episodes", [episode_row(i) for i in range(40, 300)], once="more")
    after = build_manifest(lake, a_recipe())
    splits = dict(zip(*(after.table()[name].to_pylist() for name in ("episode_id", "split")), strict=True))
    assert all(splits[row["episode_id"]] == row["split"] for row in before.to_pylist())
    assert 0.13 < after.header.rows_by_split["validation"] / 300 < 0.27


@pytest.mark.parametrize("share", [0.001, 0.5, 0.999])
@pytest.mark.parametrize("episodes", [2, 3])
def test_small_sets_have_an_episode_on_either_side(tmp_path: Path, share: float, episodes: int) -> None:
    for first in range(0, 40, 10):
        lake = a_lake(tmp_path / str(first), [episode_row(first + i) for i in range(episodes)])
        header = build_manifest(lake, a_recipe(validation_share=share)).header
        assert min(header.rows_by_split.values()) >= 1
        assert header.rows == episodes


def test_one_episode_or_no_share_is_all_for_training(lake: Lake, tmp_path: Path) -> None:
    assert build_manifest(lake, a_recipe(validation_share=0)).header.rows_by_split == {"train": 40, "validation": 0}
    one = a_lake(tmp_path / "one", [episode_row(0)])
    assert build_manifest(one, a_recipe(validation_share=0.999)).header.rows_by_split == {"train": 1, "validation": 0}


def test_the_file_is_mapped_not_read(lake: Lake) -> None:
    manifest = build_manifest(lake, a_recipe())
    before = pa.total_allocated_bytes()
    table = manifest.rows("train")
    assert table.num_rows > 0
    assert pa.total_allocated_bytes() - before < 1000, "a compressed file would be copied"
    assert table.schema.field("uri").type == pa.string()


def test_batches_are_of_one_size_and_no_part_of_the_digest(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = []
    for size in (16, 7, 131_072):
        monkeypatch.setattr(write, "BATCH_ROWS", size)
        manifest = build_manifest(lake, a_recipe(name=f"by{size}"))
        with pa.memory_map(str(manifest.path)) as source:
            reader = pa.ipc.open_file(source)
            rows = [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]
        assert rows[:-1] == [size] * (40 // size)
        assert sum(rows) == 40
        digests.append(manifest.header.digest)
    assert len(set(digests)) == 1


REASONS = [
    ("empty", a_recipe("robot = 'none'"), "40 of sawyer doing 'press'"),
    ("empty", a_recipe(windows=Windows(actions=99)), "shorter than one window, 100 frames"),
    ("bad_filter", a_recipe("true", "colour = 'red'"), "component part1.*colour"),
    ("bad_filter", a_recipe("success AND"), "component part0"),
    ("bad_filter", a_recipe("episode_id::INTEGER > 3"), "component part0 fails on the episodes"),
    ("missing_camera", a_recipe(observation=Observation(cameras=("front", "side"))), "side.*e00000 has front, wrist"),
    ("series", a_recipe(observation=Observation(cameras=("front",), state="joints")), "joints"),
]


@pytest.mark.parametrize(("reason", "recipe", "message"), REASONS, ids=[f"{r[0]}-{i}" for i, r in enumerate(REASONS)])
def test_what_cannot_be_built_says_why(lake: Lake, reason: str, recipe: Recipe, message: str) -> None:
    with pytest.raises(ManifestError, match=f"(?s){message}") as caught:
        build_manifest(lake, recipe)
    assert caught.value.reason == reason
    assert manifest_keys(lake) == []
    assert latest_key(lake, "demo") is None


def test_an_empty_lake_has_no_episode_yet(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="no episodes yet"):
        build_manifest(make_lake(tmp_path), a_recipe())


NOT_A_NUMBER = {"count": 5, "mean": [float("nan"), 0.0], "m2": [0.0, 0.0], "min": [0.0, 0.0], "max": [0.0, 0.0]}


@pytest.mark.parametrize(
    ("reason", "changes", "message"),
    [
        ("dimensions", {"robot": "g1", "state_dim": 26}, "40 of sawyer with 4"),
        ("dimensions", {"action_dim": None}, "1 of sawyer with none"),
        ("statistics", {"action_stats": None}, "e00077.*2 action values"),
        ("statistics", {"action_stats": NOT_A_NUMBER}, "e00077.*2 action values"),
        ("missing_camera", {"cameras": None}, "e00077 has no camera"),
    ],
)
def test_episodes_that_do_not_go_together_are_named(lake: Lake, reason: str, changes: Row, message: str) -> None:
    append(lake, "episodes", [episode_row(77, **changes)], once="odd")
    with pytest.raises(ManifestError, match=message) as caught:
        build_manifest(lake, a_recipe(validation_share=0))
    assert caught.value.reason == reason


def test_a_damaged_manifest_is_refused(lake: Lake) -> None:
    manifest = build_manifest(lake, a_recipe())
    content = manifest.path.read_bytes()
    manifest.path.write_bytes(content[:-1])
    with pytest.raises(ManifestError, match="build the manifest again"):
        load_manifest(lake, manifest.key)
    manifest.path.unlink()
    with pytest.raises(ManifestError, match="gone"):
        load_manifest(lake, manifest.key)
    with pytest.raises(ManifestError, match="no manifest"):
        load_manifest(lake, "manifests/demo/none.arrow")


def test_a_build_that_died_between_its_two_files_is_finished_by_the_next(lake: Lake) -> None:
    manifest = build_manifest(lake, a_recipe())
    header = manifest.path.with_suffix(".json")
    stored = json.loads(header.read_text())
    header.unlink()
    again = build_manifest(lake, a_recipe())
    assert again.header.digest == stored["digest"]
    assert sorted(path.name for path in header.parent.iterdir()) == sorted([header.name, manifest.path.name, "latest"])


def test_an_older_revision_that_comes_late_wins_nothing(lake: Lake) -> None:
    append(lake, "episodes", [episode_row(5, revision=0, uri="episodes/old", ingested_at=INGESTED_AT)], once="late")
    assert "episodes/old" not in build_manifest(lake, a_recipe()).table()["uri"].to_pylist()


@pytest.mark.parametrize("condition", ["true", "idle_share IS NULL"], ids=["episodes", "curated"])
def test_superseded_episodes_are_in_no_manifest_but_those_of_before(lake: Lake, condition: str) -> None:
    before = build_manifest(lake, a_recipe(condition))
    versions = table_versions(lake)
    superseded = [episode_row(i, revision=2, superseded_by="later") for i in range(3)]
    append(lake, "episodes", [*superseded, episode_row(40)], once="superseded")
    ids = build_manifest(lake, a_recipe(condition)).table()["episode_id"].to_pylist()
    assert sorted(ids) == [f"e{i:05d}" for i in range(3, 41)]
    assert manifest_digest(lake, a_recipe(condition), versions) == before.header.digest

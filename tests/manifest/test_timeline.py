"""Windows are counted on the timeline that they are read on, whichever cameras a recipe observes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from megahour.episode.reader import open_episode
from megahour.episode.writer import write_episode
from megahour.ingest.transcode import content_columns
from megahour.manifest.build import build_manifest
from megahour.manifest.load import ManifestError
from megahour.manifest.recipe import Component, Observation, Recipe, Windows
from megahour.manifest.timeline import Timeline, TimelineError, timeline_of
from megahour.storage import Lake
from megahour.warehouse.tables import append
from tests.lake import Row, episode_row, make_lake
from tests.samples import FACTS, camera, pictures, raw_episode

FRAMES = {"front": 60, "overview": 12, "wrist": 30}
KEY = "episodes/2026-01-02/e00000.mcap"
UNKNOWN: Row = {"camera_frames": None}


def a_recipe(*cameras: str, **windows: int) -> Recipe:
    return Recipe(
        name="demo",
        mixture=(Component(name="all", filter="true"),),
        validation_share=0,
        observation=Observation(cameras=cameras),
        windows=Windows(future_frames=(2,), actions=2, **windows),
    )


def a_lake(folder: Path, **changes: object) -> Lake:
    """A lake with one episode of three cameras, each at a rate of its own, as ingest enters it but for `changes`."""
    lake = make_lake(folder)
    cameras = tuple(camera(name, pictures(count, 16, 16), rate_hz=count / 2) for name, count in FRAMES.items())
    episode = replace(raw_episode(60), cameras=cameras)
    path = Path(lake.url(KEY))
    path.parent.mkdir(parents=True)
    written = write_episode(path, episode, FACTS)
    row = {**episode_row(0), **content_columns(episode, written.frames), "size_bytes": written.size_bytes, **changes}
    append(lake, "episodes", [row], once="row")
    return lake


@pytest.mark.parametrize("stride", [1, 4])
@pytest.mark.parametrize(
    ("cameras", "slowest"),
    [
        (("front",), "front"),
        (("wrist",), "wrist"),
        (("front", "wrist"), "wrist"),
        (("wrist", "overview", "front"), "overview"),
        ((), "overview"),
    ],
)
def test_windows_are_counted_over_the_slowest_camera_observed(
    tmp_path: Path, cameras: tuple[str, ...], slowest: str, stride: int
) -> None:
    lake = a_lake(tmp_path)
    manifest = build_manifest(lake, a_recipe(*cameras, stride=stride))
    (row,) = manifest.table().to_pylist()
    assert (row["end"], row["windows"]) == (FRAMES[slowest], len(range(0, FRAMES[slowest] - 2, stride)))
    timeline = timeline_of(manifest.rows("train"))
    assert timeline == Timeline(cameras, stride)
    reader = open_episode(lake, row["uri"])
    assert timeline.times(reader, row["end"]).tolist() == reader.cameras[slowest].times_ns.tolist()


def test_a_camera_that_is_not_observed_makes_no_episode_too_short(tmp_path: Path) -> None:
    lake = a_lake(tmp_path)
    far = Windows(future_frames=(20,), actions=2)
    assert build_manifest(lake, a_recipe("front").model_copy(update={"windows": far})).header.too_short == 0
    with pytest.raises(ManifestError, match="shorter than one window"):
        build_manifest(lake, a_recipe("overview").model_copy(update={"windows": far}))


def test_rows_that_do_not_say_each_cameras_pictures_are_used_as_far_as_they_are_right(tmp_path: Path) -> None:
    lake = a_lake(tmp_path, **UNKNOWN)
    reader = open_episode(lake, KEY)
    every = build_manifest(lake, a_recipe("front", "overview", "wrist")).table()
    assert len(timeline_of(every).times(reader, every["end"][0].as_py())) == 12
    some = build_manifest(lake, a_recipe("front")).table()
    with pytest.raises(TimelineError, match=r"over 12 frames, and front.* has 60\. .*camera_frames IS NOT") as told:
        timeline_of(some).times(reader, some["end"][0].as_py())
    assert told.value.reason == "frames"


def test_a_digest_is_what_it_was_where_the_counts_are(tmp_path: Path) -> None:
    counted = [episode_row(i, camera_frames=[50 + i % 7] * 2) for i in range(8)]
    digests = []
    for name, rows in (("new", counted), ("old", [{**row, **UNKNOWN} for row in counted])):
        lake = make_lake(tmp_path / name)
        append(lake, "episodes", rows, once="rows")
        digests.append(build_manifest(lake, a_recipe("front")).header.digest)
    assert digests[0] == digests[1]


def test_without_cameras_a_timeline_is_that_of_the_slowest_series(tmp_path: Path) -> None:
    reader = open_episode(a_lake(tmp_path), KEY)
    assert Timeline((), 1, ("state",)).times(reader).tolist() == reader.series("state").times_ns.tolist()
    with pytest.raises(TimelineError, match=r"side, and the episode .* has front, overview, wrist"):
        Timeline(("front", "side")).times(reader)


def test_rows_keep_what_else_their_schema_says(tmp_path: Path) -> None:
    rows = Timeline(("front",), 3).put_on(pa.table({"start": [0]}).replace_schema_metadata({"mine": "stays"}))
    assert timeline_of(rows.slice(0, 1)) == Timeline(("front",), 3)
    assert rows.schema.metadata[b"mine"] == b"stays"
    with pytest.raises(ValueError, match="do not say which timeline"):
        timeline_of(pa.table({"start": [0]}))

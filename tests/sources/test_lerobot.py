"""What may be wrong with a LeRobot dataset is said in a sentence, and nothing is guessed."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from megahour.episode.model import RawEpisode
from megahour.sources import SourceError, find_recordings, read_recording
from megahour.storage import list_files, open_lake, read_bytes
from tests.samples import copy_g1, drop_last_frame

CAMERA = "observation.images.cam_high"


def read_first(root: Path) -> RawEpisode:
    lake = open_lake(root.as_uri())
    recording = find_recordings(list_files(lake, "landing"), lambda key: read_bytes(lake, key))[0]
    (episode,) = read_recording(recording, root.joinpath)
    return episode


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return copy_g1(tmp_path / "landing" / "g1", [1])


def video(dataset: Path) -> Path:
    return dataset / f"videos/chunk-000/{CAMERA}/episode_000001.mp4"


def parquet(dataset: Path) -> Path:
    return dataset / "data/chunk-000/episode_000001.parquet"


def change_info(dataset: Path, change: Callable[[dict[str, Any]], None]) -> None:
    info = json.loads((dataset / "meta/info.json").read_text())
    change(info)
    (dataset / "meta/info.json").write_text(json.dumps(info))


def change_table(dataset: Path, name: str, values: Any) -> None:
    table = pq.read_table(parquet(dataset))
    column = values if isinstance(values, pa.Array) else pa.array(values, table.schema.field(name).type)
    place = table.column_names.index(name)
    pq.write_table(table.set_column(place, name, column), parquet(dataset))


def refused(root: Path, reason: str, words: str) -> SourceError:
    with pytest.raises(SourceError, match=words) as caught:
        for camera in read_first(root).cameras:
            list(camera.frames())
    assert caught.value.reason == reason
    assert "/tmp" not in str(caught.value), "a message names the file by its key"
    return caught.value


def test_an_episode_without_its_video(tmp_path: Path, dataset: Path) -> None:
    video(dataset).unlink()
    error = refused(tmp_path, "missing_video", r"no video of the camera 'observation\.images\.cam_high'.*not landed")
    again = pickle.loads(pickle.dumps(error))
    assert (again.reason, str(again)) == (error.reason, str(error)), "it crosses a process pool"


def test_an_episode_without_its_rows(tmp_path: Path, dataset: Path) -> None:
    parquet(dataset).unlink()
    refused(tmp_path, "missing_file", "no data")


def test_a_dataset_that_lists_no_episode(tmp_path: Path, dataset: Path) -> None:
    (dataset / "meta/episodes.jsonl").write_text("\n")
    refused(tmp_path, "empty", "lists no episode")


def test_a_video_one_frame_short(tmp_path: Path, dataset: Path) -> None:
    drop_last_frame(video(dataset))
    refused(tmp_path, "frame_count", "has 220 frames, and its episode has 221 rows")


def test_a_table_one_row_short(tmp_path: Path, dataset: Path) -> None:
    table = pq.read_table(parquet(dataset))
    pq.write_table(table.slice(0, 220), parquet(dataset))
    refused(tmp_path, "frame_count", r"has 220 rows, and meta/episodes\.jsonl says 221")


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_files_cut_short(tmp_path: Path, dataset: Path, share: float) -> None:
    for path, reason in ((video(dataset), "truncated"), (parquet(dataset), "truncated")):
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * share)])
        refused(tmp_path, reason, "cut short")
        path.write_bytes(data)


def test_damaged_video_is_refused_not_repaired(tmp_path: Path, dataset: Path) -> None:
    data = bytearray(video(dataset).read_bytes())
    start = data.index(b"mdat") + 100_000
    data[start : start + 60_000] = bytes(60_000)
    video(dataset).write_bytes(bytes(data))
    with pytest.raises(SourceError) as caught:
        for camera in read_first(tmp_path).cameras:
            list(camera.frames())
    assert caught.value.reason == "damaged_frame"


def test_dropped_frames_are_seen_in_the_times(tmp_path: Path, dataset: Path) -> None:
    seconds = np.arange(221) / 30 + (np.arange(221) > 100) * 0.2
    change_table(dataset, "timestamp", seconds.astype(np.float32))
    refused(tmp_path, "times", r"drift 0\.200 s apart")


def test_rows_must_follow_each_other(tmp_path: Path, dataset: Path) -> None:
    change_table(dataset, "frame_index", [*range(10), *range(11, 222)])
    refused(tmp_path, "times", "frame_index is 11 in row 10")


def test_timestamps_must_increase(tmp_path: Path, dataset: Path) -> None:
    change_table(dataset, "timestamp", np.zeros(221, np.float32))
    refused(tmp_path, "times", "do not increase")


def test_promised_features_must_be_there(tmp_path: Path, dataset: Path) -> None:
    change_info(dataset, lambda info: info["features"].update(force={"dtype": "float32", "shape": [6], "names": None}))
    refused(tmp_path, "missing_feature", "promises 'force'")


def test_shapes_must_be_those_promised(tmp_path: Path, dataset: Path) -> None:
    change_info(dataset, lambda info: info["features"]["action"].update(shape=[7]))
    refused(tmp_path, "feature_mismatch", r"meta/info\.json says float32 \(7,\)")
    change_info(dataset, lambda info: info["features"]["action"].update(shape=[26]))
    change_info(dataset, lambda info: info["features"][CAMERA].update(shape=[240, 320, 3]))
    refused(tmp_path, "feature_mismatch", r"is 640x480, and meta/info\.json says \[240, 320, 3\]")


def test_values_must_be_there(tmp_path: Path, dataset: Path) -> None:
    rows = pq.read_table(parquet(dataset))["action"].to_pylist()
    rows[3] = None
    change_table(dataset, "action", pa.array(rows, pa.list_(pa.float32())))
    refused(tmp_path, "missing_feature", "rows without values")


def test_other_columns_become_series_or_messages(tmp_path: Path, dataset: Path) -> None:
    table = pq.read_table(parquet(dataset))
    table = table.append_column("observation.force", pa.array(np.arange(221.0)))
    table = table.append_column("next.done", pa.array([False] * 220 + [True]))
    table = table.append_column("next.success", pa.array([False] * 220 + [True]))
    pq.write_table(table, parquet(dataset))
    more = {
        "observation.force": {"dtype": "float64", "shape": [1], "names": ["n"]},
        "next.done": {"dtype": "bool", "shape": [1], "names": None},
    }
    change_info(dataset, lambda info: info["features"].update(more))
    episode = read_first(tmp_path)
    force = next(series for series in episode.series if series.name == "force")
    assert force.values.dtype == np.float64
    assert force.values[:, 0].tolist() == list(range(221))
    assert force.names == ("n",)
    assert episode.success is True
    assert [topic.name for topic in episode.extras] == ["next_done", "next_success"]
    messages = list(episode.extra_messages())
    assert len(messages) == 2 * 221
    assert [m.data for m in messages if m.topic == "next_done"] == [b'{"value":false}'] * 220 + [b'{"value":true}']
    assert [m.time_ns for m in messages if m.topic == "next_done"] == force.times_ns.tolist()
    assert [note.code for note in episode.notes] == ["undeclared"], "next.success is not in meta/info.json"


@pytest.mark.parametrize(
    "paths",
    [
        {"data_path": "../other/{episode_index}.parquet"},
        {"data_path": "data//{episode_index}.parquet"},
        {"data_path": "{episode_index:0999999999d}"},
        {"data_path": "{episode_index.__class__}"},
        {"video_path": "/etc/{video_key}"},
        {"video_path": "videos\\..\\{video_key}"},
        {"data_path": "\ud800/{episode_index}.parquet"},
        {"data_path": "x" * 201},
        {"data_path": "x/" * 500 + "{episode_index}.parquet"},
        {"video_path": "\n{video_key}"},
    ],
)
def test_paths_do_not_lead_out_of_the_dataset(tmp_path: Path, dataset: Path, paths: dict[str, str]) -> None:
    change_info(dataset, lambda info: info.update(paths))
    refused(tmp_path, "unreadable", "must be a plain path inside the dataset")


def test_a_camera_with_a_name_that_leads_out_is_refused(tmp_path: Path, dataset: Path) -> None:
    change_info(dataset, lambda info: info["features"].update({"../../cam": info["features"][CAMERA]}))
    refused(tmp_path, "unreadable", "must be a plain path inside the dataset")


def test_what_else_the_metadata_says_of_an_episode_is_kept(tmp_path: Path, dataset: Path) -> None:
    line = json.loads((dataset / "meta/episodes.jsonl").read_text())
    (dataset / "meta/episodes.jsonl").write_text(json.dumps(line | {"operator": "Ada", "success": False}))
    episode = read_first(tmp_path)
    assert (episode.attributes["operator"], episode.success) == ("Ada", False)


NOBODY_SAYS = [None] * 221


@pytest.mark.parametrize(
    ("rows", "said", "success"),
    [
        (pa.array(NOBODY_SAYS, pa.bool_()), True, True),
        (pa.array(NOBODY_SAYS, pa.bool_()), None, None),
        (pa.array([[None]] * 221, pa.list_(pa.bool_())), False, False),
        (pa.array([float("nan")] * 221), True, True),
        (pa.array(["no"] * 221), True, True),
        (pa.array([*NOBODY_SAYS[1:], False]), True, False),
        (pa.array([*NOBODY_SAYS[2:], True, False]), False, True),
        (pa.array([0] * 220 + [1]), None, True),
    ],
)
def test_rows_that_say_nothing_of_success_leave_it_to_the_metadata(
    tmp_path: Path, dataset: Path, rows: Any, said: bool | None, success: bool | None
) -> None:
    pq.write_table(pq.read_table(parquet(dataset)).append_column("next.success", rows), parquet(dataset))
    line = json.loads((dataset / "meta/episodes.jsonl").read_text())
    (dataset / "meta/episodes.jsonl").write_text(json.dumps(line | {"success": said}))
    assert read_first(tmp_path).success is success


def test_several_tasks_are_told_apart_by_the_rows(tmp_path: Path, dataset: Path) -> None:
    line = json.loads((dataset / "meta/episodes.jsonl").read_text())
    (dataset / "meta/episodes.jsonl").write_text(json.dumps(line | {"tasks": ["reach", "grasp"]}))
    texts = [{"task_index": 0, "task": "reach"}, {"task_index": 1, "task": "grasp"}]
    (dataset / "meta/tasks.jsonl").write_text("\n".join(map(json.dumps, texts)))
    change_table(dataset, "task_index", [0] * 100 + [1] * 121)
    episode = read_first(tmp_path)
    assert episode.task == "grasp"
    assert [topic.name for topic in episode.extras] == ["task"]
    assert [(m.time_ns, m.data) for m in episode.extra_messages()] == [
        (0, b'{"value":"reach"}'),
        (int(episode.series[0].times_ns[100]), b'{"value":"grasp"}'),
    ]


def test_times_are_the_exact_grid(tmp_path: Path, dataset: Path) -> None:
    episode = read_first(tmp_path)
    assert episode.series[0].times_ns[:4].tolist() == [0, 33333333, 66666667, 100000000]
    assert (episode.cameras[0].times_ns == episode.series[0].times_ns).all()

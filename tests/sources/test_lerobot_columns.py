"""Whatever columns a LeRobot dataset has, each becomes a series, a camera, a topic or an attribute, or is noted."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from megahour.episode.model import RawEpisode
from megahour.sources import SourceError
from megahour.sources.lerobot.columns import names_of
from megahour.sources.lerobot.rows import batches
from tests.lerobot_v30 import (
    Sharing,
    Take,
    change_column,
    data_path,
    found,
    read_all,
    rows_of,
    take,
    write_table,
    write_v30,
)
from tests.samples import pictures, psnr_db

FRAMES = 6
FRONT = "observation.images.front"


def episode_with(root: Path, features: dict[str, Any] | None = None, **columns: Any) -> RawEpisode:
    """The second of two episodes that share their files, with these columns; underscores in names are dots."""
    named = {name.replace("__", "."): column for name, column in columns.items()}
    (root / "takes").mkdir(exist_ok=True)
    pair = [take(root / "takes", FRAMES, seed, "reach", (), **named) for seed in (1, 2)]
    write_v30(root / "landing/ds", pair, features=features)
    return read_all(root)[1]


def values(episode: RawEpisode, topic: str) -> list[Any]:
    return [json.loads(message.data)["value"] for message in episode.extra_messages() if message.topic == topic]


def notes(episode: RawEpisode) -> dict[str, str]:
    return {note.code: note.text for note in episode.notes}


def refused(root: Path, reason: str, words: str, features: dict[str, Any] | None = None, **columns: Any) -> None:
    with pytest.raises(SourceError, match=words) as caught:
        episode = episode_with(root, features, **columns)
        list(episode.extra_messages())
        for camera in episode.cameras:
            list(camera.frames())
    assert caught.value.reason == reason
    assert "/tmp" not in str(caught.value)


def test_numbers_that_are_whole_truths_and_texts_are_messages(tmp_path: Path) -> None:
    episode = episode_with(
        tmp_path,
        next__done=pa.array([False] * 5 + [True]),
        observation__mode=rows_of(np.arange(12, dtype=np.int64).reshape(6, 2)),
        note=pa.array(["a", None, "c", "d", "e", "ü"]),
        counted=pa.array([1, 2, None, 4, 5, 6]),
        event=pa.array([{"at": 1.5, "who": "x"}] * 6),
    )
    assert [series.name for series in episode.series] == ["state", "action"]
    assert values(episode, "next_done") == [False] * 5 + [True]
    assert values(episode, "mode") == np.arange(12).reshape(6, 2).tolist()
    assert values(episode, "note") == ["a", None, "c", "d", "e", "ü"]
    assert values(episode, "counted") == [1, 2, None, 4, 5, 6]
    assert values(episode, "event") == [{"at": 1.5, "who": "x"}] * 6
    times = [message.time_ns for message in episode.extra_messages()]
    assert times == sorted(times)
    assert notes(episode) == {}


def test_a_text_that_stays_the_same_is_an_attribute(tmp_path: Path) -> None:
    episode = episode_with(tmp_path, language_instruction=pa.array(["slowly"] * 6))
    assert episode.attributes["language_instruction"] == "slowly"


def test_single_floats_are_series_and_several_dimensions_are_flattened(tmp_path: Path) -> None:
    poses = np.random.default_rng(0).normal(size=(6, 2, 3)).astype(np.float32)
    episode = episode_with(tmp_path, next__reward=pa.array(np.arange(6.0)), observation__poses=rows_of(poses))
    reward, found_poses = episode.series[2:]
    assert (reward.name, reward.names, reward.values.dtype) == ("next_reward", ("next_reward_0",), np.float64)
    assert reward.values[:, 0].tolist() == list(range(6))
    assert found_poses.values.tobytes() == poses.tobytes()
    assert found_poses.names == ("poses_0_0", "poses_0_1", "poses_0_2", "poses_1_0", "poses_1_1", "poses_1_2")
    assert "(2, 3) is kept as 6 columns" in notes(episode)["flattened"]


def test_more_floats_than_a_series_has_go_along_as_messages(tmp_path: Path) -> None:
    embedding = np.random.default_rng(0).normal(size=(6, 2000)).astype(np.float32)
    episode = episode_with(tmp_path, features_of_it=rows_of(embedding))
    assert [topic.name for topic in episode.extras] == ["features_of_it"]
    assert len(list(episode.extra_messages())) == 6
    assert "too many values for a series" in notes(episode)["as_messages"]


def test_rows_that_change_in_length_go_along_as_messages(tmp_path: Path) -> None:
    ragged = pa.array([[1.0] * n for n in range(6)], pa.list_(pa.float32()))
    dataset = tmp_path / "landing/ds"
    episode_with(tmp_path)
    change_column(dataset / data_path(0), "points", pa.concat_arrays([ragged, ragged]))
    episode = read_all(tmp_path)[1]
    assert values(episode, "points") == [[1.0] * n for n in range(6)]
    assert set(notes(episode)) == {"as_messages", "undeclared"}


def test_discrete_actions_are_a_series(tmp_path: Path) -> None:
    episode = episode_with(tmp_path, action=pa.array(np.arange(6)))
    assert [series.name for series in episode.series] == ["state", "action"]
    assert episode.series[1].values[:, 0].tolist() == list(range(6))
    assert "action is int64" in notes(episode)["converted"]


def test_values_that_are_not_finite_stay_and_are_noted(tmp_path: Path) -> None:
    force = np.ones((6, 2), np.float32)
    force[2, 1], force[3, 0] = np.nan, np.inf
    episode = episode_with(tmp_path, force=rows_of(force))
    assert episode.series[2].values.tobytes() == force.tobytes()
    assert notes(episode) == {"nan": "force has 2 values that are not finite; they are kept"}


@pytest.mark.parametrize(
    ("promised", "stored"),
    [
        ({"dtype": "float32", "shape": [3]}, rows_of(np.zeros((6, 2), np.float32))),
        ({"dtype": "float32", "shape": [2]}, rows_of(np.zeros((6, 2), np.int64))),
        ({"dtype": "int64", "shape": [2]}, rows_of(np.zeros((6, 2), np.float32))),
        ({"dtype": "int64", "shape": [2]}, rows_of(np.zeros((6, 3), np.int64))),
        ({"dtype": "float32", "shape": [1]}, pa.array(["one"] * 6)),
        ({"dtype": "image", "shape": [2]}, rows_of(np.zeros((6, 2), np.float32))),
    ],
)
def test_columns_that_are_not_what_was_promised_are_refused(
    tmp_path: Path, promised: dict[str, Any], stored: pa.Array
) -> None:
    refused(tmp_path, "feature_mismatch", "'odd' is .* in the Parquet file", {"odd": promised}, odd=stored)


def test_columns_that_are_promised_and_lacking_are_refused(tmp_path: Path) -> None:
    for dtype in ("int64", "float32", "image"):
        refused(tmp_path, "missing_feature", "promises 'odd'", {"odd": {"dtype": dtype, "shape": [1]}})


def test_floats_that_are_missing_are_refused(tmp_path: Path) -> None:
    refused(tmp_path, "missing_feature", "rows without values", odd=pa.array([1.0, None, 3.0, 4.0, 5.0, 6.0]))


def test_texts_that_are_none_are_refused(tmp_path: Path) -> None:
    bad = pa.StringArray.from_buffers(
        6, pa.array([0, 1, 2, 3, 4, 5, 6], pa.int32()).buffers()[1], pa.py_buffer(b"a\xffcdef")
    )
    refused(tmp_path, "unreadable", "text in row 1 that is no UTF-8", odd=bad)


@pytest.mark.parametrize(
    ("names", "shape", "want"),
    [
        (["x", "y"], (2,), ("x", "y")),
        ([["x", "y"]], (2,), ("x", "y")),
        ({"motors": ["x", "y"]}, (2,), ("x", "y")),
        ({"left": {"a": ["x"]}, "right": "y"}, (2,), ("x", "y")),
        (None, (2,), ("t_0", "t_1")),
        (["x", "x"], (2,), ("t_0", "t_1")),
        (["x", "y", "z"], (2,), ("t_0", "t_1")),
        (["a", "b", "c", "d"], (2, 2), ("a", "b", "c", "d")),
        (["rows", "columns"], (2, 2), ("t_0_0", "t_0_1", "t_1_0", "t_1_1")),
    ],
)
def test_names_come_in_many_forms(names: Any, shape: tuple[int, ...], want: tuple[str, ...]) -> None:
    assert names_of(names, shape, "t") == want


def test_columns_that_would_be_called_the_same_are_told_apart(tmp_path: Path) -> None:
    episode = episode_with(tmp_path, state=pa.array(np.arange(6.0)))
    assert sorted(series.name for series in episode.series) == ["action", "state", "state_2"]


def test_the_task_is_found_however_its_table_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "landing/ds"
    one = take(tmp_path, FRAMES, task="reach", cameras=())
    for texts in (
        {"task_index": [0], "__index_level_0__": ["reach"]},
        {"task": ["reach"], "task_index": [0]},
        {"words": ["reach"], "task_index": [0]},
        {"task": ["reach"]},
    ):
        write_v30(folder, [one], Sharing())
        write_table(folder / "meta/tasks.parquet", pa.table(texts))
        listing = folder / "meta/episodes/chunk-000/file-000.parquet"
        change_column(listing, "tasks", None)
        assert read_all(tmp_path)[0].task == "reach", texts


def test_a_task_that_nothing_says_is_taken_from_the_sources_options(tmp_path: Path) -> None:
    folder = write_v30(tmp_path / "landing/lab/ds", [take(tmp_path, FRAMES, cameras=())], info={"robot_type": None})
    (folder / "meta/tasks.parquet").unlink()
    change_column(folder / "meta/episodes/chunk-000/file-000.parquet", "tasks", None)
    (episode,) = read_all(tmp_path)
    assert (episode.task, episode.robot, [note.code for note in episode.notes]) == ("", "unknown", ["no_task"])
    (tmp_path / "landing/lab/source.yaml").write_text("task: stack\nrobot: so101\n")
    (episode,) = read_all(tmp_path)
    assert (episode.task, episode.robot) == ("stack", "so101")


def test_a_task_that_changes_is_the_most_common_one_and_its_changes(tmp_path: Path) -> None:
    one = take(tmp_path, FRAMES, cameras=())
    write_v30(tmp_path / "landing/ds", [Take(one.columns, {}, ["reach", "reach", "grasp", "grasp", "grasp", "reach"])])
    (episode,) = read_all(tmp_path)
    assert episode.task == "reach", "of equals the first"
    assert values(episode, "task") == ["reach", "grasp", "reach"]
    assert [m.time_ns for m in episode.extra_messages()] == episode.series[0].times_ns[[0, 2, 5]].tolist()


def test_words_that_disagree_about_the_task_are_noted(tmp_path: Path) -> None:
    folder = write_v30(tmp_path / "landing/ds", [take(tmp_path, FRAMES, task="reach", cameras=())])
    write_table(folder / "meta/tasks.parquet", pa.table({"task_index": [0], "task": ["grasp"]}))
    (episode,) = read_all(tmp_path)
    assert episode.task == "reach"
    assert "says 'reach', and the rows are of 'grasp'" in notes(episode)["task_disagrees"]


def test_subtasks_are_messages_where_they_change(tmp_path: Path) -> None:
    episode_with(tmp_path, subtask_index=pa.array([0, 0, 1, 1, 1, 0]))
    assert values(read_all(tmp_path)[1], "subtask_index") == [0, 0, 1, 1, 1, 0], "numbers without a table"
    texts = pa.table({"subtask_index": [0, 1], "subtask": ["approach", "close"]})
    write_table(tmp_path / "landing/ds/meta/subtasks.parquet", texts)
    episode = read_all(tmp_path)[1]
    assert values(episode, "subtask") == ["approach", "close", "approach"]
    assert [topic.name for topic in episode.extras] == ["subtask"]


def test_rows_of_another_rate_keep_their_times(tmp_path: Path) -> None:
    episode_with(tmp_path)
    seconds = np.tile(np.arange(6) / 15, 2).astype(np.float32)
    change_column(tmp_path / "landing/ds" / data_path(0), "timestamp", pa.array(seconds))
    episode = read_all(tmp_path)[1]
    assert episode.rate_hz == pytest.approx(15)
    assert episode.series[0].times_ns[:2].tolist() == [0, 66666670]
    assert "says 30 fps, and the rows come at 15 Hz" in notes(episode)["rate_disagrees"]


def test_hours_stay_on_the_grid(tmp_path: Path) -> None:
    from megahour.sources.lerobot.columns import times_of

    frames = np.arange(3 * 3600 * 30)
    table = pa.table({"timestamp": (frames / 30).astype(np.float32), "frame_index": frames})
    assert np.array_equal(times_of(table, 30.0, "k"), np.round(frames * (1e9 / 30)).astype(np.int64))


def embedded(video: Any, kind: str = "PNG", path: bool = True, **options: Any) -> pa.Array:
    """Pictures as LeRobot embeds them."""
    coded = []
    for i, picture in enumerate(video):
        out = io.BytesIO()
        Image.fromarray(picture).save(out, kind, **options)
        coded.append({"bytes": out.getvalue()} | ({"path": f"frame-{i:06d}.png"} if path else {}))
    return pa.array(coded)


def image(height: int, width: int, channels: int = 3) -> dict[str, Any]:
    return {"dtype": "image", "shape": [height, width, channels], "names": ["height", "width", "channels"]}


def test_embedded_png_pictures_are_a_camera(tmp_path: Path) -> None:
    video = pictures(FRAMES, 32, 48)
    episode = episode_with(tmp_path, {FRONT: image(32, 48)}, observation__images__front=embedded(video))
    (camera,) = episode.cameras
    assert (camera.name, camera.width, camera.height, camera.coded) == ("front", 48, 32, None)
    assert camera.times_ns.tolist() == episode.series[0].times_ns.tolist()
    assert np.array_equal(np.stack(list(camera.frames())), video)
    assert np.array_equal(np.stack(list(camera.frames())), video), "again"
    assert notes(episode) == {}


def test_embedded_jpeg_pictures_are_handed_over_coded(tmp_path: Path) -> None:
    video = pictures(FRAMES, 32, 48)
    column = embedded(video, "JPEG", quality=95)
    (camera,) = episode_with(tmp_path, {FRONT: image(32, 48)}, observation__images__front=column).cameras
    assert camera.coded is not None
    assert list(camera.coded.units()) == [one["bytes"] for one in column.to_pylist()]
    assert psnr_db(np.stack(list(camera.frames())), video) > 30
    mixed = pa.array([*column.to_pylist()[:3], *embedded(video).to_pylist()[3:]])
    change_column(tmp_path / "landing/ds" / data_path(0), FRONT, pa.concat_arrays([mixed, mixed]))
    (camera,) = read_all(tmp_path)[1].cameras
    assert camera.coded is None
    assert len(list(camera.frames())) == FRAMES


def test_pictures_of_one_channel_and_sixteen_bits_are_a_topic(tmp_path: Path) -> None:
    from foxglove_schemas_protobuf.RawImage_pb2 import RawImage

    depth = np.random.default_rng(0).integers(0, 65535, (FRAMES, 8, 10)).astype(np.uint16)
    name = "observation.images.depth"
    episode = episode_with(tmp_path, {name: image(8, 10, 1)}, observation__images__depth=embedded(depth))
    assert (episode.cameras, [topic.name for topic in episode.extras]) == ((), ["depth"])
    first = RawImage.FromString(next(episode.extra_messages()).data)
    assert (first.encoding, np.frombuffer(first.data, "<u2").tolist()) == ("16UC1", depth[0].ravel().tolist())


def test_pictures_are_streamed_from_their_own_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from megahour.sources.lerobot import columns

    sizes: list[int] = []

    def counted(*arguments: Any) -> Iterator[pa.RecordBatch]:
        for batch in batches(*arguments):
            sizes.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(columns, "PICTURE_ROWS", 2)
    monkeypatch.setattr(columns, "batches", counted)
    video = pictures(FRAMES, 16, 16)
    column = embedded(video, path=False)
    episode = episode_with(tmp_path, {FRONT: image(16, 16)}, observation__images__front=column)
    frames = episode.cameras[0].frames()
    assert np.array_equal(next(frames), video[0])
    assert np.array_equal(np.stack(list(frames)), video[1:])
    assert max(sizes) == 2


PATHS_ALONE = pa.array([{"bytes": None, "path": "images/a.png"}] * FRAMES)
DAMAGED = pa.array([{"bytes": b"\x89PNG\r\n\x1a\n" + bytes(99), "path": None}] * FRAMES)
SMALLER = embedded(pictures(FRAMES, 16, 20))
TWO_SIZES = pa.array([*embedded(pictures(3, 32, 48)).to_pylist(), *embedded(pictures(3, 16, 48)).to_pylist()])


@pytest.mark.parametrize(
    ("column", "reason", "words"),
    [
        (PATHS_ALONE, "missing_file", "the paths of files, as 'images/a"),
        (DAMAGED, "unreadable", "damaged JPEG or PNG"),
        (SMALLER, "feature_mismatch", r"is 20x16, and meta/info\.json says \[32, 48, 3\]"),
        (TWO_SIZES, "feature_mismatch", "picture 3 is 48x16"),
    ],
    ids=["paths", "damaged", "smaller", "two sizes"],
)
def test_pictures_that_are_none_are_refused(tmp_path: Path, column: pa.Array, reason: str, words: str) -> None:
    refused(tmp_path, reason, words, {FRONT: image(32, 48)}, observation__images__front=column)


def test_embedded_pictures_are_part_of_what_an_episode_is(tmp_path: Path) -> None:
    from megahour.sources import recording_id

    video = pictures(FRAMES, 16, 16)
    episode_with(tmp_path, {FRONT: image(16, 16)}, observation__images__front=embedded(video))
    before = [recording_id(one, tmp_path.joinpath) for one in found(tmp_path)]
    path = tmp_path / "landing/ds" / data_path(0)
    pq.write_table(pq.read_table(path), path, row_group_size=5)
    renamed = [{**one, "path": f"other-{i}.png"} for i, one in enumerate(embedded(video).to_pylist() * 2)]
    change_column(path, FRONT, pa.array(renamed))
    assert [recording_id(one, tmp_path.joinpath) for one in found(tmp_path)] == before
    video[3, 2, 2] ^= 1
    mixed = [*renamed[:FRAMES], *embedded(video).to_pylist()]
    change_column(path, FRONT, pa.array(mixed))
    after = [recording_id(one, tmp_path.joinpath) for one in found(tmp_path)]
    assert (after[0] == before[0], after[1] == before[1]) == (True, False)

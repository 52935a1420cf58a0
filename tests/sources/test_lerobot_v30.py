"""The episodes of a LeRobot v3.0 dataset are found and read one by one, though they share files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from megahour.episode.model import RawEpisode
from megahour.sources import Recording, SourceError, read_recording, recording_id
from megahour.sources.lerobot import rows
from megahour.storage import list_files, open_lake
from tests.lerobot_v30 import (
    CAMERA,
    LISTING,
    Sharing,
    Take,
    change_column,
    change_listing,
    concatenate,
    data_path,
    encode_mp4,
    found,
    read_all,
    rows_of,
    take,
    video_path,
    write_table,
    write_v30,
)
from tests.samples import pictures, psnr_db

LENGTHS = (12, 9, 15, 7, 11)


@pytest.fixture(scope="module")
def takes(tmp_path_factory: pytest.TempPathFactory) -> list[Take]:
    folder = tmp_path_factory.mktemp("takes")
    return [take(folder, frames, seed=i, task=f"task {i % 2}") for i, frames in enumerate(LENGTHS)]


@pytest.fixture
def dataset(tmp_path: Path, takes: list[Take]) -> Path:
    return write_v30(tmp_path / "landing/lab/ds", takes)


def frames_of(episode: RawEpisode, camera: int = 0) -> Any:
    return np.stack(list(episode.cameras[camera].frames()))


def read(root: Path, number: int) -> RawEpisode:
    (recording,) = [one for one in found(root) if one.uri.endswith(f"#episode={number}")]
    (episode,) = read_recording(recording, root.joinpath)
    return episode


def refused(root: Path, number: int, reason: str, words: str) -> None:
    with pytest.raises(SourceError, match=words) as caught:
        frames_of(read(root, number))
    assert caught.value.reason == reason, caught.value
    assert "/tmp" not in str(caught.value), "a message names the file by its key"


def edit_info(dataset: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    info = json.loads((dataset / "meta/info.json").read_text())
    change(info)
    (dataset / "meta/info.json").write_text(json.dumps(info))


def test_one_recording_per_episode_with_its_part_of_the_files(tmp_path: Path, dataset: Path) -> None:
    recordings = found(tmp_path)
    assert [one.uri for one in recordings] == [f"landing/lab/ds#episode={i}" for i in range(5)]
    assert {(one.format, one.source, one.missing) for one in recordings} == {("lerobot_v30", "lab", ())}
    names = [[file.key.removeprefix("landing/lab/ds/") for file in one.files] for one in recordings]
    assert names[0] == [data_path(0), video_path(0)]
    assert names[4] == [data_path(1), video_path(2)]
    beside = [file.key.removeprefix("landing/lab/ds/") for file in recordings[0].beside]
    assert beside == ["meta/info.json", "meta/tasks.parquet", LISTING]
    sizes = {file.key: file.size_bytes for one in recordings for file in one.files}
    assert sum(one.size_bytes for one in recordings) == pytest.approx(sum(sizes.values()), abs=len(recordings))
    data, video = ((dataset / name).stat().st_size for name in (data_path(0), video_path(0)))
    assert recordings[1].size_bytes == round(data * 9 / 36 + video * 9 / 21)


def test_each_episode_is_read_as_it_was_written(tmp_path: Path, dataset: Path, takes: list[Take]) -> None:
    for i, (episode, one) in enumerate(zip(read_all(tmp_path), takes, strict=True)):
        assert [series.name for series in episode.series] == ["state", "action"]
        state = np.array(one.columns["observation.state"].to_pylist(), np.float32)
        assert episode.series[0].values.tobytes() == state.tobytes()
        assert episode.series[0].times_ns.tolist() == episode.cameras[0].times_ns.tolist()
        assert episode.series[0].times_ns[:3].tolist() == [0, 33333333, 66666667]
        assert psnr_db(frames_of(episode), pictures(one.frames, 48, 64, seed=100 * i)) > 30
        assert (episode.task, episode.robot, episode.rate_hz) == (f"task {i % 2}", "sawyer", 30.0)
        assert episode.attributes == {"lerobot_version": "v3.0", "lerobot_episode": str(i)}
        assert episode.notes == ()


@pytest.mark.parametrize("bf", ["0", "2"])
@pytest.mark.parametrize(("codec", "lossless"), [("libx264", {"qp": "0"}), ("libsvtav1", {"crf": "40"}), ("mpeg4", {})])
def test_pictures_are_those_of_the_episodes_own_video(
    tmp_path: Path, codec: str, lossless: dict[str, Any], bf: str
) -> None:
    options = {**lossless, "bf": bf} if codec == "libx264" else lossless
    one, other = (take(tmp_path, frames, seed=frames, cameras=()) for frames in (13, 8))
    files = [
        encode_mp4(tmp_path / f"{n}.mp4", pictures(n, 64, 96, seed=n), codec, **options)
        for n in (one.frames, other.frames)
    ]
    pair = [Take(each.columns, {CAMERA: file}, each.tasks) for each, file in zip((one, other), files, strict=True)]
    write_v30(tmp_path / "landing/apart", pair, Sharing(videos=1))
    write_v30(tmp_path / "landing/together", pair)
    apart, together = read_all(tmp_path)[:2], read_all(tmp_path)[2:]
    for alone, shared in zip(apart, together, strict=True):
        assert np.array_equal(frames_of(alone), frames_of(shared))


OPEN_GOP = "open-gop=1:keyint=6:min-keyint=6:bframes=2:b-adapt=0:scenecut=0"


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"g": "10", "bf": "0"}),
        ("libx264", {"g": "10", "bf": "2"}),
        ("libx264", {"x264-params": OPEN_GOP}),
        ("libx265", {"x265-params": f"{OPEN_GOP}:log-level=none"}),
    ],
)
@pytest.mark.parametrize("first", [6, 7, 8, 9])
def test_episodes_may_begin_between_keyframes(
    tmp_path: Path, takes: list[Take], codec: str, options: dict[str, Any], first: int
) -> None:
    one, other = (Take({}, {CAMERA: takes[0].videos[CAMERA]}, ["t"] * n) for n in (first, 21 - first))
    whole = write_v30(tmp_path / "landing/whole", [Take({}, one.videos, ["t"] * 21)])
    dataset = write_v30(tmp_path / "landing/cut", [one, other])
    encode_mp4(whole / video_path(0), pictures(21, 48, 64, seed=3), codec, **options)
    shutil.copyfile(whole / video_path(0), dataset / video_path(0))

    def claim(listed: list[dict[str, Any]]) -> None:
        listed[0] |= {f"videos/{CAMERA}/from_timestamp": 0.0, f"videos/{CAMERA}/to_timestamp": first / 30}
        listed[1] |= {f"videos/{CAMERA}/from_timestamp": first / 30, f"videos/{CAMERA}/to_timestamp": 0.7}

    change_listing(dataset, claim)
    start, end, everything = (frames_of(episode) for episode in read_all(tmp_path))
    assert np.array_equal(np.concatenate([start, end]), everything)


def test_only_the_episodes_part_of_a_video_is_decoded(
    tmp_path: Path, takes: list[Take], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_v30(tmp_path / "landing/ds", takes, Sharing(videos=5))
    seen: list[int] = []
    from megahour.sources import video

    real = video._decoded

    def counted(*arguments: Any) -> Any:
        for frame in real(*arguments):
            seen.append(1)
            yield frame

    monkeypatch.setattr(video, "_decoded", counted)
    episode = read(tmp_path, 3)
    seen.clear()
    assert len(frames_of(episode)) == LENGTHS[3]
    assert len(seen) <= LENGTHS[3] + 1


def test_only_the_episodes_rows_are_read(tmp_path: Path, takes: list[Take]) -> None:
    dataset = write_v30(tmp_path / "landing/ds", takes, Sharing(data=5, group_rows=8))
    before = pq.read_table(dataset / data_path(0))
    own = rows.rows_of_episode(["k"], lambda key: dataset / data_path(0), 2)
    got = pa.Table.from_batches(rows.batches(own, ["action", "timestamp"], 4))
    assert got.equals(before.select(["action", "timestamp"]).slice(21, 15).combine_chunks())
    assert max(batch.num_rows for batch in rows.batches(own, ["action"], 4)) <= 4
    # Groups without a row of the episode may hold anything.
    data = bytearray((dataset / data_path(0)).read_bytes())
    first = pq.ParquetFile(dataset / data_path(0)).metadata.row_group(0)
    for column in map(first.column, range(first.num_columns)):
        start = column.dictionary_page_offset or column.data_page_offset
        data[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    (dataset / data_path(0)).write_bytes(data)
    own = rows.rows_of_episode(["k"], lambda key: dataset / data_path(0), 2)
    assert (own.start, own.stop) == (21, 36)
    assert pa.Table.from_batches(rows.batches(own, ["action", "timestamp"])).num_rows == 15
    with pytest.raises(SourceError, match="cannot be read as Parquet"):
        list(rows.batches(rows.Rows(own.path, "k", 0, 21, own.schema), ["action"]))


def test_an_episode_is_the_same_however_datasets_put_it(tmp_path: Path, takes: list[Take]) -> None:
    once = write_v30(tmp_path / "landing/a", takes[:3], Sharing(data=1, videos=1))
    write_v30(tmp_path / "landing/b", [takes[2], takes[0], takes[1]], Sharing(3, 3, 1, 4), tasks=["another", "task 1"])
    ids = [recording_id(one, tmp_path.joinpath) for one in found(tmp_path)]
    assert [ids[4], ids[5], ids[3]] == ids[:3]
    assert len(set(ids)) == 3
    grown = write_v30(once, [*takes[:3], takes[4]], Sharing(data=4, videos=4))
    assert [recording_id(one, tmp_path.joinpath) for one in found(tmp_path)][:3] == ids[:3], "episodes were appended"
    assert (grown / video_path(0)).stat().st_size > 0


def test_parameters_that_ffmpeg_adds_when_it_joins_videos_change_nothing(tmp_path: Path, takes: list[Take]) -> None:
    """It writes H.264 parameter sets into the packets, and anew each time another episode is appended."""
    import av

    dataset = write_v30(tmp_path / "landing/ds", takes[:2])
    before = [recording_id(one, tmp_path.joinpath) for one in found(tmp_path)]
    names = "".join(f"file '{one.videos[CAMERA]}'\n" for one in takes[:2])
    (tmp_path / "names.txt").write_text(f"ffconcat version 1.0\n{names}")
    joined = av.open(str(tmp_path / "names.txt"), format="concat", options={"safe": "0"})
    with joined as source, av.open(str(dataset / video_path(0)), "w") as out:
        stream = out.add_stream_from_template(source.streams.video[0], opaque=True)
        sizes = []
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = stream
                sizes.append(packet.size)
                out.mux(packet)
    with av.open(str(takes[0].videos[CAMERA])) as own:
        assert sizes[0] > next(own.demux(video=0)).size
    assert [recording_id(one, tmp_path.joinpath) for one in found(tmp_path)] == before


def test_other_pictures_values_or_words_are_another_episode(tmp_path: Path, takes: list[Take]) -> None:
    def identity(name: str, one: Take, **info: Any) -> str:
        write_v30(tmp_path / f"landing/{name}", [takes[1], one, takes[2]], info=info)
        return recording_id(found(tmp_path / "")[-2], tmp_path.joinpath)

    plain = takes[0]
    base = identity("a", plain)
    repainted = pictures(plain.frames, 48, 64, seed=0)
    repainted[7, 10:14, 10:14] ^= 0x80
    video = {CAMERA: encode_mp4(tmp_path / "other.mp4", repainted)}
    actions = np.array(plain.columns["action"].to_pylist(), np.float32)
    actions[11, 2] = np.nextafter(actions[11, 2], np.float32(9))
    others = [
        identity("b", Take(plain.columns, video, plain.tasks)),
        identity("c", Take({**plain.columns, "action": rows_of(actions)}, plain.videos, plain.tasks)),
        identity("d", Take(plain.columns, plain.videos, ["another task"] * plain.frames)),
        identity("e", plain, robot_type="panda"),
        identity("f", Take(plain.columns, plain.videos, plain.tasks, {"operator": "Ada"})),
        identity("g", Take(plain.columns, plain.videos, [*plain.tasks[:-1], "done"])),
    ]
    assert len({base, *others}) == 7
    assert identity("h", plain) == base


def test_rows_that_the_converter_listed_one_file_too_early_are_found(tmp_path: Path, dataset: Path) -> None:
    """LeRobot's converter from v2.1 lists the first episode of a file under the file before it."""

    def early(listed: list[dict[str, Any]]) -> None:
        listed[3] |= {"data/chunk_index": 0, "data/file_index": 0}

    want = read(tmp_path, 3)
    before = recording_id(found(tmp_path)[3], tmp_path.joinpath)
    change_listing(dataset, early)
    recording = found(tmp_path)[3]
    assert [file.key.rpartition("ds/")[2] for file in recording.files][::2] == [data_path(0), data_path(1)]
    assert np.array_equal(read(tmp_path, 3).series[0].values, want.series[0].values)
    assert recording_id(recording, tmp_path.joinpath) == before
    (dataset / data_path(0)).unlink()
    assert np.array_equal(read(tmp_path, 3).series[0].values, want.series[0].values)
    refused(tmp_path, 2, "missing_file", "has not landed")


def test_rows_are_known_by_their_number_not_by_their_place(tmp_path: Path, dataset: Path) -> None:
    want = [series.values.tobytes() for series in read(tmp_path, 1).series]

    def elsewhere(listed: list[dict[str, Any]]) -> None:
        listed[1] |= {"dataset_from_index": 700, "dataset_to_index": 709}

    change_listing(dataset, elsewhere)
    assert [series.values.tobytes() for series in read(tmp_path, 1).series] == want
    numbers = pq.read_table(dataset / data_path(0))["episode_index"].to_pylist()
    swapped = [{12: 0, 11: 1}.get(i, number) for i, number in enumerate(numbers)]
    change_column(dataset / data_path(0), "episode_index", pa.array(swapped))
    refused(tmp_path, 1, "feature_mismatch", "the 9 rows of episode 1 are scattered over rows 11 to 20")
    change_column(dataset / data_path(0), "episode_index", pa.array([7] * len(numbers)))
    refused(tmp_path, 1, "feature_mismatch", "No row of .* has the episode_index 1")
    change_column(dataset / data_path(0), "episode_index", None)
    refused(tmp_path, 1, "missing_feature", "has no column 'episode_index'")


def test_missing_files_are_named(tmp_path: Path, dataset: Path) -> None:
    (dataset / video_path(1)).unlink()
    (dataset / data_path(1)).unlink()
    missing = [[key.removeprefix("landing/lab/ds/") for key in one.missing] for one in found(tmp_path)]
    assert missing == [[], [], [video_path(1)], [data_path(1), video_path(1)], [data_path(1)]]
    refused(tmp_path, 2, "missing_video", "no video of the camera 'observation.images.front'.*has not landed")
    refused(tmp_path, 4, "missing_file", "has no data: its Parquet file .* has not landed")
    assert len(frames_of(read(tmp_path, 1))) == 9
    assert all(recording_id(one, tmp_path.joinpath) for one in found(tmp_path))


def test_an_episode_that_says_no_file_is_held(tmp_path: Path, dataset: Path) -> None:
    def forget(listed: list[dict[str, Any]]) -> None:
        listed[0]["data/file_index"] = None
        listed[1][f"videos/{CAMERA}/file_index"] = None
        listed[2][f"videos/{CAMERA}/from_timestamp"] = None

    change_listing(dataset, forget)
    refused(tmp_path, 0, "missing_file", "does not say in which file its rows lie")
    refused(tmp_path, 1, "missing_video", "names no file")
    refused(tmp_path, 2, "times", "from nan s")
    assert len(frames_of(read(tmp_path, 3))) == 7


def test_an_episode_listed_twice_is_held(tmp_path: Path, dataset: Path) -> None:
    listed = pq.read_table(dataset / LISTING)
    write_table(dataset / "meta/episodes/chunk-000/file-001.parquet", listed.slice(1, 1))
    assert len(found(tmp_path)) == 5
    refused(tmp_path, 1, "unreadable", "is listed 2 times")
    assert len(frames_of(read(tmp_path, 0))) == 12


def test_a_listing_that_is_damaged_is_held_and_the_others_are_used(tmp_path: Path, takes: list[Take]) -> None:
    dataset = write_v30(tmp_path / "landing/ds", takes, Sharing(listing=3))
    broken = "meta/episodes/chunk-000/file-001.parquet"
    (dataset / broken).write_bytes((dataset / broken).read_bytes()[:-100])
    recordings = found(tmp_path)
    assert [one.uri for one in recordings if one.format == "lerobot"] == [f"landing/ds/{broken}"]
    assert sorted(one.uri[-1] for one in recordings if one.format == "lerobot_v30") == ["0", "1", "2"]
    for recording in recordings:
        assert recording_id(recording, tmp_path.joinpath)
    with pytest.raises(SourceError, match="cannot be read as Parquet") as caught:
        list(read_recording(next(one for one in recordings if one.format == "lerobot"), tmp_path.joinpath))
    assert caught.value.reason == "unreadable"


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        ({"codebase_version": "v4.0"}, "unknown_format", "version v4.0; versions v2.0, v2.1 and v3.0"),
        ({"data_path": "../{file_index}.parquet"}, "unreadable", "must be a plain path inside the dataset"),
        ({"video_path": "/videos/{video_key}/{file_index}.mp4"}, "unreadable", "must be a plain path inside"),
        ({"video_path": None}, "unreadable", "has cameras and no video_path"),
        ({"data_path": "data/{episode_chunk}.parquet"}, "unreadable", "KeyError: 'episode_chunk'"),
        ({"features": []}, "unreadable", "AttributeError"),
        ({"fps": 0}, "feature_mismatch", "it must be a positive number"),
    ],
)
def test_a_dataset_that_cannot_be_used_is_held(
    tmp_path: Path, dataset: Path, change: dict[str, Any], reason: str, words: str
) -> None:
    edit_info(dataset, lambda info: info.update(change))
    (recording,) = found(tmp_path)
    assert (recording.uri, recording.format) == ("landing/lab/ds", "lerobot")
    assert recording_id(recording, tmp_path.joinpath)
    with pytest.raises(SourceError, match=words) as caught:
        list(read_recording(recording, tmp_path.joinpath))
    assert caught.value.reason == reason


def test_a_dataset_without_episodes_is_held(tmp_path: Path, dataset: Path) -> None:
    write_table(dataset / LISTING, pq.read_table(dataset / LISTING).slice(0, 0))
    (recording,) = found(tmp_path)
    with pytest.raises(SourceError, match="lists no episode"):
        list(read_recording(recording, tmp_path.joinpath))
    (dataset / LISTING).unlink()
    (recording,) = found(tmp_path)
    with pytest.raises(SourceError, match="holds no Parquet file") as caught:
        list(read_recording(recording, tmp_path.joinpath))
    assert caught.value.reason == "missing_file"


def test_a_camera_that_the_listing_does_not_know_is_refused(tmp_path: Path, dataset: Path) -> None:
    edit_info(dataset, lambda info: info["features"].update({"observation.images.top": info["features"][CAMERA]}))
    (recording,) = found(tmp_path)
    with pytest.raises(SourceError, match=r"lacks the column 'videos/observation\.images\.top/chunk_index'") as caught:
        list(read_recording(recording, tmp_path.joinpath))
    assert caught.value.reason == "feature_mismatch"


def test_finding_reads_metadata_alone(tmp_path: Path, dataset: Path) -> None:
    from megahour.sources import lerobot

    asked: list[str] = []

    def read_bytes(key: str) -> bytes:
        asked.append(key)
        return (tmp_path / key).read_bytes()

    files = {file.key: file for file in list_files(open_lake(tmp_path.as_uri()), "landing")}
    assert len(lerobot.find(files, read_bytes)) == 5
    assert sorted(asked) == [f"landing/lab/ds/{LISTING}", "landing/lab/ds/meta/info.json"]


def test_a_table_with_other_rows_than_listed(tmp_path: Path, dataset: Path) -> None:
    change_listing(dataset, lambda listed: listed[1].update(length=8))
    refused(tmp_path, 1, "frame_count", "has 9 rows of episode 1, and meta/episodes/.* says 8")


def test_a_data_file_cut_short(tmp_path: Path, dataset: Path) -> None:
    data = (dataset / data_path(0)).read_bytes()
    (dataset / data_path(0)).write_bytes(data[: len(data) // 2])
    refused(tmp_path, 1, "truncated", "cut short")
    assert len(frames_of(read(tmp_path, 4))) == 11


def shared_video(dataset: Path, takes: list[Take]) -> bytearray:
    """The video of the first two episodes, its index in front, so that what is cut off is pictures."""
    import av

    paths = [one.videos[CAMERA] for one in takes[:2]]
    concatenate(paths, dataset / "plain.mp4")
    fast = av.open(str(dataset / "fast.mp4"), "w", options={"movflags": "faststart"})
    with av.open(str(dataset / "plain.mp4")) as source, fast as out:
        stream = out.add_stream_from_template(source.streams.video[0], opaque=True)
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = stream
                out.mux(packet)
    data = bytearray((dataset / "fast.mp4").read_bytes())
    for name in ("plain.mp4", "fast.mp4"):
        (dataset / name).unlink()
    return data


def test_a_video_cut_short_has_its_whole_episodes(tmp_path: Path, dataset: Path, takes: list[Take]) -> None:
    before = [recording_id(one, tmp_path.joinpath) for one in found(tmp_path)]
    data = shared_video(dataset, takes)
    (dataset / video_path(0)).write_bytes(data[:-200])
    assert len(frames_of(read(tmp_path, 0))) == 12
    refused(tmp_path, 1, "truncated", r"it says that it has 21 frames, \d+ are there")
    after = [recording_id(one, tmp_path.joinpath) for one in found(tmp_path)]
    assert after[0] == before[0]
    assert after[1] != before[1]
    (dataset / video_path(0)).write_bytes(data[:100])
    refused(tmp_path, 0, "truncated", "cut short|never finished")
    (dataset / video_path(0)).write_bytes(b"")
    refused(tmp_path, 0, "truncated", "no bytes")
    (dataset / video_path(0)).write_bytes(b"\x01" * 1000)
    refused(tmp_path, 0, "unreadable", "cannot be read as a video")


def test_damage_in_a_video_is_the_damaged_episodes_alone(tmp_path: Path, dataset: Path) -> None:
    import av

    with av.open(str(dataset / video_path(0))) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
        assert packets[14].pos is not None
        start, size = packets[14].pos, packets[14].size
    data = bytearray((dataset / video_path(0)).read_bytes())
    data[start + 8 : start + size] = bytes(size - 8)
    (dataset / video_path(0)).write_bytes(data)
    assert len(frames_of(read(tmp_path, 0))) == 12
    with pytest.raises(SourceError) as caught:
        frames_of(read(tmp_path, 1))
    assert caught.value.reason == "damaged_frame"


def recoded(dataset: Path, file: int, frames: int, rate: int = 30) -> None:
    encode_mp4(dataset / video_path(file), pictures(frames, 48, 64), rate=rate)


def test_a_video_one_frame_short_is_refused(tmp_path: Path, dataset: Path) -> None:
    """Whose frame is missing is not known when only the end tells it, and is when the metadata does."""
    recoded(dataset, 0, 20)
    for number in (0, 1):
        refused(tmp_path, number, "frame_count", r"ends at 0\.667 s, and its episodes claim 0\.700 s of it")

    def shorter(listed: list[dict[str, Any]]) -> None:
        listed[0][f"videos/{CAMERA}/to_timestamp"] = 11 / 30
        listed[1] |= {f"videos/{CAMERA}/from_timestamp": 11 / 30, f"videos/{CAMERA}/to_timestamp": 20 / 30}

    change_listing(dataset, shorter)
    refused(tmp_path, 0, "frame_count", "has 11 frames from 0.000 s to 0.367 s, and the episode there has 12 rows")
    assert len(frames_of(read(tmp_path, 1))) == 9


def test_frames_that_no_episode_claims_are_passed_over(tmp_path: Path, dataset: Path) -> None:
    want = frames_of(read(tmp_path, 0))
    change_listing(dataset, lambda listed: listed.pop(1))
    assert np.array_equal(frames_of(read(tmp_path, 0)), want)


def test_another_frame_rate_is_refused(tmp_path: Path, dataset: Path) -> None:
    recoded(dataset, 0, 42, rate=60)
    refused(tmp_path, 0, "frame_count", "has 24 frames from 0.000 s to 0.400 s, and the episode there has 12 rows")
    recoded(dataset, 0, 21, rate=15)
    refused(tmp_path, 0, "times", "drift")


def test_another_size_is_refused(tmp_path: Path, dataset: Path) -> None:
    edit_info(dataset, lambda info: info["features"][CAMERA].update(shape=[3, 96, 64]))
    refused(tmp_path, 0, "feature_mismatch", r"is 64x48, and meta/info\.json says \[3, 96, 64\]")


@pytest.mark.parametrize(("from_s", "to_s"), [(0.3, 0.2), (-1.0, 0.3), (float("nan"), 0.5), (0.1, float("inf"))])
def test_times_that_are_no_part_of_a_video(tmp_path: Path, dataset: Path, from_s: float, to_s: float) -> None:
    ends = {f"videos/{CAMERA}/from_timestamp": from_s, f"videos/{CAMERA}/to_timestamp": to_s}
    change_listing(dataset, lambda listed: listed[1].update(ends))
    refused(tmp_path, 1, "times", "which is no part of a video")


def test_times_outside_the_file(tmp_path: Path, dataset: Path) -> None:
    ends = {f"videos/{CAMERA}/from_timestamp": 40.0, f"videos/{CAMERA}/to_timestamp": 40.3}
    change_listing(dataset, lambda listed: listed[1].update(ends))
    refused(tmp_path, 1, "times", r"begins at 40\.000 s .* it begins at 0\.400 s")
    change_listing(dataset, lambda listed: listed.pop(0))
    refused(tmp_path, 1, "frame_count", r"ends at 0\.700 s, and its episodes claim 40\.300 s")


def test_a_dataset_with_many_episodes_is_found_quickly(tmp_path: Path, takes: list[Take]) -> None:
    """Finding is linear: no file is read per episode, and no list is walked per episode."""
    dataset = write_v30(tmp_path / "landing/ds", takes)
    first = pq.read_table(dataset / LISTING).to_pylist()[0]
    calls = 0

    def read_bytes(key: str) -> bytes:
        nonlocal calls
        calls += 1
        return (tmp_path / key).read_bytes()

    many = [first | {"episode_index": i, "data/file_index": i // 1000} for i in range(20_000)]
    write_table(dataset / LISTING, pa.Table.from_pylist(many))
    from megahour.sources import lerobot

    files = {file.key: file for file in list_files(open_lake(tmp_path.as_uri()), "landing")}
    recordings: list[Recording] = lerobot.find(files, read_bytes)
    assert (len(recordings), calls) == (20_000, 2)


def test_a_dataset_that_grows_by_new_files_says_the_same_of_its_episodes(tmp_path: Path, takes: list[Take]) -> None:
    sharing = Sharing(data=2, videos=2)
    dataset = write_v30(tmp_path / "landing/ds", takes[:2], sharing)
    times = {path: path.stat() for path in dataset.rglob("*.*")}
    before = [one.fingerprint for one in found(tmp_path)]
    write_v30(tmp_path / "grown", takes[:4], sharing)
    for path in (tmp_path / "grown").rglob("*.*"):
        target = dataset / path.relative_to(tmp_path / "grown")
        if target not in times or "meta" in target.parts:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    after = [one.fingerprint for one in found(tmp_path)]
    assert len(after) == 4
    # The last of a data file has another reason: its rows may lie in the next file.
    assert after[0] == before[0]
    edit_info(dataset, lambda info: info.update(robot_type="franka"))
    assert not set(after) & {one.fingerprint for one in found(tmp_path)}

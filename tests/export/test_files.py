"""A file that is full is followed by another, and what is in it is what was written."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from megahour.episode.reader import open_episode_file
from megahour.episode.writer import write_episode
from megahour.export import files
from megahour.export.files import Limits, ParquetFiles, Place, VideoFiles
from tests.export.lakes import decoded
from tests.samples import FACTS, raw_episode

SCHEMA = pa.schema([("x", pa.int64())])


def rows(count: int) -> pa.Table:
    return pa.table({"x": np.random.default_rng(count).integers(0, 2**62, count)}, SCHEMA)


def test_a_chunk_is_followed_by_another() -> None:
    place, limits = Place(), Limits(files_per_chunk=2)
    found = [place := place.following(limits) for _ in range(4)]
    assert found == [Place(0, 1), Place(1, 0), Place(1, 1), Place(2, 0)]


def test_parquet_files_end_before_they_are_too_large(tmp_path: Path) -> None:
    written = ParquetFiles(tmp_path, SCHEMA, Limits(data_mib=1))
    tables = [rows(50_000) for _ in range(6)]
    places = []
    for table in tables:
        places.append(written.place(table.nbytes))
        written.write(table)
    written.close()
    assert places == [Place(0, 0)] * 2 + [Place(0, 1)] * 2 + [Place(0, 2)] * 2
    assert all(path.stat().st_size <= 2**20 for path in tmp_path.rglob("*.parquet"))
    kept = [pq.read_table(path) for path in sorted(tmp_path.rglob("*.parquet"))]
    assert pa.concat_tables(kept).equals(pa.concat_tables(tables))
    assert pq.ParquetFile(tmp_path / "chunk-000/file-000.parquet").num_row_groups == 2


def test_small_rows_share_a_group(tmp_path: Path) -> None:
    written = ParquetFiles(tmp_path, SCHEMA, Limits(), group_rows=10)
    for _ in range(25):
        assert written.place(0) == Place()
        written.write(rows(1))
    written.close()
    found = pq.ParquetFile(tmp_path / "chunk-000/file-000.parquet")
    assert (found.metadata.num_rows, found.num_row_groups) == (25, 3)


@pytest.fixture(scope="module")
def coded(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[bytes], list[bool], np.ndarray]:
    path = tmp_path_factory.mktemp("coded") / "e.mcap"
    write_episode(path, raw_episode(), FACTS)
    reader = open_episode_file(path)
    return reader.coded("front", 0, 24), reader.index.cameras[0].keyframes.tolist(), decoded(reader, "front")


def test_coded_pictures_are_copied_with_their_colours(
    tmp_path: Path, coded: tuple[list[bytes], list[bool], np.ndarray]
) -> None:
    units, keyframes, pictures = coded
    videos = VideoFiles(tmp_path, 25, Limits())
    assert videos.begin(0, 24) == (Place(), 0)
    videos.write(units, keyframes)
    assert videos.begin(0, 24) == (Place(), 24)
    videos.write(units, keyframes)
    videos.close()
    assert videos.pix_fmt == "yuv420p"
    with av.open(str(tmp_path / "chunk-000/file-000.mp4")) as container:
        stream = container.streams.video[0]
        context = stream.codec_context
        # ITU-T H.273: matrix 6 is that of SMPTE 170M (BT.601), range 1 the limited one.
        assert (context.colorspace, context.color_range, stream.average_rate) == (6, 1, 25)
        packets = [packet for packet in container.demux(stream) if packet.size]
        assert [packet.is_keyframe for packet in packets] == keyframes * 2
        assert sum(packet.size for packet in packets) == pytest.approx(2 * sum(map(len, units)), rel=0.01)
        container.seek(0)
        frames = list(container.decode(stream))
    assert [frame.time for frame in frames] == pytest.approx((np.arange(48) / 25).tolist())
    assert np.array_equal(np.stack([frame.to_ndarray(format="rgb24") for frame in frames[24:]]), pictures)


def test_videos_end_before_they_are_too_large_or_too_long(
    tmp_path: Path, coded: tuple[list[bytes], list[bool], np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    units, keyframes, _ = coded
    large = VideoFiles(tmp_path / "large", 30, Limits(video_mib=1))
    assert large.begin(2**21, 24) == (Place(), 0), "an episode that is too large alone has a file of its own"
    large.write(units, keyframes)
    assert large.begin(2**20 - 1, 24) == (Place(0, 1), 0)
    large.close()
    monkeypatch.setattr(files, "MOST_VIDEO_S", 1.0)
    long = VideoFiles(tmp_path / "long", 30, Limits())
    assert long.begin(1, 24) == (Place(), 0)
    long.write(units, keyframes)
    assert long.begin(1, 6) == (Place(), 24)
    assert long.begin(1, 7) == (Place(0, 1), 0)
    long.close()


@pytest.mark.parametrize("fps", [10, 15, 29, 30, 50, 60])
def test_lerobots_times_find_pictures_of_no_longer_videos_and_of_rows_that_begin_theirs(fps: int) -> None:
    """As its readers ask: `from_timestamp` and a float32 of `i / fps`, against the picture's time, both as float32."""

    def distance_s(before: int, pictures: int) -> np.ndarray:
        rows = np.arange(pictures)
        asked = before / fps + (rows / fps).astype(np.float32).astype(np.float64)
        return np.abs(asked.astype(np.float32) - ((before + rows) / fps).astype(np.float32))

    longest = round(files.MOST_VIDEO_S * fps)
    for before in (1, 7, longest // 2 + 1, longest - 1):
        assert distance_s(before, longest - before).max() < 1e-4
        assert distance_s(before, 2 * longest).max() > 1e-4
    assert distance_s(0, 4 * longest).max() == 0

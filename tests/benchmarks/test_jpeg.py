"""The baselines hold what was given to them, and are read as frugally as they can be."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mcap.reader import make_reader
from mcap_protobuf.decoder import DecoderFactory
from PIL import Image

from benchmarks.container import INDEX, write_all
from benchmarks.jpeg import WAYS, RangeFile, StockReader, Window, as_jpeg, encode, write_default
from benchmarks.patterns import VLA, moments, query, window
from megahour.episode.model import RawEpisode
from megahour.episode.ranges import FileBytes
from megahour.episode.reader import open_episode_file
from tests.samples import camera, psnr_db, series

SIZE = (96, 128)


@pytest.fixture(scope="module")
def episode() -> RawEpisode:
    """Grey noise, so that chunks of 1 MiB fill; states and actions faster than pictures."""
    video = np.repeat(np.random.default_rng(0).integers(0, 255, (120, 120, 160, 1), np.uint8), 3, axis=-1)
    return as_jpeg(
        RawEpisode(
            index=0,
            robot="r",
            task="t",
            rate_hz=20.0,
            success=True,
            cameras=(camera("left", video, 20.0), camera("right", video[::-1], 20.0)),
            series=(series("state", 480, 4, 80.0), series("action", 480, 3, 80.0, seed=1)),
        )
    )


@pytest.fixture(scope="module")
def path(episode: RawEpisode, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("jpeg") / "default.mcap"
    assert write_default(path, episode) == path.stat().st_size
    return path


def test_the_default_file_holds_the_same_jpegs_and_rows(path: Path, episode: RawEpisode) -> None:
    with path.open("rb") as file:
        reader: Any = make_reader(file, decoder_factories=[DecoderFactory()])
        chunks = reader.get_summary().chunk_indexes
        assert len(chunks) > 3
        assert {chunk.compression for chunk in chunks} == {"zstd"}
        assert all(chunk.uncompressed_size >= 2**20 for chunk in chunks[:-1]), "the writer's own size of a chunk"
        found: dict[str, list[Any]] = {}
        for _, channel, message, decoded in reader.iter_decoded_messages():
            found.setdefault(channel.topic, []).append((message.log_time, decoded))
    for each in episode.cameras:
        assert each.coded is not None
        assert [image.data for _, image in found[f"/camera/{each.name}"]] == list(each.coded.units())
        assert [time for time, _ in found[f"/camera/{each.name}"]] == each.times_ns.tolist()
    for rows in episode.series:
        values = [[joint.position for joint in message.joints] for _, message in found[f"/{rows.name}"]]
        assert np.array_equal(np.array(values, np.float32), rows.values)


def test_a_window_is_read_with_one_request_per_chunk(path: Path, episode: RawEpisode) -> None:
    times, states = episode.cameras[0].times_ns, episode.series[0]
    wanted = Window(
        {"left": (int(times[60]), int(times[61]))},
        {"state": (int(states.times_ns[150]), int(states.times_ns[300]))},
        SIZE,
    )
    reader, ahead = StockReader(FileBytes(path), episode), StockReader(FileBytes(path), episode, read_ahead=True)
    first, last = wanted.span
    touched = [c for c in reader._chunks if c.message_start_time <= last and c.message_end_time >= first]
    assert 1 < len(touched) < len(reader._chunks)
    before = reader._file.requests, ahead._file.requests
    found, other = reader.sample(wanted), ahead.sample(wanted)
    assert reader._file.requests - before[0] == len(touched)
    assert ahead._file.requests - before[1] == 1
    assert np.array_equal(found.rows["state"], states.values[150:301])
    assert found.pictures["left"].shape == (2, *SIZE, 3)
    assert episode.cameras[0].coded is not None
    unit = list(episode.cameras[0].coded.units())[60]
    for name, make in WAYS.items():
        assert psnr_db(found.pictures["left"][0], make()(unit, SIZE)) > 15, f"{name} shows another picture"
    assert np.array_equal(other.pictures["left"], found.pictures["left"])
    assert np.array_equal(other.rows["state"], found.rows["state"])


def test_the_index_reader_over_jpeg_gives_the_same(tmp_path: Path, path: Path, episode: RawEpisode) -> None:
    data = write_all("noise", [episode], (), tmp_path / "all")
    reader = open_episode_file(data.files[INDEX][0])
    for each in episode.cameras:
        assert each.coded is not None
        assert reader.coded(each.name, 0, len(each.times_ns)) == list(each.coded.units()), "the same JPEG files"
    stock = StockReader(FileBytes(path), episode)
    for frame in moments(episode, VLA, 5).tolist():
        wanted = stock.sample(window(episode, VLA, frame))
        found = reader.sample(int(episode.cameras[0].times_ns[frame]), query(episode, VLA))
        for name, pictures in wanted.pictures.items():
            apart = np.abs(pictures.astype(int) - found.pictures[name].frames)
            assert apart.mean() < 1, "one decoder, and scalers that round differently"
        assert {name: rows.shape for name, rows in wanted.rows.items()} == {"state": (150, 4), "action": (50, 3)}
        for name, rows in wanted.rows.items():
            assert np.array_equal(rows, found.series[name].values)


def test_a_range_file_is_a_file(path: Path) -> None:
    content = path.read_bytes()
    file = RangeFile(FileBytes(path))
    file.read(8)
    file.seek(-28, 2)
    file.read(28)
    assert file.requests == 1, "the start; the end is held since it was opened"
    file.know([(1000, 900_000)])
    for at, size in ((5, 8), (1500, 3000), (890_000, 20_000), (len(content) - 28, 100)):
        file.seek(at)
        assert file.read(size) == content[at : at + size]
        assert file.tell() == min(at + size, len(content))
    file.seek(-8, 2)
    assert file.read() == content[-8:]


def test_jpeg_is_what_pillow_writes_by_default() -> None:
    picture = np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8)
    image: Any = Image.open(io.BytesIO(encode(picture)))
    wanted = io.BytesIO()
    Image.fromarray(picture).save(wanted, "JPEG", quality=90)
    assert encode(picture) == wanted.getvalue()
    assert [layer[1:3] for layer in image.layer] == [(2, 2), (1, 1), (1, 1)], "4:2:0"


def test_without_jpeg_no_baseline(tmp_path: Path, episode: RawEpisode) -> None:
    bare = replace(episode, cameras=tuple(replace(each, coded=None) for each in episode.cameras))
    with pytest.raises(AssertionError):
        write_default(tmp_path / "x.mcap", bare)

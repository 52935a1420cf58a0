"""Which frames of a shared video are an episode's is counted where that can be, and never guessed."""

from __future__ import annotations

import errno
import io
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from megahour.sources import SourceError
from megahour.sources.lerobot.clip import Clip, cut_out, find_clip, start_of
from megahour.sources.lerobot.dataset import Span, Video
from megahour.sources.video_file import ask_disk
from tests.sources.videos import write

FPS = 30
LENGTHS = (90, 60, 120)


def grid(frames: int, stretch: float = 1.0) -> NDArray[np.float64]:
    return np.arange(frames) / FPS * stretch


def claims(lengths: tuple[int, ...] = LENGTHS, shift_s: float = 0.0) -> list[Span]:
    ends = [0, *np.cumsum(lengths).tolist()]
    return [Span(a / FPS + shift_s, b / FPS + shift_s, b - a) for a, b in pairwise(ends)]


def start(times_s: NDArray[np.float64], spans: list[Span], mine: int, promised: int | None = None) -> int:
    return start_of(times_s, len(times_s) if promised is None else promised, spans, mine, "v.mp4")


def refused(times_s: NDArray[np.float64], spans: list[Span], mine: int, reason: str) -> None:
    with pytest.raises(SourceError, match=r"v\.mp4") as caught:
        start(times_s, spans, mine)
    assert caught.value.reason == reason


def test_episodes_that_lie_one_after_the_other() -> None:
    assert [start(grid(270), claims(), i) for i in range(3)] == [0, 90, 150]


@pytest.mark.parametrize("drift", [1 - 1e-3, 1 - 3e-3, 1 + 1e-3, 1 + 3e-3])
def test_counting_is_right_where_times_have_drifted_by_frames(drift: float) -> None:
    assert [start(grid(270, drift), claims(), i) for i in range(3)] == [0, 90, 150]


def test_by_time_where_frames_belong_to_no_episode() -> None:
    spans = claims()
    assert [start(grid(300), spans, i) for i in range(3)] == [0, 90, 150]
    assert start(grid(270), [spans[0], spans[2]], 1) == 150
    assert start(grid(300), claims(shift_s=0.4 / FPS), 1) == 90


def test_halfway_between_two_frames_is_refused() -> None:
    refused(grid(300), claims(shift_s=0.5 / FPS), 1, "times")


def test_a_start_that_contradicts_the_lengths_is_refused() -> None:
    spans = claims()
    spans[1] = Span(spans[1].from_s + 0.2, spans[1].to_s + 0.2, spans[1].frames)
    assert start(grid(270), spans, 0) == 0
    refused(grid(270), spans, 1, "times")
    swapped = [spans[0], Span(8.0, 10.0, 60), Span(3.0, 7.0, 120)]
    refused(grid(270), swapped, 1, "times")
    assert start(grid(270), swapped, 2) == 90


def test_frames_that_are_missing_somewhere_are_everyones_trouble() -> None:
    for i in range(3):
        refused(grid(269), claims(), i, "frame_count")


def test_frames_that_are_missing_where_the_metadata_says_so() -> None:
    spans = [Span(0.0, 3.0, 91), Span(3.0, 5.0, 60), Span(5.0, 9.0, 120)]
    refused(grid(270), spans, 0, "frame_count")
    assert [start(grid(270), spans, i) for i in (1, 2)] == [90, 150]


def test_of_a_file_cut_short_the_frames_it_promises_count() -> None:
    assert start(grid(100), claims(), 0, promised=270) == 0
    assert start(grid(100), claims(), 1, promised=270) == 90


def test_one_frame_alone() -> None:
    assert start(grid(1), [Span(0.0, 1 / FPS, 1)], 0) == 0
    refused(grid(1), [Span(0.0, 2 / FPS, 2)], 0, "frame_count")


def failing(name: str, error: type[Exception], number: int) -> Any:
    """A container whose method of this name raises."""

    class Failing:
        def __init__(self, container: Any) -> None:
            self._container = container

        def __getattr__(self, asked: str) -> Any:
            if asked != name:
                return getattr(self._container, asked)
            raise error(number, "what the system calls it")

        def __enter__(self) -> Failing:
            return self

        def __exit__(self, *_: object) -> None:
            self._container.close()

    return Failing


@pytest.mark.parametrize(
    ("error", "number"), [(av.error.OSError, errno.EIO), (av.error.MemoryError, errno.ENOMEM)], ids=["EIO", "ENOMEM"]
)
@pytest.mark.parametrize("method", ["demux", "mux"])
def test_bytes_that_ffmpeg_blames_on_the_machine_are_the_videos_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, error: type[Exception], number: int
) -> None:
    path, opens = write(tmp_path / "v.mp4"), av.open
    wrap = failing(method, error, number)
    monkeypatch.setattr(av, "open", lambda *arguments, **options: wrap(opens(*arguments, **options)))
    with pytest.raises(SourceError) as caught, cut_out(Clip(path, "v.mp4", 0, 10, 0.0)):
        pass
    assert caught.value.reason == "unreadable"
    assert caught.value.__suppress_context__ and caught.value.__cause__ is None, "it would seem the machine's fault"


class BadBlock(io.FileIO):
    """A file of which a part cannot be read: its beginning can."""

    def read(self, size: int | None = -1, /) -> Any:
        if size is not None and 0 <= size < 1024:
            return super().read(size)
        raise OSError(errno.EIO, "Input/output error")


def test_a_disk_that_fails_is_not_the_videos_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, said = write(tmp_path / "v.mp4"), av.error.OSError(errno.EIO, "Input/output error")
    ask_disk(said, path, tmp_path / "clip.mp4")
    with pytest.raises(OSError, match="No space left") as full:
        ask_disk(said, path, Path("/dev/full"))
    assert type(full.value) is OSError

    def fail(*arguments: Any, **options: Any) -> Any:
        raise said

    monkeypatch.setattr(av, "open", fail)
    with pytest.raises(SourceError, match="cannot be read as a video"):
        find_clip(path, Video("v.mp4", (), 0), 10)
    monkeypatch.setattr(Path, "open", lambda self, mode: BadBlock(self, mode))
    with pytest.raises(OSError, match="Input/output error") as broken:
        find_clip(path, Video("v.mp4", (), 0), 10)
    assert type(broken.value) is OSError


def test_a_file_without_a_video_says_so(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "v.mp4"), "w") as container:
        stream = container.add_stream("aac", rate=16000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 16000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    with pytest.raises(SourceError, match="has no video in it") as caught:
        find_clip(tmp_path / "v.mp4", Video("v.mp4", (), 0), 10)
    assert caught.value.reason == "no_video"

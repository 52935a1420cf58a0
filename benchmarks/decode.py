"""Streams of an episode outside its reader: as an MP4, and through the `ffmpeg` program."""

from __future__ import annotations

import re
import shutil
import subprocess
from fractions import Fraction
from pathlib import Path
from typing import Any

import av

from benchmarks.rounds import Spent
from megahour.episode.reader import EpisodeReader

TIME_BASE = Fraction(1, 240_000)
"""Of the MP4s: whole numbers for frames at 80/3 and at 30 Hz."""
SPENT = re.compile(r"bench: utime=([\d.]+)s stime=([\d.]+)s rtime=([\d.]+)s")


def remux(reader: EpisodeReader, camera: str, path: Path) -> Path:
    """The very stream of a camera as an MP4: the same access units, nothing coded anew."""
    info = reader.cameras[camera]
    units = reader.coded(camera, 0, info.frames)
    times = [round(float(time) / 1e9 / TIME_BASE) for time in info.times_ns]
    keyframes = next(each for each in reader.index.cameras if each.name == camera and not each.rendition_of).keyframes
    with av.open(str(path), "w", format="mp4") as container:
        stream: Any = container.add_stream("h264", rate=30)
        stream.width, stream.height, stream.pix_fmt = info.width, info.height, "yuv420p"
        stream.time_base = TIME_BASE
        for i, unit in enumerate(units):
            packet = av.Packet(unit)
            packet.stream, packet.time_base = stream, TIME_BASE
            packet.pts = packet.dts = times[i]
            packet.duration = (times[i + 1] if i + 1 < len(times) else 2 * times[i] - times[i - 1]) - times[i]
            packet.is_keyframe = bool(keyframes[i])
            container.mux(packet)
    return path


def ffmpeg(video: Path, frames: int, loops: int, filters: str = "") -> Spent:
    """What `ffmpeg -benchmark` with one thread says of decoding an MP4 `loops` times, per picture.

    Its start, measured apart, is taken off. `filters` are applied to the pictures.

    Raises:
        SystemExit: there is no ffmpeg.
    """
    if shutil.which("ffmpeg") is None:
        raise SystemExit("There is no ffmpeg here to compare with: apt-get install ffmpeg")
    start, all_of_it = _ffmpeg(video, 1, filters, ["-frames:v", "1"]), _ffmpeg(video, loops, filters, [])
    count = frames * loops
    wall, cpu = all_of_it[2] - start[2], sum(all_of_it[:2]) - sum(start[:2])
    return Spent(1e3 * wall / count, 1e3 * cpu / count)


def _ffmpeg(video: Path, loops: int, filters: str, options: list[str]) -> tuple[float, float, float]:
    command = ["ffmpeg", "-nostdin", "-benchmark", "-threads", "1", "-filter_threads", "1"]
    command += ["-stream_loop", str(loops - 1), "-i", str(video)]
    command += ["-vf", filters] if filters else []
    command += [*options, "-vsync", "passthrough", "-f", "null", "-"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    found = SPENT.search(said)
    if found is None:
        raise RuntimeError(f"ffmpeg did not say what it took: {said[-500:]}")
    user, system, real = (float(each) for each in found.groups())
    return user, system, real

"""What an episode of a LeRobot dataset is, wherever its rows and pictures lie: the hash of its own content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from megahour.sources import steps
from megahour.sources.lerobot.clip import find_clip, packets
from megahour.sources.lerobot.columns import (
    BOOKKEEPING,
    INDEX_OF_PANDAS,
    is_number,
    is_picture,
    names_of,
    numbers_of,
    picture_files,
    unfold,
)
from megahour.sources.lerobot.dataset import Dataset, Episode, Video
from megahour.sources.lerobot.episode import rows_of, task_of
from megahour.sources.lerobot.rows import Rows, load
from megahour.sources.model import Identity, Recording, SourceError

TEXTS = ("task_index", "subtask_index")
PLACES = ("episode_index", "index", *TEXTS)
"""Columns of numbers that change when datasets are put together, and mean the same."""
PICTURE_UNITS = {"h264": range(1, 6), "hevc": range(32)}
"""Types of the NAL units that hold pictures (ITU-T H.264, table 7-1; H.265, table 7-1)."""


def of_episode(recording: Recording, episode: Episode, local: Callable[[str], Path]) -> Identity:
    """The sha256 of an episode's values and coded pictures, and that of its task, its robot, its rate and the names.

    The same for a dataset of version 2 and what it was converted to, and however episodes share files.

    Raises:
        SourceError: its rows cannot be read. Of pictures that cannot be, the reason is hashed.
    """
    rows = rows_of(recording, episode, local)
    content, said = hashlib.sha256(), hashlib.sha256()
    pictured = {name for name in rows.schema.names if is_picture(rows.schema.field(name).type)}
    table = load(rows, [name for name in rows.schema.names if name not in pictured])
    texts: dict[str, list[str | None]] = {}
    for name, meanings in zip(TEXTS, (episode.task_texts, episode.subtask_texts), strict=True):
        if name in table.column_names and meanings:
            texts[name] = [meanings.get(int(i)) for i in numbers_of(table[name], f"{rows.key}: '{name}'")]
    more = {name: steps.as_json(value) for name, value in sorted(episode.said.items()) if value is not None}
    facts = [task_of(episode.tasks, texts.get("task_index", [])), episode.dataset.robot, episode.dataset.fps, more]
    _add(said, json.dumps([*facts, _column_names(episode.dataset)]).encode())
    for name in sorted(rows.schema.names):
        if not name.startswith(INDEX_OF_PANDAS) and name not in PLACES:
            _add(content, name.encode())
            _add(content, _pictures(name, rows) if name in pictured else _values(table[name].combine_chunks()))
    for name, meant in texts.items():
        # One text throughout is the task, and hashed as that.
        if name != "task_index" or len(set(meant)) > 1:
            _add(said, json.dumps([name, meant]).encode())
    videos = {
        camera: _video(recording, episode.videos.get(camera), len(rows), local) for camera in episode.dataset.cameras
    }
    # What a camera is called is said of its pictures.
    for pictures in sorted(videos.values()):
        _add(content, pictures)
    for camera, pictures in videos.items():
        _add(said, camera.encode())
        _add(said, pictures)
    return Identity(content.digest(), said.digest())


def _column_names(dataset: Dataset) -> list[tuple[str, tuple[str, ...]]]:
    """What the columns of the series are called."""
    series = [one for one in dataset.features if one.dtype.startswith("float") and one.name not in BOOKKEEPING]
    return sorted((one.name, names_of(one.names, one.shape, one.name)) for one in series)


def _add(digest: Any, part: bytes) -> None:
    """Add a part with its length, so that no two lists of parts are the same bytes."""
    digest.update(len(part).to_bytes(8, "little") + part)


def _values(column: Any) -> bytes:
    """The hash of a column's values, whatever kind of list stores them."""
    values, shape, has_gaps = unfold(column)
    digest = hashlib.sha256()
    if is_number(values.type) and shape is not None and not has_gaps:
        numbers = values.to_numpy(zero_copy_only=False)
        numbers = numbers.astype(np.int64) if numbers.dtype.kind in "ib" else numbers
        # A single value and a list of one are the same.
        _add(digest, f"{numbers.dtype.name} {[n for n in shape if n != 1]}".encode())
        digest.update(numbers.tobytes())
    else:
        for i in range(len(column)):
            _add(digest, json.dumps(steps.as_json(_plain(column[i])), sort_keys=True).encode())
    return digest.digest()


def _plain(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return scalar.as_buffer().to_pybytes() if hasattr(scalar, "as_buffer") else str(scalar.type)


def _pictures(name: str, rows: Rows) -> bytes:
    digest = hashlib.sha256()
    for data in picture_files(name, rows):
        _add(digest, data)
    return digest.digest()


def _video(recording: Recording, video: Video | None, frames: int, local: Callable[[str], Path]) -> bytes:
    """The hash of the packets of an episode's pictures."""
    if video is None or video.key in recording.missing:
        return b"missing"
    digest = hashlib.sha256()
    try:
        for packet in packets(find_clip(local(video.key), video, frames)):
            _add(digest, b"".join(_coded(packet)))
    except SourceError as error:
        return error.reason.encode()
    return digest.digest()


def _coded(packet: Any) -> Iterator[bytes]:
    """What a packet says of its picture: of H.264 and HEVC without the parameters that putting videos together adds."""
    wanted = PICTURE_UNITS.get(packet.stream.codec_context.name)
    data, extradata = bytes(packet), packet.stream.codec_context.extradata or b""
    if wanted is None or extradata[:1] != b"\x01":
        yield data
        return
    # ISO/IEC 14496-15, 5.3.3.1 and 8.3.3.1: where the length of a unit's length stands.
    is_h264 = packet.stream.codec_context.name == "h264"
    width, at = (extradata[4 if is_h264 else 21] & 3) + 1, 0
    while at + width < len(data):
        length = int.from_bytes(data[at : at + width], "big")
        unit = data[at + width : at + width + length]
        if unit and (unit[0] & 31 if is_h264 else unit[0] >> 1 & 63) in wanted:
            yield unit
        at += width + length

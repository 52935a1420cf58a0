"""JPEG pictures of cameras that are stored as they came."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from megahour.episode.model import EpisodeError

START, SCAN, WITHOUT_LENGTH = 0xD8, 0xDA, frozenset(range(0xD0, 0xD8))
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Marker codes of ITU-T T.81, table B.1."""


def jpeg_size(data: bytes) -> tuple[int, int]:
    """(height, width) of a JPEG file, from its frame header (ITU-T T.81, B.2.2).

    Raises:
        EpisodeError: `corrupt` when it is no JPEG file.
    """
    for kind, at, _ in _segments(data):
        if kind in FRAMES and at + 9 <= len(data):
            height, width = struct.unpack_from(">HH", data, at + 5)
            return int(height), int(width)
    raise EpisodeError("corrupt", "A JPEG file ends before it says its size")


def jpeg_head(data: bytes) -> bytes:
    """A JPEG file up to its first scan (ITU-T T.81, B.1.1): tables and sizes.

    Raises:
        EpisodeError: `corrupt` when it is no JPEG file.
    """
    for kind, _, end in _segments(data):
        if kind == SCAN:
            return data[:end]
    raise EpisodeError("corrupt", "A JPEG file ends before its picture")


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """The marker segments up to the first scan: the marker's code, and where the segment begins and ends."""
    if data[:2] != bytes((0xFF, START)):
        raise EpisodeError("corrupt", "A picture is no JPEG file")
    at, kind = 2, START
    while at + 4 <= len(data) and data[at] == 0xFF and kind != SCAN:
        kind = data[at + 1]
        if kind == 0xFF:
            at += 1
        elif kind in WITHOUT_LENGTH:
            at += 2
        else:
            end = at + 2 + int(struct.unpack_from(">H", data, at + 2)[0])
            yield kind, at, end
            at = end

"""JPEG pictures of cameras that are stored as they came."""

from __future__ import annotations

import struct

from megahour.episode.model import EpisodeError

START, FRAMES, WITHOUT_LENGTH = 0xD8, frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}, frozenset(range(0xD0, 0xD8))
"""Marker codes of ITU-T T.81, table B.1."""


def jpeg_size(data: bytes) -> tuple[int, int]:
    """(height, width) of a JPEG file, from its frame header (ITU-T T.81, B.2.2).

    Raises:
        EpisodeError: `corrupt` when it is no JPEG file.
    """
    at = 2
    if data[:2] != bytes((0xFF, START)):
        raise EpisodeError("corrupt", "A picture is no JPEG file")
    while at + 9 <= len(data) and data[at] == 0xFF:
        kind = data[at + 1]
        if kind == 0xFF:
            at += 1
        elif kind in WITHOUT_LENGTH:
            at += 2
        elif kind in FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return int(height), int(width)
        else:
            at += 2 + int(struct.unpack_from(">H", data, at + 2)[0])
    raise EpisodeError("corrupt", "A JPEG file ends before it says its size")

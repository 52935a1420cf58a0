"""Whether a video file ends before its own sizes say: a copy that broke off, a recording that was never finished."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import IO

EBML, SEGMENT = b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"


def cut_short(path: Path) -> str | None:
    """How an MP4, Matroska or RIFF file is cut, as words that follow its name; None when it is whole, or none of them.

    Raises:
        OSError: the file cannot be read.
    """
    size = path.stat().st_size
    if size == 0:
        return "is cut short: it has no bytes"
    with path.open("rb") as file:
        head = file.read(12)
        if head[:4] == EBML:
            ends = _matroska_end(file)
        elif head[:4] == b"RIFF":
            ends = 8 + int.from_bytes(head[4:8], "little")
        else:
            kinds, ends = _boxes(file, size)
            if b"ftyp" in kinds and b"moov" not in kinds and ends <= size:
                return "was never finished: its index (moov) is missing"
    return f"is cut short: it has {size} bytes, fewer than the {ends} its own sizes say" if ends > size else None


def _boxes(file: IO[bytes], size: int) -> tuple[list[bytes], int]:
    """The kinds of an MP4 file's top-level boxes, and where the last one ends (ISO/IEC 14496-12, 4.2)."""
    at, kinds = 0, []
    while at + 8 <= size:
        file.seek(at)
        length, kind = struct.unpack(">I4s", file.read(8))
        if length == 1:
            length = int.from_bytes(file.read(8), "big")
        if length < 8 or not kind.isalnum():
            # 0: it goes on to the end of the file. Anything else is no box.
            break
        kinds.append(kind)
        at += length
    return kinds, at


def _matroska_end(file: IO[bytes]) -> int:
    """Where the segment of a Matroska or WebM file ends (RFC 8794); 0 when it does not say."""
    file.seek(len(EBML))
    header_bytes = _vint(file)
    file.seek(header_bytes or 0, 1)
    if file.read(4) != SEGMENT:
        return 0
    length = _vint(file)
    return 0 if length is None else file.tell() + length


def _vint(file: IO[bytes]) -> int | None:
    """A number of 1 to 8 bytes, whose leading zeros say how many; None when all its bits are set: not known."""
    first = file.read(1)
    if not first or not first[0]:
        return None
    more = 8 - first[0].bit_length()
    bits = 7 * (more + 1)
    value = int.from_bytes(first + file.read(more), "big") & ((1 << bits) - 1)
    return None if value == (1 << bits) - 1 else value

"""TFRecord files: their records, with every length and every byte checked.

A record is its length (uint64), a checksum of the length (uint32), the data, and a checksum of the data (uint32), all
little-endian; a checksum is a masked CRC-32C (tensorflow.org/tutorials/load_data/tfrecord).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from megahour.sources.model import SourceError

HEAD, TAIL = struct.Struct("<QI"), struct.Struct("<I")
MASK = 0xA282EAD8
GZIP, ZLIB = b"\x1f\x8b", b"\x78"
AGAIN = "Copy it again from where it was made"


def masked_crc(data: bytes) -> int:
    """The checksum that TFRecord stores for `data`."""
    import google_crc32c

    crc = int(google_crc32c.value(data))
    return ((crc >> 15 | crc << 17) + MASK) & 0xFFFFFFFF


def count_records(path: Path, key: str) -> int:
    """How many records a file holds, from their lengths: it reads 16 bytes of each.

    Raises:
        SourceError: `truncated`, `corrupt`, or `unreadable` when it is no TFRecord file.
    """
    count = 0
    with path.open("rb") as file:
        while (length := _length(file, path, key, count)) is not None:
            file.seek(length + TAIL.size, 1)
            count += 1
    return count


def records(path: Path, key: str) -> Iterator[bytes]:
    """The records of a file, one after the other.

    Raises:
        SourceError: `truncated`, `corrupt`, or `unreadable` when it is no TFRecord file.
    """
    number = 0
    with path.open("rb") as file:
        while (length := _length(file, path, key, number)) is not None:
            data = file.read(length)
            if TAIL.unpack(file.read(TAIL.size))[0] != masked_crc(data):
                raise SourceError("corrupt", f"{key}: record {number} is damaged: its checksum is wrong. {AGAIN}")
            yield data
            number += 1


def _length(file: IO[bytes], path: Path, key: str, number: int) -> int | None:
    """The length of the record that begins here and lies in the file whole; None at the end."""
    start, size = file.tell(), path.stat().st_size
    head = file.read(HEAD.size)
    if not head:
        return None
    if len(head) == HEAD.size:
        length, crc = HEAD.unpack(head)
        if crc != masked_crc(head[:8]):
            raise _no_head(head, key, number)
        if start + HEAD.size + length + TAIL.size <= size:
            return int(length)
    raise SourceError(
        "truncated", f"{key} is cut short: it ends after {size} bytes, inside of record {number}. {AGAIN}"
    )


def _no_head(head: bytes, key: str, number: int) -> SourceError:
    if number:
        return SourceError("corrupt", f"{key}: record {number} is damaged: its length has a wrong checksum. {AGAIN}")
    if head.startswith((GZIP, ZLIB)):
        return SourceError("unreadable", f"{key} is compressed: Megahour reads TFRecord files that are not. Unpack it")
    return SourceError("unreadable", f"{key} is no TFRecord file, or its first bytes are damaged. {AGAIN}")

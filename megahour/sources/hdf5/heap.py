"""The global heaps of an HDF5 file, where texts of any length lie: whether a reader comes to their end.

The HDF5 library goes through a heap object by object, and for ever when a damaged one says that it takes no room. A
heap is `GCOL`, a version, its size, and objects of an index, a count, and a size each (HDF5 File Format Specification
3.0, III.E).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from megahour.sources.model import SourceError

START = b"GCOL\x01\x00\x00\x00"
HEAD, OBJECT = struct.Struct("<8sQ"), struct.Struct("<HHIQ")
ALIGNED, BLOCK_BYTES = 8, 1024 * 1024


def check_heaps(path: Path, key: str) -> None:
    """Refuse a file with a heap that has no end. It looks through the whole file, which costs what hashing it costs.

    Raises:
        SourceError: `unreadable`.
    """
    size = path.stat().st_size
    with path.open("rb") as file, path.open("rb") as heap:
        for at in _starts(file):
            heap.seek(at)
            head = heap.read(HEAD.size)
            length = HEAD.unpack(head)[1] if len(head) == HEAD.size else 0
            if HEAD.size <= length <= size - at and not _ends(heap, at + length):
                raise SourceError(
                    "unreadable", f"{key} has a damaged heap of texts at byte {at}: it cannot be read. Record it again"
                )


def _starts(file: IO[bytes]) -> Iterator[int]:
    """Where heaps begin: at multiples of 8, so that none lies across two blocks."""
    start = 0
    while block := file.read(BLOCK_BYTES):
        at = block.find(START)
        while at >= 0:
            if at % ALIGNED == 0:
                yield start + at
            at = block.find(START, at + 1)
        start += len(block)


def _ends(heap: IO[bytes], end: int) -> bool:
    """Whether the objects from here on come to `end`. Their heads alone are read, whatever size they claim."""
    at = heap.tell()
    while at + OBJECT.size <= end:
        heap.seek(at)
        head = heap.read(OBJECT.size)
        if len(head) < OBJECT.size:
            return False
        index, _, _, size = OBJECT.unpack(head)
        # Index 0 is the room that is left, its head included.
        taken = size if index == 0 else OBJECT.size + -(-size // ALIGNED) * ALIGNED
        if not 0 < taken <= end - at:
            return False
        at += taken
    return True

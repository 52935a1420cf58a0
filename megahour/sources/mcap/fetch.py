"""Payloads of messages in any order, out of a file that may be larger than memory."""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Iterator
from typing import IO

import numpy as np
from numpy.typing import NDArray

from megahour.sources.mcap.scan import DamagedError, Scan, skip, unpacked
from megahour.sources.model import SourceError

MOST_OPEN = 4
"""Compressed chunks that are being unpacked at a time: messages of chunks that overlap alternate between them."""
MOST_HELD_BYTES = 32 << 20
"""Payloads that were met before their turn and wait for it; what is wanted of a chunk waits whole where it fits."""


def payloads(scan: Scan, wanted: NDArray[np.int64]) -> Iterator[bytes]:
    """The payloads of the messages `wanted`, indices into `scan`, each at most once, in their order.

    Compressed chunks are unpacked as a stream, each once where `wanted` is nearly in the order of the file; of the
    rest of the file only the payloads are read.

    Raises:
        SourceError: `unreadable` when the file is not what it was when it was scanned.
    """
    try:
        with scan.path.open("rb") as file:
            chunks = _Chunks(scan, wanted, file)
            for turn, message in enumerate(map(int, wanted)):
                if scan.chunk[message] >= 0:
                    yield chunks.payload(message, turn)
                    continue
                file.seek(int(scan.offset[message]))
                data = file.read(int(scan.size_bytes[message]))
                if len(data) != scan.size_bytes[message]:
                    raise DamagedError("ends too early")
                yield data
    except DamagedError as error:
        raise SourceError("unreadable", f"{scan.key} changed while it was read: a part of it {error}") from error


class _Chunks:
    """The compressed chunks of one pass: those open, and payloads that were met before their turn."""

    def __init__(self, scan: Scan, wanted: NDArray[np.int64], file: IO[bytes]) -> None:
        self._scan, self._file = scan, file
        self._turns = np.zeros(len(scan.channel), np.int64)
        self._turns[wanted] = np.arange(len(wanted))
        self._open: OrderedDict[int, _Stream] = OrderedDict()
        self._held: dict[int, bytes] = {}
        self._held_bytes = 0
        packed = wanted[scan.chunk[wanted] >= 0]
        packed = packed[np.lexsort((scan.offset[packed], scan.chunk[packed]))]
        numbers, starts = np.unique(scan.chunk[packed], return_index=True)
        self._members = dict(zip(numbers.tolist(), np.split(packed, starts[1:]), strict=True)) if len(packed) else {}

    def payload(self, message: int, turn: int) -> bytes:
        if message not in self._held:
            self._read(message, turn)
        data = self._held.pop(message)
        self._held_bytes -= len(data)
        return data

    def _read(self, message: int, turn: int) -> None:
        """Unpack a chunk as far as `message`, or all of it where there is room for what is still wanted of it."""
        number = int(self._scan.chunk[message])
        stream, members = self._open.pop(number, None), self._members[number]
        whole = False
        if stream is None or stream.at > self._scan.offset[message]:
            stream = _Stream(self._scan, number, members, self._file)
            whole = self._held_bytes + int(self._scan.size_bytes[members].sum()) <= MOST_HELD_BYTES
        for met, data in stream.messages:
            has_room = self._held_bytes + len(data) <= MOST_HELD_BYTES
            if met == message or (has_room and self._turns[met] > turn and met not in self._held):
                self._held[met] = data
                self._held_bytes += len(data)
            if met == message and not whole:
                self._open[number] = stream
                if len(self._open) > MOST_OPEN:
                    self._open.popitem(last=False)
                return
        if message not in self._held:
            raise DamagedError("is not where it was")


class _Stream:
    """A chunk being unpacked. `messages` are those of `members`, the wanted ones in it, in its order; `at` is where."""

    def __init__(self, scan: Scan, number: int, members: NDArray[np.int64], file: IO[bytes]) -> None:
        self.at = 0
        self.messages = self._go(scan, members, io.BufferedReader(unpacked(file, scan.packed[number]), 1 << 16))

    def _go(self, scan: Scan, members: NDArray[np.int64], data: IO[bytes]) -> Iterator[tuple[int, bytes]]:
        for met in map(int, members):
            offset, size = int(scan.offset[met]), int(scan.size_bytes[met])
            skip(data, offset - self.at)
            payload = data.read(size)
            self.at = offset + size
            if len(payload) != size:
                raise DamagedError("ends too early")
            yield met, payload

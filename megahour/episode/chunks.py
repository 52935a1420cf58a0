"""Where the records of an unpacked chunk or a summary lie, and the messages among them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from mcap.opcode import Opcode
from numpy.typing import NDArray

from megahour.episode.container import MESSAGE_HEAD, RECORD_HEAD
from megahour.episode.model import EpisodeError, TimesNs


@dataclass(frozen=True)
class ChunkMessages:
    """Messages of an unpacked chunk, `(n,)` each: channel, number, log time, and where their payload lies."""

    channels: NDArray[np.uint16]
    sequences: NDArray[np.uint32]
    times_ns: TimesNs
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


def records_in(data: bytes) -> Iterator[tuple[int, int, int]]:
    """The records of a chunk or a summary: opcode, where the body begins and ends. The last may end behind `data`."""
    unpack = struct.Struct("<BQ").unpack_from
    at = 0
    while at + RECORD_HEAD <= len(data):
        opcode, length = unpack(data, at)
        start = at + RECORD_HEAD
        at = start + length
        yield opcode, start, at


def chunk_messages(data: bytes) -> ChunkMessages:
    """The messages of an unpacked chunk, in their order.

    Raises:
        EpisodeError: `corrupt` when it does not consist of whole records.
    """
    places, end = [], 0
    for opcode, body, end in records_in(data):
        if opcode == Opcode.MESSAGE:
            if end < body - RECORD_HEAD + MESSAGE_HEAD:
                raise EpisodeError("corrupt", "A chunk has a message without a head")
            places.append((body - RECORD_HEAD, end))
    if end != len(data):
        raise EpisodeError("corrupt", "A chunk ends inside a record")
    starts, ends = np.array(places, np.int64).reshape(-1, 2).T
    # Behind a record's head: channel, sequence, log time, publish time.
    heads = np.frombuffer(data, np.uint8)[starts[:, None] + np.arange(RECORD_HEAD, MESSAGE_HEAD)]
    channels = np.ascontiguousarray(heads[:, 0:2]).view("<u2")[:, 0]
    sequences = np.ascontiguousarray(heads[:, 2:6]).view("<u4")[:, 0]
    times_ns = np.ascontiguousarray(heads[:, 6:14]).view("<i8")[:, 0]
    return ChunkMessages(channels, sequences, times_ns, starts + MESSAGE_HEAD, ends)

"""Where the messages of an unpacked chunk lie."""

from __future__ import annotations

import struct
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


def chunk_messages(data: bytes) -> ChunkMessages:
    """The messages of an unpacked chunk, in their order.

    Raises:
        EpisodeError: `corrupt` when it does not consist of whole records.
    """
    unpack = struct.Struct("<BQ").unpack_from
    places, at = [], 0
    while at < len(data):
        opcode, length = unpack(data, at) if at + RECORD_HEAD <= len(data) else (0, len(data))
        end = at + RECORD_HEAD + length
        if end > len(data) or (opcode == Opcode.MESSAGE and end < at + MESSAGE_HEAD):
            raise EpisodeError("corrupt", "A chunk ends inside a record")
        if opcode == Opcode.MESSAGE:
            places.append((at, end))
        at = end
    starts, ends = np.array(places, np.int64).reshape(-1, 2).T
    # Behind a record's head: channel, sequence, log time, publish time.
    heads = np.frombuffer(data, np.uint8)[starts[:, None] + np.arange(RECORD_HEAD, MESSAGE_HEAD)]
    channels = np.ascontiguousarray(heads[:, 0:2]).view("<u2")[:, 0]
    sequences = np.ascontiguousarray(heads[:, 2:6]).view("<u4")[:, 0]
    times_ns = np.ascontiguousarray(heads[:, 6:14]).view("<i8")[:, 0]
    return ChunkMessages(channels, sequences, times_ns, starts + MESSAGE_HEAD, ends)

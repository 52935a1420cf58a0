"""Series as `foxglove.JointStates` messages and back, whole columns at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from foxglove_schemas_protobuf.JointState_pb2 import JointState
from foxglove_schemas_protobuf.JointStates_pb2 import JointStates
from google.protobuf.timestamp_pb2 import Timestamp
from numpy.typing import NDArray

from megahour.episode.model import EpisodeError

SLICE_BYTES = 1024 * 1024
"""So much of a series is serialized at a time."""


@dataclass(frozen=True)
class _Layout:
    """The `joints` field of a message with these names: its bytes with positions 0.0, and where each position lies.

    `position` is an optional field, so it is written even when it is 0.0, and the field has one length for all rows.
    """

    template: NDArray[np.uint8]
    columns: NDArray[np.int64]


@lru_cache(maxsize=64)
def _layout(names: tuple[str, ...]) -> _Layout:
    ends, block = [], b""
    for name in names:
        block += JointStates(joints=[JointState(name=name, position=0.0)]).SerializeToString()
        ends.append(len(block))
    columns = np.array(ends, np.int64)[:, None] - 8 + np.arange(8)
    return _Layout(np.frombuffer(block, np.uint8), columns)


def timestamp(time_ns: int) -> Timestamp:
    """A time as protobuf writes it."""
    seconds, nanos = divmod(time_ns, 1_000_000_000)
    return Timestamp(seconds=seconds, nanos=nanos)


def to_messages(names: tuple[str, ...], times_ns: NDArray[np.int64], values: NDArray[np.floating]) -> Iterator[bytes]:
    """One serialized `JointStates` per row of `values` `(n, d)`. Positions are float64: exact for float32.

    No more than `SLICE_BYTES` of them are in memory at once.
    """
    layout = _layout(names)
    step = max(1, SLICE_BYTES // len(layout.template))
    for start in range(0, len(values), step):
        doubles = np.ascontiguousarray(values[start : start + step], "<f8")
        rows = np.tile(layout.template, (len(doubles), 1))
        rows[:, layout.columns.ravel()] = doubles.view(np.uint8).reshape(len(doubles), -1)
        for time_ns, row in zip(times_ns[start : start + step].tolist(), rows, strict=True):
            yield JointStates(timestamp=timestamp(time_ns)).SerializeToString() + row.tobytes()


def from_messages(
    names: tuple[str, ...], data: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The positions of serialized messages, which lie in `data` from `starts` to `ends` `(n,)`: `(n, d)` float64.

    Raises:
        EpisodeError: `corrupt` when a message does not hold exactly these joints.
    """
    layout = _layout(names)
    length = len(layout.template)
    if (ends - starts < length).any():
        raise EpisodeError("corrupt", "A message has fewer joints than its topic")
    # The joints are the end of a message; a gather by index would take five times as long.
    joined = b"".join([data[end - length : end] for end in ends.tolist()])
    rows = np.frombuffer(joined, np.uint8).reshape(-1, length).copy()
    columns = layout.columns.ravel()
    values: NDArray[np.float64] = np.ascontiguousarray(rows[:, columns]).view("<f8").reshape(-1, len(names))
    rows[:, columns] = 0
    if not (rows == layout.template).all():
        raise EpisodeError("corrupt", "A message has other joints than its topic")
    return values

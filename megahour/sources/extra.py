"""Extra topics out of columns and pictures: what an importer cannot map is kept, as messages that any tool reads."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.episode.model import ExtraMessage, ExtraTopic, TimesNs

ANY_JSON = b'{"type":"object","properties":{"value":{}},"required":["value"]}'


def json_topic(name: str) -> ExtraTopic:
    """A topic of messages `{"value": ...}`, for values that are no floats."""
    return ExtraTopic(name, "json", "megahour.Value", "jsonschema", ANY_JSON)


def json_messages(name: str, times_ns: TimesNs, values: Iterable[Any]) -> Iterator[ExtraMessage]:
    """One message per value. numpy values become plain, bytes text."""
    for time_ns, value in zip(times_ns.tolist(), values, strict=True):
        data = json.dumps({"value": value}, default=_plain, ensure_ascii=False, separators=(",", ":"))
        yield ExtraMessage(name, time_ns, data.encode())


def image_topic(name: str) -> ExtraTopic:
    """A topic of `foxglove.RawImage` messages, for depth and other pictures that are not colour."""
    from foxglove_schemas_protobuf.RawImage_pb2 import RawImage
    from mcap_protobuf.schema import build_file_descriptor_set

    schema = build_file_descriptor_set(RawImage).SerializeToString(deterministic=True)
    return ExtraTopic(name, "protobuf", "foxglove.RawImage", "protobuf", schema)


def image_messages(
    name: str, times_ns: TimesNs, pictures: Callable[[int], NDArray[Any]], encoding: str
) -> Iterator[ExtraMessage]:
    """One message per picture `(height, width[, channels])`; `encoding` is Foxglove's: `16UC1`, `32FC1`, `mono8`."""
    from foxglove_schemas_protobuf.RawImage_pb2 import RawImage
    from google.protobuf.timestamp_pb2 import Timestamp

    for i, time_ns in enumerate(times_ns.tolist()):
        picture = np.ascontiguousarray(pictures(i))
        picture = picture.astype(picture.dtype.newbyteorder("<"), copy=False)
        seconds, nanos = divmod(time_ns, 1_000_000_000)
        message = RawImage(
            timestamp=Timestamp(seconds=seconds, nanos=nanos),
            frame_id=name,
            width=picture.shape[1],
            height=picture.shape[0],
            encoding=encoding,
            step=picture.strides[0],
            data=picture.tobytes(),
        )
        yield ExtraMessage(name, time_ns, message.SerializeToString(deterministic=True))


def merged(passes: Sequence[Callable[[], Iterator[ExtraMessage]]]) -> Callable[[], Iterator[ExtraMessage]]:
    """One pass over the messages of several topics, in order of time."""

    def messages() -> Iterator[ExtraMessage]:
        yield from heapq.merge(*(each() for each in passes), key=lambda message: message.time_ns)

    return messages


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)

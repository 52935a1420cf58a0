"""Messages of ROS 2 (CDR), protobuf and JSON, and their fields by name, whatever the encoding."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mcap.records import Channel, Schema

Step = str | int | slice
"""A step of a field's path: a name, or a place or stretch of an array."""
Decode = Callable[[bytes], Any]

STAMPS = (("header", "stamp"), ("timestamp",), ("stamp",))
FRAME_IDS = (("header", "frame_id"), ("frame_id",))
SECONDS, NANOSECONDS = ("sec", "seconds", "secs"), ("nanosec", "nanos", "nsec", "nsecs", "nanoseconds")
MOST_EXACT = 2**53
"""Up to here every integer is a float64."""
READABLE = "cdr with ros2msg schemas, protobuf and json can be decoded"


class UndecodableError(Exception):
    """A message or its schema cannot be decoded; the text says why."""


class NoFieldError(Exception):
    """A message has not the field that was asked for, or it is no number; the text says what there is."""


def decoder(channel: Channel, schema: Schema | None) -> Decode:
    """A function from a payload of `channel` to its message.

    Raises:
        UndecodableError: the encoding is none of those known, or the schema is broken; the function raises it, too.
    """
    named = schema.encoding if schema else ""
    if channel.message_encoding == "json":
        return _json
    if schema is None or (channel.message_encoding, named) not in (("cdr", "ros2msg"), ("protobuf", "protobuf")):
        text = f"its messages are '{channel.message_encoding}' with a schema in '{named}'; {READABLE}"
        raise UndecodableError(text)
    try:
        decode = _ros2(channel, schema) if channel.message_encoding == "cdr" else _protobuf(channel, schema)
    except MemoryError:
        raise
    # Parsers of schemas raise errors of many kinds, their own among them.
    except Exception as error:
        raise UndecodableError(f"its schema {schema.name} cannot be used: {type(error).__name__}: {error}") from error
    if decode is None:
        raise UndecodableError(f"its schema {schema.name} cannot be used")
    return _guarded(decode)


def _ros2(channel: Channel, schema: Schema) -> Decode | None:
    from mcap_ros2.decoder import DecoderFactory

    decode: Decode | None = DecoderFactory().decoder_for(channel.message_encoding, schema)

    def checked(data: bytes) -> Any:
        # Plain CDR, version 1, alone: others align values in another way (OMG DDSI-RTPS 2.5, 10.5).
        if data[:2] not in (b"\0\0", b"\0\1"):
            raise UndecodableError(f"a message begins with {data[:2]!r}, and is no plain CDR")
        return decode(data) if decode else None

    return checked if decode else None


def _protobuf(channel: Channel, schema: Schema) -> Decode | None:
    from mcap_protobuf.decoder import DecoderFactory

    decode: Decode | None = DecoderFactory().decoder_for(channel.message_encoding, schema)
    return decode


def _json(data: bytes) -> Any:
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UndecodableError(f"a message is no JSON: {error}") from error
    if not isinstance(message, dict):
        raise UndecodableError(f"a message is a JSON {type(message).__name__}, not an object")
    return message


def _guarded(decode: Decode) -> Decode:
    def guarded(data: bytes) -> Any:
        try:
            return decode(data)
        except (MemoryError, UndecodableError):
            raise
        except Exception as error:
            raise UndecodableError(f"a message does not decode: {type(error).__name__}: {error}") from error

    return guarded


def names_of(value: Any) -> tuple[str, ...] | None:
    """The names of a message's fields; None for what is no message."""
    if isinstance(value, dict):
        return tuple(value)
    descriptor = getattr(value, "DESCRIPTOR", None)
    if descriptor is not None:
        return tuple(field.name for field in descriptor.fields)
    slots = getattr(type(value), "__slots__", None)
    return tuple(slots) if isinstance(slots, list) else None


def get(message: Any, name: str) -> Any:
    """A field of a message; None where it is there and not set.

    Raises:
        NoFieldError: it has no such field.
    """
    names = names_of(message)
    if names is None:
        raise NoFieldError(f"'{name}' is asked of what is no message, but {_what(message)}")
    if name not in names:
        raise NoFieldError(f"it has no field '{name}', only {', '.join(names) or 'none'}")
    if isinstance(message, dict):
        return message[name]
    descriptor = getattr(message, "DESCRIPTOR", None)
    if descriptor is not None and descriptor.fields_by_name[name].has_presence and not message.HasField(name):
        return None
    return getattr(message, name)


def find(message: Any, path: Sequence[Step]) -> Any:
    """What lies at `path` in a message; None where it is not set.

    Raises:
        NoFieldError: there is nothing like it.
    """
    value = message
    for step in path:
        if value is None:
            return None
        if isinstance(step, str):
            value = get(value, step)
            continue
        if not _is_array(value):
            raise NoFieldError(f"{step!r} is asked of what is no array, but {_what(value)}")
        if isinstance(step, slice) or step < len(value):
            value = value[step]
        else:
            raise NoFieldError(f"place {step} is asked of an array with {len(value)} entries")
    return value


def numbers(value: Any, name: str) -> Iterator[tuple[str, float]]:
    """All numbers in a value, each with its name: `name`, `name.x` in a message, `name_0` in an array.

    Texts are none, nor are bytes inside of messages.

    Raises:
        NoFieldError: a number is none that a float can be.
    """
    if value is None or isinstance(value, str):
        return
    if isinstance(value, bool | int | float):
        if isinstance(value, int) and abs(value) > MOST_EXACT and int(float(value)) != value:
            raise NoFieldError(f"'{name}' is {value}, which no float is exactly")
        yield name, float(value)
    elif _is_array(value):
        for place, each in enumerate(value):
            yield from numbers(each, f"{name}_{place}")
    else:
        for field in names_of(value) or ():
            if not isinstance(inner := get(value, field), bytes | memoryview):
                yield from numbers(inner, f"{name}.{field}" if name else field)


def bytes_of(value: Any) -> bytes:
    """The bytes of a field, which JSON writes in base64.

    Raises:
        UndecodableError: it holds none.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else bytes(value)
    except (TypeError, ValueError, binascii.Error) as error:
        raise UndecodableError(f"its data are no bytes: {error}") from error


def stamp_ns(message: Any) -> int | None:
    """The time that a message says itself, `header.stamp`, `timestamp` or `stamp`, in ns; None where it says none."""
    for path in STAMPS:
        try:
            stamp = find(message, path)
        except NoFieldError:
            continue
        names = names_of(stamp) or ()
        parts = [next((n for n in known if n in names), None) for known in (SECONDS, NANOSECONDS)]
        if all(parts):
            # A field that protobuf leaves out is 0.
            seconds, nanoseconds = (get(stamp, part) or 0 for part in parts if part)
            if isinstance(seconds, int) and isinstance(nanoseconds, int):
                return seconds * 1_000_000_000 + nanoseconds
    return None


def frame_id(message: Any) -> str:
    """The frame of reference that a message says its values are in; empty where it says none."""
    for path in FRAME_IDS:
        try:
            said = find(message, path)
        except NoFieldError:
            continue
        if said and isinstance(said, str):
            # JSON may hold halves of characters, which nothing can store.
            return said.encode(errors="backslashreplace").decode()
    return ""


def _is_array(value: Any) -> bool:
    return not isinstance(value, str | dict) and hasattr(value, "__len__") and hasattr(value, "__getitem__")


def _what(value: Any) -> str:
    return f"an array of {len(value)}" if _is_array(value) else f"{value!r}"[:60]

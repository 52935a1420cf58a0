"""`tf.train.Example`, without TensorFlow: a table of names and lists of bytes, floats or integers.

The message is public (tensorflow/core/example/example.proto and feature.proto): `Example.features = 1`, a map of names
to `Feature`, which is one of `bytes_list = 1`, `float_list = 2`, `int64_list = 3`, each with `value = 1` repeated.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.sources.model import SourceError

PACKAGE = "tensorflow"

Values = list[bytes] | NDArray[np.float32] | NDArray[np.int64]
"""The values of one name, flat."""


def parse_example(data: bytes, where: str) -> dict[str, Values]:
    """The table of one record.

    Raises:
        SourceError: `unreadable`; `where` names the record.
    """
    from google.protobuf.message import DecodeError

    example: Any = example_class()()
    try:
        example.ParseFromString(data)
    except DecodeError as error:
        raise SourceError("unreadable", f"{where} is no tf.train.Example: {error}") from error
    table: dict[str, Values] = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        if kind == "float_list":
            table[name] = np.array(feature.float_list.value, np.float32)
        elif kind == "int64_list":
            table[name] = np.array(feature.int64_list.value, np.int64)
        else:
            table[name] = list(feature.bytes_list.value)
    return table


@lru_cache(maxsize=1)
def example_class() -> Any:
    """The class of the message, in a pool of its own: TensorFlow may be loaded beside it."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="megahour/example.proto", package=PACKAGE, syntax="proto3")
    kinds = (("bytes_list", field.TYPE_BYTES), ("float_list", field.TYPE_FLOAT), ("int64_list", field.TYPE_INT64))
    for name, kind in kinds:
        values = file.message_type.add(name=_class_name(name))
        values.field.add(name="value", number=1, label=field.LABEL_REPEATED, type=kind)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, _) in enumerate(kinds, 1):
        feature.field.add(
            name=name,
            number=number,
            label=field.LABEL_OPTIONAL,
            type=field.TYPE_MESSAGE,
            type_name=f".{PACKAGE}.{_class_name(name)}",
            oneof_index=0,
        )
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=field.LABEL_OPTIONAL, type=field.TYPE_STRING)
    _add_message(entry, "value", 2, "Feature")
    _add_message(features, "feature", 1, "Features.FeatureEntry", field.LABEL_REPEATED)
    _add_message(file.message_type.add(name="Example"), "features", 1, "Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.Example"))


def _class_name(name: str) -> str:
    return {"bytes_list": "BytesList", "float_list": "FloatList", "int64_list": "Int64List"}[name]


def _add_message(owner: Any, name: str, number: int, kind: str, label: int = 1) -> None:
    owner.field.add(name=name, number=number, label=label, type=11, type_name=f".{PACKAGE}.{kind}")

"""`features.json` and `dataset_info.json` of TensorFlow Datasets: what the records of a dataset hold.

Both are protobuf messages as JSON (tensorflow_datasets/core/proto/feature.proto and dataset_info.proto): integers are
strings, an unknown dimension is -1. Older datasets write a feature as `{"type": ..., "content": ...}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from megahour.sources.model import SourceError

FEATURES, INFO = "features.json", "dataset_info.json"
STEPS = "steps"
KINDS = {
    "featuresDict": "dict",
    "sequence": "sequence",
    "dataset": "sequence",
    "optional": "optional",
    "tensor": "tensor",
    "scalar": "tensor",
    "boundingBox": "box",
    "bboxFeature": "box",
    "image": "image",
    "video": "video",
    "text": "text",
    "classLabel": "label",
    "audio": "tensor",
}
"""What kind of feature a field of a feature's message holds; older datasets name the class alike."""


@dataclass(frozen=True)
class Leaf:
    """One list of values in a record. `path` is its name below `steps`, or in the record where it is not per step.

    `shape` is that of one entry, None where it is not known before; `dtype` as TensorFlow Datasets calls it.
    `encoding` is `none`, or `bytes` or `zlib` of tensors that are stored as their bytes. `depth` counts the sequences
    that an entry is a member of, beside the steps.
    """

    path: str
    kind: Literal["tensor", "image", "text"]
    shape: tuple[int | None, ...] = ()
    dtype: str = ""
    encoding: str = "none"
    depth: int = 0
    optional: bool = False


@dataclass(frozen=True)
class Features:
    """The lists of a record: those with an entry per step, and those of the episode."""

    steps: tuple[Leaf, ...]
    episode: tuple[Leaf, ...]


@dataclass(frozen=True)
class Info:
    """What `dataset_info.json` says, if it is there. `shards` are the lengths of the shards of each split."""

    name: str = ""
    version: str = ""
    shards: Mapping[str, tuple[int, ...]] | None = None

    def split(self, key: str) -> str:
        """The split a shard belongs to: `train` of `bridge-train.tfrecord-00000-of-00001`."""
        found = re.search(r"-([A-Za-z0-9_.]+?)\.\w+(\.gz)?(-\d+-of-\d+)?$", key)
        return found[1] if found else ""

    def shard_length(self, key: str) -> int | None:
        """The number of episodes that a shard should hold, where it is said."""
        found = re.search(r"-(\d+)-of-(\d+)$", key)
        lengths = (self.shards or {}).get(self.split(key), ())
        if not found or len(lengths) != int(found[2]) or int(found[1]) >= len(lengths):
            return None
        return lengths[int(found[1])]


def parse_features(text: bytes, key: str) -> Features:
    """The lists of a record, from the bytes of a `features.json`.

    Raises:
        SourceError: `unreadable`, or `unknown_format` when the dataset has no steps.
    """
    try:
        leaves = list(_leaves(json.loads(text), (), 0, False))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise SourceError(
            "unreadable", f"{key} cannot be used: {type(error).__name__}: {error}. Copy it again from the dataset"
        ) from error
    prefix = f"{STEPS}/"
    steps = [leaf for leaf in leaves if leaf.path.startswith(prefix) and leaf.depth > 0]
    if not steps:
        raise SourceError(
            "unknown_format", f"{key} describes no `{STEPS}`: the dataset is none of episodes, as RLDS has them"
        )
    below = [Leaf(**{**vars(leaf), "path": leaf.path.removeprefix(prefix), "depth": leaf.depth - 1}) for leaf in steps]
    return Features(tuple(below), tuple(leaf for leaf in leaves if leaf not in steps))


def parse_info(text: bytes) -> Info:
    """What a `dataset_info.json` says that can be understood."""
    try:
        said = json.loads(text)
        shards = {
            str(split["name"]): tuple(int(length) for length in split.get("shardLengths", ()))
            for split in said.get("splits", ())
        }
        return Info(str(said.get("name", "")), str(said.get("version", "")), shards)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return Info()


def canonical(text: bytes) -> str:
    """The same text for the same features, however they are written; as they are when they cannot be read."""
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return text.decode(errors="replace")


def _leaves(node: Mapping[str, Any], path: tuple[str, ...], depth: int, optional: bool) -> Iterator[Leaf]:
    kind, body = _kind(node)
    name = "/".join(path)
    if kind == "dict":
        for member, feature in sorted(body["features"].items()):
            yield from _leaves(feature, (*path, member), depth, optional)
    elif kind in ("sequence", "optional"):
        yield from _leaves(body["feature"], path, depth + (kind == "sequence"), optional or kind == "optional")
    elif kind == "text":
        yield Leaf(name, "text", depth=depth, optional=optional)
    elif kind in ("image", "video"):
        shape = _shape(body) or (None, None, 3)
        deeper = depth + (kind == "video")
        yield Leaf(name, "image", shape[-3:], body.get("dtype") or "uint8", depth=deeper, optional=optional)
    elif kind == "label":
        yield Leaf(name, "tensor", (), "int64", depth=depth, optional=optional)
    elif kind == "box":
        yield Leaf(name, "tensor", _shape(body) or (4,), body.get("dtype") or "float32", depth=depth, optional=optional)
    else:
        dtype = _dtype(body["dtype"])
        encoding = str(body.get("encoding") or "none").lower()
        is_text = dtype in ("string", "object", "str", "bytes")
        yield Leaf(
            name,
            "text" if is_text else "tensor",
            _shape(body),
            "" if is_text else dtype,
            encoding,
            depth,
            optional or bool(body.get("optional")),
        )


def _kind(node: Mapping[str, Any]) -> tuple[str, Any]:
    """What a feature is, and what is said of it."""
    if "content" in node:
        content = node["content"]
        class_name = str(node["type"]).rsplit(".", 1)[-1]
        found = {field.lower(): kind for field, kind in KINDS.items()}.get(class_name.lower())
        if found is not None:
            return found, json.loads(content) if isinstance(content, str) else content or {}
        raise ValueError(f"a feature of the type {node['type']} is not known")
    for field, kind in KINDS.items():
        if field in node:
            return kind, node[field]
    raise ValueError(f"a feature of the class {node.get('pythonClassName')} is not known")


def _shape(body: Mapping[str, Any]) -> tuple[int | None, ...]:
    said = body.get("shape") or ()
    dimensions = said.get("dimensions", ()) if isinstance(said, dict) else said
    return tuple(None if n is None or int(n) < 0 else int(n) for n in dimensions)


def _dtype(said: Any) -> str:
    return str(said).removeprefix("tf.").removeprefix("np.")

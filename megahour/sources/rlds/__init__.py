"""RLDS and Open X-Embodiment datasets: shards of TFRecord beside a `features.json`, as TensorFlow Datasets has them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from megahour.episode.model import RawEpisode
from megahour.sources.content import content_of
from megahour.sources.model import Identity, Recording, SourceError, source_of
from megahour.sources.options import read_options
from megahour.sources.rlds.episode import episode
from megahour.sources.rlds.example import parse_example
from megahour.sources.rlds.features import FEATURES, INFO, canonical, parse_features, parse_info
from megahour.sources.rlds.tfrecord import count_records, records

if TYPE_CHECKING:
    from megahour.storage import FileRef

FORMATS: tuple[str, ...] = ("rlds",)
SHARD = re.compile(r"\.tfrecord(-\d+-of-\d+)?$")
OTHER_SHARD = re.compile(r"\.(array_record|riegeli|tfrecord\.gz)(-\d+-of-\d+)?$")
"""Shards in other containers of TensorFlow Datasets."""


def find(files: Mapping[str, FileRef], read: Callable[[str], bytes]) -> list[Recording]:
    """Every shard is a recording, together with what its folder says of it.

    A shard without `features.json` is one too: so it is held, and not passed over.
    """
    found = []
    for key, file in files.items():
        folder = key.rpartition("/")[0]
        described = f"{folder}/{FEATURES}" in files
        if not SHARD.search(key) and not (described and OTHER_SHARD.search(key)):
            continue
        beside = [f"{folder}/{name}" for name in (FEATURES, INFO)]
        found.append(
            Recording(
                uri=key,
                format=FORMATS[0],
                source=source_of(key),
                files=(file, *(files[each] for each in beside if each in files)),
                missing=() if described else (beside[0],),
                own_bytes=file.size_bytes,
            )
        )
    return found


def read(recording: Recording, local: Callable[[str], Path]) -> Iterator[RawEpisode]:
    """The episodes of a shard, one per record, as `megahour.sources.rlds.episode` makes them.

    Raises:
        SourceError: `missing_file`, `unknown_format`, `truncated`, `corrupt`, `unreadable`, `missing_feature`,
            `feature_mismatch` or `empty`. It names the record, and the shard is refused whole.
    """
    key = recording.files[0].key
    if recording.missing:
        raise SourceError(
            "missing_file",
            f"{key} cannot be imported: {recording.missing[0]} is missing, and without it nobody knows what its "
            "records hold. Copy the dataset's features.json beside its shards",
        )
    if not SHARD.search(key):
        raise SourceError("unknown_format", f"{key} cannot be imported: of RLDS shards Megahour reads TFRecord files")
    options = read_options(recording, local)
    features_key = recording.files[1].key
    features = parse_features(local(features_key).read_bytes(), features_key)
    info = parse_info(_info(recording, local))
    path = local(key)
    held, declared = count_records(path, key), info.shard_length(key)
    if declared is not None and held < declared:
        raise SourceError(
            "truncated",
            f"{key} is cut short: it holds {held} episodes, and {INFO} says {declared}. "
            "Copy it again from where it was made",
        )
    for index, record in enumerate(records(path, key)):
        where = f"{key}: record {index}"
        yield episode(parse_example(record, where), index, features, info, options, key, where)


def identity(recording: Recording, local: Callable[[str], Path]) -> Identity | None:
    """The shard's bytes; what its records hold, and the dataset's name and version. A further shard changes nothing."""
    said = b""
    if not recording.missing:
        info = parse_info(_info(recording, local))
        features = canonical(local(recording.files[1].key).read_bytes())
        said = f"{features}\n{info.name}\n{info.version}".encode(errors="replace")
    return Identity(content_of(recording.files[:1], local), said)


def _info(recording: Recording, local: Callable[[str], Path]) -> bytes:
    return local(recording.files[2].key).read_bytes() if len(recording.files) > 2 else b""

"""`source.yaml`: what a person says about a source that its files do not say themselves."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from megahour.sources.model import Recording, SourceError

NAME = "source.yaml"


@dataclass(frozen=True)
class Options:
    """What `landing/<source>/source.yaml` may say; it holds for every recording below that folder.

    `robot`, `task` and `rate_hz` stand in where a recording says nothing. `jpeg_order` is the order of colours in the
    JPEG pictures of HDF5 files, `rgb` or `bgr`. `topics` maps topics of MCAP files; that importer says what it holds.
    """

    robot: str | None = None
    task: str | None = None
    rate_hz: float | None = None
    jpeg_order: str | None = None
    topics: Mapping[str, Any] = field(default_factory=dict)


NOTHING = Options()


def read_options(recording: Recording, local: Callable[[str], Path]) -> Options:
    """The options of a recording; all defaults without a file.

    Raises:
        SourceError: `options` when the file says what cannot be.
    """
    if recording.options is None:
        return NOTHING
    return parse_options(local(recording.options.key).read_bytes(), recording.options.key)


def parse_options(text: bytes, key: str) -> Options:
    """Options from the bytes of a `source.yaml`.

    Raises:
        SourceError: `options`.
    """
    import yaml

    try:
        said = yaml.safe_load(text.decode()) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SourceError("options", f"{key} is no YAML: {error}") from error
    if not isinstance(said, dict):
        raise SourceError("options", f"{key} must be a table of names and values, and is a {type(said).__name__}")
    known = {each.name for each in fields(Options)}
    if unknown := sorted(str(name) for name in said if name not in known):
        raise SourceError("options", f"{key} says {', '.join(unknown)}; it may say {', '.join(sorted(known))}")
    for name in ("robot", "task", "jpeg_order"):
        if name in said and not isinstance(said[name], str):
            raise SourceError("options", f"{key}: {name} must be text, and is {said[name]!r}")
    if said.get("jpeg_order", "rgb") not in ("rgb", "bgr"):
        raise SourceError("options", f"{key}: jpeg_order must be rgb or bgr, and is {said['jpeg_order']}")
    rate_hz = said.get("rate_hz", 1.0)
    if isinstance(rate_hz, bool) or not isinstance(rate_hz, int | float) or not 0.001 <= rate_hz <= 1e6:
        raise SourceError("options", f"{key}: rate_hz must be a number from 0.001 to 1000000, and is {rate_hz!r}")
    if not isinstance(said.get("topics", {}), dict):
        raise SourceError("options", f"{key}: topics must be a table of topics, and is {said['topics']!r}")
    return Options(**said)


def canonical(text: bytes) -> str:
    """The same text for the same options, however they are written; as they are when they cannot be read."""
    import yaml

    try:
        return json.dumps(yaml.safe_load(text), sort_keys=True, default=str)
    except yaml.YAMLError:
        return text.decode(errors="replace")

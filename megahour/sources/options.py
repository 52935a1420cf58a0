"""`source.yaml`: what a person says about a source that its files do not say themselves."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from megahour.sources.model import Recording, SourceError

NAME = "source.yaml"
MOST_SHOWN_CHARS = 200


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


def options_key(source: str) -> str:
    """Where the options of a source lie."""
    return f"landing/{source}/{NAME}"


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
    from megahour.sources.plain_yaml import load

    try:
        said = load(text)
    except ValueError as error:
        raise SourceError("options", f"{key} {error}") from error
    said = {} if said is None else said
    if not isinstance(said, dict):
        raise SourceError("options", f"{key} must be a table of names and values, and is a {type(said).__name__}")
    known = {each.name for each in fields(Options)}
    if unknown := sorted(name for name in said if name not in known):
        found = ", ".join(unknown)[:MOST_SHOWN_CHARS]
        raise SourceError("options", f"{key} says {found}; it may say {', '.join(sorted(known))}")
    for name in ("robot", "task", "jpeg_order"):
        if name in said and not isinstance(said[name], str):
            raise SourceError("options", f"{key}: {name} must be text, and is {shown(said[name])}")
    if said.get("jpeg_order", "rgb") not in ("rgb", "bgr"):
        raise SourceError("options", f"{key}: jpeg_order must be rgb or bgr, and is {shown(said['jpeg_order'])}")
    rate_hz = said.get("rate_hz", 1.0)
    if isinstance(rate_hz, bool) or not isinstance(rate_hz, int | float) or not 0.001 <= rate_hz <= 1e6:
        raise SourceError("options", f"{key}: rate_hz must be a number from 0.001 to 1000000, and is {shown(rate_hz)}")
    if not isinstance(said.get("topics", {}), dict):
        raise SourceError("options", f"{key}: topics must be a table of topics, and is {shown(said['topics'])}")
    return Options(**said)


def shown(value: Any) -> str:
    """A value for a message, not at any length."""
    text = repr(value)
    return text if len(text) <= MOST_SHOWN_CHARS else f"{text[:MOST_SHOWN_CHARS]}..."


def canonical(text: bytes) -> str:
    """The same text for the same options, however they are written; as they are when they cannot be read."""
    from megahour.sources.plain_yaml import load

    try:
        return json.dumps(load(text), sort_keys=True)
    except ValueError:
        return text.decode(errors="replace")

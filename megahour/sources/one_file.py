"""Recordings that are a file each, known by how its name ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from megahour.sources.model import Recording, source_of

if TYPE_CHECKING:
    from megahour.storage import FileRef


def find_by_suffix(files: Mapping[str, FileRef], form: str, suffixes: tuple[str, ...]) -> list[Recording]:
    """The files whose names end in one of `suffixes`, small or large, as recordings of the format `form`."""
    return [
        Recording(key, form, source_of(key), (file,)) for key, file in files.items() if key.lower().endswith(suffixes)
    ]

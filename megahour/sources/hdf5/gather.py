"""What lies in an HDF5 file beside the parts that a layout names, gathered into an episode: nothing vanishes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from megahour.sources.hdf5.file import Dataset, Survey, column, entries
from megahour.sources.steps import Gathered, add_column, add_said, as_text, blank_note

if TYPE_CHECKING:
    import h5py

MOST_KEPT_BYTES = 4 * 1024 * 1024
"""Arrays that are not per step are kept up to this."""


def add_dataset(
    into: Gathered, file: h5py.File, path: Path, key: str, dataset: Dataset, name: str, lengths: tuple[int, ...]
) -> None:
    """A dataset of any kind: with one of `lengths` entries it is per step, otherwise it holds for the whole episode.

    Raises:
        SourceError: `unreadable`.
    """
    if dataset.shape is None:
        into.note("left_out", f"/{dataset.path} left out: it is empty")
    elif dataset.length in lengths:
        add_column(into, column(path, key, dataset, len(into.times_ns), name))
    elif dataset.dtype.itemsize * int(np.prod(dataset.shape)) > MOST_KEPT_BYTES:
        into.note("left_out", f"/{dataset.path} left out: {dataset.dtype} {dataset.shape} has not an entry per step")
    else:
        add_said(into, name, entries(file, key, dataset, ()))


def add_facts(into: Gathered, found: Survey, below: str = "", without: tuple[str, ...] = ()) -> None:
    """Attributes, second names of the same object, and what could not be used; paths are given from `below` on.

    `without` are attributes that the layout reads itself.
    """
    for place, said in found.attributes.items():
        if place not in without:
            add_said(into, _from(place, below), said)
    for alias, original in found.aliases.items():
        into.attributes[_from(alias, below)] = f"the same as /{original}"
    for place, why in found.unusable.items():
        into.note("left_out", f"/{place} left out: {why}")


def note_blank_cameras(into: Gathered) -> None:
    """Note the cameras that show one colour throughout. They stay: a camera that failed is a fact about the episode.

    Raises:
        SourceError: a picture cannot be read.
    """
    for camera in into.cameras:
        blank = blank_note(camera)
        if blank is not None:
            into.note("blank_camera", blank)


def text_of(said: Any) -> str:
    """An attribute as text, without the spaces around it."""
    return as_text(said).strip()


def _from(place: str, below: str) -> str:
    return place.removeprefix(f"{below}/") if below else place

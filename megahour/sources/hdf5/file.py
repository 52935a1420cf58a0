"""An HDF5 file as plain data: what lies in it, entry by entry, and nothing that lies outside of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from megahour.sources.model import SourceError
from megahour.sources.steps import Column

if TYPE_CHECKING:
    import h5py

BROKEN = (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError, IndexError, OverflowError)
"""What h5py raises for bytes that are damaged, depending on where they lie."""
BLOCK_BYTES = 32 * 1024 * 1024
"""Entries are read in blocks of at most this, for a stored chunk is unpacked anew at each read."""
LEAST_BLOCK_BYTES = 256 * 1024
MOST_DEPTH = 32


@dataclass(frozen=True)
class Dataset:
    """An array of a file. `path` has no slash in front; `shape` is None where it holds nothing at all.

    `chunk` is the number of entries that are stored together.
    """

    path: str
    shape: tuple[int, ...] | None
    dtype: np.dtype[Any]
    chunk: int

    @property
    def length(self) -> int:
        """The number of entries; -1 when it is no array of entries."""
        return self.shape[0] if self.shape else -1


@dataclass
class Survey:
    """What lies below a group, by path: arrays, groups, attributes (`<path>/<name>`), and other names of the same.

    `unusable` are links to nothing and values of types that nobody reads, with the reason.
    """

    datasets: dict[str, Dataset] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)
    attributes: dict[str, Any] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    unusable: dict[str, str] = field(default_factory=dict)

    def call(self, path: str, keep: Collection[str]) -> None:
        """Call the array that has this second name by it, and no more by its first, unless that is among `keep`."""
        original = self.aliases.get(path, "")
        if original in self.datasets:
            self.datasets[path] = replace(self.datasets[original], path=path)
            del self.aliases[path]
            if original not in keep:
                del self.datasets[original]
                self.aliases[original] = path

    def below(self, group: str) -> dict[str, Dataset]:
        """The arrays below a group, by their paths from there."""
        head = f"{group}/"
        return {path.removeprefix(head): each for path, each in self.datasets.items() if path.startswith(head)}


@contextmanager
def opened(path: Path, key: str) -> Iterator[h5py.File]:
    """An open file; whatever goes wrong with its bytes while it is open is a `SourceError`.

    Raises:
        SourceError: `truncated` or `unreadable`.
    """
    import h5py

    try:
        file = h5py.File(path, "r")
    except OSError as error:
        if "truncated file" in str(error):
            raise SourceError(
                "truncated",
                f"{key} is cut short: it has {path.stat().st_size} bytes, fewer than it says itself. "
                f"Copy it again from where it was recorded ({error})",
            ) from error
        if path.stat().st_size == 0:
            raise SourceError(
                "truncated", f"{key} is an empty file. Copy it again from where it was recorded"
            ) from error
        text = str(error).replace(str(path), key)
        raise SourceError("unreadable", f"{key} cannot be read as HDF5: {text}. Record it again") from error
    with file:
        yield file


def children(file: h5py.File, key: str, group: str) -> tuple[list[str], list[str]]:
    """The names of the groups in a group, and of what else it holds.

    Raises:
        SourceError: `external` or `unreadable`.
    """
    import h5py

    with _asking(key, group):
        node = file[f"/{group}"]
        members = _members(node, group, key)
        found: tuple[list[str], list[str]] = [], []
        for name, is_soft in members:
            try:
                kind = node.get(name, getclass=True)
            except (KeyError, RuntimeError):
                if not is_soft:
                    raise
                kind = None
            found[kind is not h5py.Group].append(name)
    return found


def survey(file: h5py.File, key: str, group: str = "", without: frozenset[str] = frozenset()) -> Survey:
    """What lies in a group and below it; `without` are paths to pass over.

    Raises:
        SourceError: `external` when something in it lies in another file, `unreadable` when bytes are damaged.
    """
    found, seen = Survey(), dict[tuple[int, int], str]()
    home = 0

    def enter(path: str, node: Any, depth: int) -> None:
        import h5py

        place = _place(node)
        if place[0] != home:
            raise _outside(key, path, "another file")
        if place in seen:
            found.aliases[path] = seen[place]
            return
        seen[place] = path
        _gather_attributes(found, path, node)
        if isinstance(node, h5py.Dataset):
            _gather_dataset(found, path, node, key)
        elif isinstance(node, h5py.Group):
            found.groups.add(path)
            if depth > MOST_DEPTH:
                raise SourceError("unreadable", f"{key}: /{path} lies {depth} groups deep: the file is damaged")
            members = _members(node, path, key)
            # Hard links first: what has two names goes by the one that is its own.
            for name, is_soft in sorted(members, key=lambda member: member[1]):
                below = f"{path}/{name}" if path else name
                if below in without:
                    continue
                try:
                    member = node[name]
                except KeyError:
                    if not is_soft:
                        raise
                    found.unusable[below] = "a link to nothing"
                    continue
                enter(below, member, depth + 1)

    with _asking(key, group):
        home = _place(file)[0]
        enter(group, file[f"/{group}"], 0)
    return found


def column(path: Path, key: str, dataset: Dataset, steps: int, name: str = "", pictured: bool = False) -> Column:
    """A dataset's first `steps` entries, read anew in each pass. `name` is its path by default.

    Raises:
        SourceError: its readers, `unreadable`.
    """
    shape = (dataset.shape or ())[1:]

    def rows() -> Iterator[Any]:
        width = max(1, dataset.dtype.itemsize * int(np.prod(shape)))
        block = max(1, min(max(dataset.chunk, LEAST_BLOCK_BYTES // width), BLOCK_BYTES // width))
        with opened(path, key) as file:
            for start in range(0, steps, block):
                yield from entries(file, key, dataset, slice(start, min(steps, start + block)))

    def whole() -> NDArray[Any]:
        with opened(path, key) as file:
            return np.asarray(entries(file, key, dataset, slice(0, steps)))

    return Column(name or dataset.path, f"{key}: /{dataset.path}", shape, dataset.dtype, rows, whole, pictured)


def entries(file: h5py.File, key: str, dataset: Dataset, where: slice | tuple[()]) -> Any:
    """Entries of a dataset; with `()` all of it, also of one that is a single value.

    Raises:
        SourceError: `unreadable`.
    """
    try:
        return file[f"/{dataset.path}"][where]
    except BROKEN as error:
        raise SourceError("unreadable", f"{key}: /{dataset.path} is damaged and cannot be read: {error}") from error


@contextmanager
def _asking(key: str, group: str) -> Iterator[None]:
    try:
        yield
    except BROKEN as error:
        text = f"{key}: what lies below /{group} cannot be read: {type(error).__name__}: {error}. Record it again"
        raise SourceError("unreadable", text) from error


def _members(node: h5py.Group, path: str, key: str) -> list[tuple[str, bool]]:
    """Names in a group, and whether each is a soft link. No link is followed."""
    import h5py

    found = []
    for name in node:
        if not _is_text(name):
            raise SourceError("unreadable", f"{key}: a name in /{path} is no UTF-8 text: {name!a}. Rename it")
        link = node.get(name, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            raise _outside(key, f"{path}/{name}" if path else name, str(link.filename))
        found.append((name, isinstance(link, h5py.SoftLink)))
    return found


def _is_text(name: Any) -> bool:
    """Whether h5py could decode a name; others are bytes."""
    return isinstance(name, str) and name.encode(errors="replace").decode() == name


def _place(node: Any) -> tuple[int, int]:
    """Which object of which open file a node is."""
    import h5py

    info = h5py.h5o.get_info(node.id)
    return int(info.fileno), int(info.addr)


def _outside(key: str, path: str, where: str) -> SourceError:
    return SourceError(
        "external",
        f"{key}: /{path} lies in another file, {where}: a recording must hold all its data itself, or a change there "
        "would go unseen. Copy it with its links resolved",
    )


def _gather_dataset(found: Survey, path: str, node: h5py.Dataset, key: str) -> None:
    if node.external:
        raise _outside(key, path, str(node.external[0][0]))
    if node.is_virtual:
        for source in node.virtual_sources():
            if source.file_name != ".":
                raise _outside(key, path, source.file_name)
    try:
        dtype = node.dtype
    except TypeError as error:
        found.unusable[path] = f"of a type that numpy has not: {error}"
        return
    shape = None if node.shape is None else tuple(int(n) for n in node.shape)
    found.datasets[path] = Dataset(path, shape, dtype, int(node.chunks[0]) if node.chunks else 1)


def _gather_attributes(found: Survey, path: str, node: Any) -> None:
    import h5py

    for name in node.attrs:
        place = f"{path}/{name}" if path else str(name)
        if not _is_text(name):
            found.unusable[ascii(place)] = "an attribute whose name is no UTF-8 text"
            continue
        # Of a damaged type the library does not come back: lists of lists are no attributes that anybody writes.
        if h5py.h5a.open(node.id, name.encode()).get_type().get_class() == h5py.h5t.VLEN:
            found.unusable[place] = "an attribute that is a list of lists"
            continue
        try:
            said = node.attrs[name]
        except (TypeError, OSError) as error:
            found.unusable[place] = f"an attribute of a type that numpy has not: {error}"
            continue
        if isinstance(said, h5py.Empty):
            continue
        if _holds_references(said):
            found.unusable[place] = "an attribute that refers to other objects of the file"
            continue
        found.attributes[place] = said.decode("utf-8", "replace") if isinstance(said, bytes) else said


def _holds_references(said: Any) -> bool:
    import h5py

    if isinstance(said, h5py.Reference | h5py.RegionReference):
        return True
    dtype = getattr(said, "dtype", None)
    if dtype is None:
        return False
    inner = [dtype, *(dtype[name] for name in dtype.names or ())]
    return any(h5py.check_ref_dtype(each) is not None for each in inner)

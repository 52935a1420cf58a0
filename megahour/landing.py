"""Copies recordings into the landing zone, where the pipeline finds them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from megahour.sources.options import NAME, options_key
from megahour.storage import KEY_RULE, Lake, head, is_key, put_file

_SOURCE = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*$")


class LandingError(ValueError):
    """Recordings cannot land; the message names the file and what to do."""


@dataclass(frozen=True)
class Arrival:
    """A file on its way: from `path` to the lake's `key`. `copied` is false while it is not, or was there before."""

    path: Path
    key: str
    size_bytes: int
    copied: bool = False


def plan_landing(src: Path, source: str | None = None) -> list[Arrival]:
    """Which files land where.

    A folder lands as `landing/<folder>/...`, or with a source as `landing/<source>/<folder>/...`; a file as
    `landing/<source>/<file>`, the source being its folder's name by default. Hidden files and `*.tmp` stay. The
    source's `source.yaml` comes first, for it says how to read the others, and a dataset's `meta/info.json` last: it is
    what makes the files around it a dataset.

    Raises:
        LandingError: there is nothing at `src`, the source cannot be a folder's name, a file's name cannot be kept, or
            a `source.yaml` would land where nobody reads it.
    """
    # Not `resolve`: of a link to a file, the link's name says what the file is.
    src = src.expanduser()
    src = src.parent.resolve() / src.name if src.name not in ("", "..") else src.resolve()
    if not src.exists():
        raise LandingError(f"There is nothing at {src}")
    folder = src if src.is_dir() else src.parent
    name = source or folder.name
    if not _SOURCE.match(name) or name.endswith(".tmp"):
        raise LandingError(
            f"{name!r} cannot be a source: give --source a name of letters, digits, '.', '_' and '-' that does not end "
            "in '.tmp'"
        )
    inside = f"{folder.name}/" if source and source != folder.name and src.is_dir() else ""
    paths = [src] if src.is_file() else [path for path in src.rglob("*") if path.is_file()]
    found = [
        Arrival(path, f"landing/{name}/{inside}{path.relative_to(folder).as_posix()}", path.stat().st_size)
        for path in paths
        if not _passed_over(path.relative_to(folder))
    ]
    if inside and _passed_over(Path(inside)):
        raise LandingError(f"{folder} is hidden or unfinished by its name, and would be passed over: rename it")
    if not found:
        raise LandingError(f"There are no files in {src}")
    if unusable := [arrival.path for arrival in found if not is_key(arrival.key)]:
        raise LandingError(
            f"Nothing was copied: {str(unusable[0])!r} has a name that no lake keeps"
            f"{f', and {len(unusable) - 1} more have' if len(unusable) > 1 else ''}. Rename it. {KEY_RULE}"
        )
    options = options_key(name)
    if astray := [arrival for arrival in found if Path(arrival.key).name == NAME and arrival.key != options]:
        raise LandingError(
            f"Nothing was copied: {astray[0].path} would land as {astray[0].key}, and a source's {NAME} is read "
            f"from {options} alone. Land it by itself, `megahour land {astray[0].path} --source {name}`, then move it "
            "out of the folder, and land that"
        )
    return sorted(found, key=lambda arrival: (arrival.key != options, _makes_a_dataset(arrival.key), arrival.key))


def land(lake: Lake, arrivals: Iterable[Arrival]) -> Iterator[Arrival]:
    """Copy files in the order given, and yield each when it has landed. A file that is there already is left alone.

    Raises:
        LandingError: another file is stored under a key, or a file cannot be read or written.
    """
    for arrival in arrivals:
        try:
            there = head(lake, arrival.key) is not None
            put_file(lake, arrival.key, arrival.path)
        except FileExistsError as error:
            raise LandingError(
                f"{arrival.path} differs from what landed before as {arrival.key}, and what landed never changes. "
                "Land it under another --source"
            ) from error
        except OSError as error:
            raise LandingError(
                f"{arrival.path} could not be copied to {lake.url(arrival.key)}: {error.strerror or error}. "
                "What landed before it stays; repair that and land the same again"
            ) from error
        yield Arrival(arrival.path, arrival.key, arrival.size_bytes, copied=not there)


def _makes_a_dataset(key: str) -> bool:
    return key.endswith("meta/info.json")


def _passed_over(path: Path) -> bool:
    return any(part.startswith(".") or part.endswith(".tmp") for part in path.parts)

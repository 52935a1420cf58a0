"""What was found in the landing zone, and what may be wrong with it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from megahour.errors import DataError

if TYPE_CHECKING:
    from megahour.storage import FileRef


class SourceError(DataError):
    """A recording cannot be imported. `reason` is a code for machines, the text a sentence for people.

    Reasons: `truncated`, `unreadable`, `missing_video`, `missing_file`, `frame_count`, `missing_feature`,
    `feature_mismatch`, `empty`, `times`, `unknown_format`, `options`, `corrupt`, `external`.
    Of videos also: `no_video`, `unsupported`, `no_keyframe`, `no_parameter_sets`, `damaged_frame`,
    `dropped_frames`, `frame_size`.
    """


@dataclass(frozen=True)
class Recording:
    """One thing to ingest: the files that belong together, and the keys of those that should be there and are not.

    `uri` names it inside the lake: the key of its file, or `<dataset>#episode=<n>`. `source` is the folder of
    `landing/` it lies in. `options` is that folder's `source.yaml`, where there is one: how to read what files do not
    say themselves. `own_bytes` is set where recordings share files: its part of them.

    `beside` are files that speak of it and of others too, and `said` is a digest of what they say of it alone: a
    dataset that grows rewrites them, and says the same of the episodes it had.
    """

    uri: str
    format: str
    source: str
    files: tuple[FileRef, ...]
    missing: tuple[str, ...] = ()
    options: FileRef | None = None
    own_bytes: int | None = None
    beside: tuple[FileRef, ...] = ()
    said: str = ""

    @property
    def place(self) -> str:
        """Its part of files that it shares, `episode=3`; empty where they are its own."""
        return self.uri.partition("#")[2]

    @property
    def folder(self) -> str:
        """The folder below which all its files lie, with a slash at the end."""
        name = self.uri.partition("#")[0]
        is_file = any(file.key == name for file in self.files)
        return f"{name.rpartition('/')[0] if is_file else name}/"

    @property
    def size_bytes(self) -> int:
        """Bytes of all its files, or its part of files it shares."""
        return sum(file.size_bytes for file in self.files) if self.own_bytes is None else self.own_bytes

    @property
    def fingerprint(self) -> str:
        """Changes when a file comes, goes or changes, and when other things are said of it: 32 hexadecimal digits."""
        digest = hashlib.sha256()
        for file in (*self.files, *((self.options,) if self.options else ())):
            digest.update(f"{file.key}\0{file.size_bytes}\0{file.etag}\n".encode())
        for key in self.missing:
            digest.update(f"{key}\0missing\n".encode())
        if self.said:
            digest.update(f"{self.said}\0said\n".encode())
        return digest.hexdigest()[:32]


@dataclass(frozen=True)
class Identity:
    """What makes a recording what it is: `content` is what was recorded, `said` what is said of it, and may change."""

    content: bytes
    said: bytes = b""


def source_of(key: str) -> str:
    """The source a key belongs to: the folder of `landing/` it lies in."""
    parts = key.split("/")
    return parts[1] if parts[0] == "landing" and len(parts) > 1 else parts[0]

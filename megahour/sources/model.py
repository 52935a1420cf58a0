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
    """

    uri: str
    format: str
    source: str
    files: tuple[FileRef, ...]
    missing: tuple[str, ...] = ()
    options: FileRef | None = None
    own_bytes: int | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of all its files, or its part of files it shares."""
        return sum(file.size_bytes for file in self.files) if self.own_bytes is None else self.own_bytes

    @property
    def fingerprint(self) -> str:
        """Changes when a file comes, goes or changes; 32 hexadecimal digits over keys, sizes and etags."""
        digest = hashlib.sha256()
        for file in (*self.files, *((self.options,) if self.options else ())):
            digest.update(f"{file.key}\0{file.size_bytes}\0{file.etag}\n".encode())
        for key in self.missing:
            digest.update(f"{key}\0missing\n".encode())
        return digest.hexdigest()[:32]


def source_of(key: str) -> str:
    """The source a key belongs to: the folder of `landing/` it lies in."""
    parts = key.split("/")
    return parts[1] if parts[0] == "landing" and len(parts) > 1 else parts[0]

"""What files hold, as a hash: the same for copies, whatever they are called."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from megahour.storage import FileRef

BLOCK_BYTES = 1 << 20


def content_of(files: Iterable[FileRef], local: Callable[[str], Path]) -> bytes:
    """The sha256 of the files' sizes and bytes, in their order. `local` gives the path of a key on this machine."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.size_bytes}\n".encode())
        with local(file.key).open("rb") as content:
            while block := content.read(BLOCK_BYTES):
                digest.update(block)
    return digest.digest()

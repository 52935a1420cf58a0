"""A video file, opened: its container and stream, and whose fault it is where that fails."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import av
from av.error import FFmpegError
from av.stream import Disposition

from megahour.sources.cut import cut_short
from megahour.sources.model import SourceError

BLOCK_BYTES = 1 << 20


@contextmanager
def opened_video(path: Path, key: str) -> Iterator[tuple[Any, Any]]:
    """A container and its video stream; what FFmpeg has against the file while it is open is a `SourceError`.

    Raises:
        SourceError: `truncated`, `unreadable`, `no_video` or `unsupported`.
        OSError: the disk does not give the file's bytes.
    """
    try:
        with av.open(str(path), metadata_errors="replace") as container:
            moving = [each for each in container.streams.video if not each.disposition & Disposition.attached_pic]
            if not moving:
                raise refusal(path, key, "no_video", "has no video in it")
            if moving[0].codec_context is None:
                raise refusal(path, key, "unsupported", "is coded in a way that is not known here. Export it as H.264")
            moving[0].codec_context.thread_count = 1
            yield container, moving[0]
    except FFmpegError as error:
        ask_disk(error, path)
        # Also where memory is said to lack: opening takes little, unless the bytes claim what cannot be.
        text = f"cannot be read as a video: {error.strerror}. Copy or export it again"
        raise refusal(path, key, "unreadable", text) from None


def refusal(path: Path, key: str, reason: str, text: str) -> SourceError:
    """What is wrong with a file: that it is cut short, where it is. To be raised from None, as `ask_disk` says."""
    if cut := cut_short(path):
        return SourceError("truncated", f"{key} {cut}. Copy it again from where it was recorded")
    return SourceError(reason, f"{key} {text}")


def ask_disk(error: FFmpegError, path: Path, written: Path | None = None) -> None:
    """Whether an error of FFmpeg is the disk's; a return says that it is not.

    FFmpeg gives bad bytes the numbers of the system's errors, EIO and ENOMEM among them. Whoever says that a recording
    is at fault leaves them out of the chain of errors, or the machine would be blamed.

    Args:
        path: the file that was read; it is read through.
        written: the file that was written; a block is added to it.

    Raises:
        OSError: the disk cannot do it.
    """
    if not isinstance(error, OSError):
        return
    with path.open("rb") as file:
        while file.read(BLOCK_BYTES):
            pass
    if written is not None:
        with written.open("ab") as file:
            file.write(bytes(BLOCK_BYTES))
            file.flush()
            os.fsync(file.fileno())

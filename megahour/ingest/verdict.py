"""Whose fault an error is: the recording's, which goes to quarantine, or the machine's, which stops the batch."""

from __future__ import annotations

import errno
import traceback
from collections.abc import Iterator
from dataclasses import dataclass

from megahour.errors import DataError
from megahour.storage import Lake, StoreError, head

WORKER_DIED = "worker_died"
"""Reason code: the process that worked on the recording died, twice, the second time alone."""
GONE = "gone"
"""Reason code: a file of the recording landed and is there no more."""
UNREADABLE = "unreadable"
"""Reason code: a file of the recording may not be read."""
CHANGED = "changed"
"""Reason code: the files changed while they were read."""
UNEXPECTED = "unexpected"
"""Reason code: an error that no importer foresaw; its text names the line."""

MACHINE_ERRNOS = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ESTALE,
        errno.ENODEV,
        errno.ENOTCONN,
        errno.ETIMEDOUT,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
    }
)


class IngestError(RuntimeError):
    """A batch cannot be ingested now; the text says why and what to do. What was stored stays, nothing is lost."""


@dataclass(frozen=True)
class Rejected:
    """A recording that cannot be ingested: a reason for machines, the exact error for people."""

    reason: str
    error: str


@dataclass(frozen=True)
class Skipped:
    """A recording with nothing to do: its content is ingested (`known`), it is gone, or a later plan has more of it."""

    known: bool


def judge(error: Exception, lake: Lake, plan_key: str) -> Rejected:
    """What an error says about the recording that was worked on.

    Args:
        plan_key: lake key of a file that is there as long as the lake is.

    Raises:
        MemoryError: the recording needs more memory than there is.
        IngestError: the machine, the disk or the object store failed, not the recording.
    """
    causes = list(_causes(error))
    if any(isinstance(cause, MemoryError) or getattr(cause, "errno", 0) == errno.ENOMEM for cause in causes):
        raise MemoryError(str(error)) from error
    if any(_is_machines(cause) for cause in causes):
        raise IngestError(f"{type(error).__name__}: {error}") from error
    if head(lake, plan_key) is None:
        raise IngestError(f"{lake.url(plan_key)} is gone: is the lake still mounted?") from error
    if isinstance(error, DataError):
        return Rejected(error.reason, str(error))
    if isinstance(error, FileNotFoundError):
        return Rejected(GONE, str(error).partition("\n")[0])
    if isinstance(error, PermissionError):
        return Rejected(UNREADABLE, str(error).partition("\n")[0])
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" (in {frame.name}, line {frame.lineno} of {frame.filename})" for frame in last)
    return Rejected(UNEXPECTED, f"{type(error).__name__}: {error}{where}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _is_machines(error: BaseException) -> bool:
    from av.error import FFmpegError

    if isinstance(error, (IngestError, StoreError)):
        return True
    # FFmpeg says with the same numbers that bytes are bad; who opens a file with it asks the disk itself.
    return isinstance(error, OSError) and not isinstance(error, FFmpegError) and error.errno in MACHINE_ERRNOS

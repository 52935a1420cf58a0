"""Decoders that are kept and reused: one per thread, codec and size of picture, whichever episode it comes from."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from megahour.episode.h264 import Decoder, Size
from megahour.episode.model import Chroma, Frames

MOST_DECODERS = 8
"""Per thread. One of 640x480 holds some 2 MB."""

_own = threading.local()


@dataclass(frozen=True)
class Run:
    """Coded pictures of one camera from a keyframe on, and which of them are wanted, at which size.

    `own` is the size of the pictures as they are coded. `into` are arrays to write the wanted ones to.
    """

    codec: Literal["h264", "jpeg"]
    own: Size
    units: Sequence[bytes]
    wanted: Sequence[bool]
    size: Size
    chroma: Chroma = "nearest"
    into: Sequence[Frames] | None = None


def decode(run: Run) -> list[Frames]:
    """The wanted pictures of a run, in order.

    Raises:
        EpisodeError: `corrupt`.
    """
    decoders: OrderedDict[tuple[str, Size], Decoder] = _own.__dict__.setdefault("decoders", OrderedDict())
    key = run.codec, run.own
    # A decoder that met damage does not come back: who knows what it remembers.
    decoder = decoders.pop(key, None) or Decoder(run.codec, run.own)
    pictures = decoder.decode(run.units, run.wanted, run.size, run.chroma, run.into)
    decoders[key] = decoder
    if len(decoders) > MOST_DECODERS:
        decoders.popitem(last=False)
    return pictures


class Threads:
    """Decodes runs on as many threads as it is given; with one, on the caller's own. It serves after a fork."""

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self._pool: tuple[int, ThreadPoolExecutor] | None = None

    def __reduce__(self) -> tuple[type[Threads], tuple[int]]:
        return Threads, (self.count,)

    def decode(self, runs: Sequence[Run]) -> list[list[Frames]]:
        """The wanted pictures of each run.

        Raises:
            EpisodeError: `corrupt`.
        """
        if self.count == 1 or len(runs) == 1:
            return [decode(run) for run in runs]
        if self._pool is None or self._pool[0] != os.getpid():
            self._pool = os.getpid(), ThreadPoolExecutor(self.count, thread_name_prefix="decode")
        return list(self._pool[1].map(decode, runs))

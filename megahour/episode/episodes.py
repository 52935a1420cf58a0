"""Many open episodes under one memory budget."""

from __future__ import annotations

from collections.abc import Sequence

from megahour.episode.cache import Cache
from megahour.episode.decoding import Threads
from megahour.episode.ranges import lake_bytes
from megahour.episode.reader import EpisodeReader
from megahour.episode.sample import Query, Sample
from megahour.storage import Lake


class Episodes:
    """Episodes of a lake, opened when they are asked for and forgotten when memory is short.

    Their indexes, the bytes and values read last and the pictures decoded last take `budget_bytes` together, whatever
    their number; what one call decodes is kept if it takes a quarter of that or less. `threads` decode at once. Not to
    be shared by threads; it can be pickled, and serves after a fork.
    """

    def __init__(self, lake: Lake, budget_bytes: int, threads: int = 1) -> None:
        self._lake = lake
        self._cache = Cache(budget_bytes)
        self._threads = Threads(threads)

    def __reduce__(self) -> tuple[type[Episodes], tuple[Lake, int, int]]:
        return Episodes, (self._lake, self._cache.budget_bytes, self._threads.count)

    @property
    def held_bytes(self) -> int:
        """What is kept now, at most the budget."""
        return self._cache.held_bytes

    def open(self, key: str, size_bytes: int | None = None) -> EpisodeReader:
        """The episode under `key`; one read, none while it is remembered. `size_bytes` is checked where it is known.

        Raises:
            EpisodeError: `missing`, `truncated`, `corrupt` or `version`.
        """
        reader: EpisodeReader | None = self._cache.get(key)
        # One that is remembered with another size is opened anew, and says what is wrong.
        if reader is None or size_bytes not in (None, reader.size_bytes):
            reader = EpisodeReader(lake_bytes(self._lake, key), size_bytes, self._cache, self._threads)
            said = sum(len(extra.schema) for extra in reader.extras)
            self._cache.put(key, reader, reader.index.size_bytes + said)
        return reader

    def samples(self, key: str, moments_ns: Sequence[int], query: Query, size_bytes: int | None = None) -> list[Sample]:
        """Samples of one episode, as `EpisodeReader.samples`.

        Raises:
            EpisodeError: as `open`, or `no_topic`.
        """
        return self.open(key, size_bytes).samples(moments_ns, query)

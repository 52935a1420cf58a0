"""Values that may be forgotten, up to a budget of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any


class Cache:
    """Keeps values while they fit its budget; those not asked for longest leave first. Not to be shared by threads.

    A value larger than half the budget is not kept: it would push out all others.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.held_bytes = 0
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()

    def get(self, key: Hashable) -> Any:
        """The value under `key`, or None."""
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found[0]

    def takes_together(self, size_bytes: int) -> bool:
        """Whether what one call brings, of this size together, is to be kept: a quarter of the budget, and no more.

        A whole episode would push out all others, a value at a time.
        """
        return 4 * size_bytes <= self.budget_bytes

    def put(self, key: Hashable, value: Any, size_bytes: int) -> None:
        """Keep `value`, which takes `size_bytes`, in the place of what was under `key`."""
        self.drop(key)
        if 2 * size_bytes > self.budget_bytes:
            return
        self._kept[key] = value, size_bytes
        self.held_bytes += size_bytes
        while self.held_bytes > self.budget_bytes:
            _, (_, freed) = self._kept.popitem(last=False)
            self.held_bytes -= freed

    def drop(self, key: Hashable) -> None:
        """Forget what is under `key`, if there is something."""
        _, freed = self._kept.pop(key, (None, 0))
        self.held_bytes -= freed

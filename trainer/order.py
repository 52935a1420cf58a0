"""A random order of any number of things that takes no memory: where each goes is worked out when it is asked."""

from __future__ import annotations

import random

ROUNDS = 6
_MASK = 2**64 - 1


class Shuffled:
    """The numbers 0 to `count` - 1 in an order that follows from `seed`: `Shuffled(count, seed)[i]` is the i-th one.

    A Feistel network over the next power of four, walked until it comes out below `count`, fewer than four times on
    average (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002, method 2).
    """

    def __init__(self, count: int, seed: str) -> None:
        self._count = count
        dice = random.Random(seed)
        self._keys = [dice.getrandbits(64) for _ in range(ROUNDS)]
        self._half = max(1, ((count - 1).bit_length() + 1) // 2)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, i: int) -> int:
        if not 0 <= i < self._count:
            raise IndexError(f"There are {self._count} numbers, and the {i}th was asked for")
        number = self._walk(i)
        while number >= self._count:
            number = self._walk(number)
        return number

    def _walk(self, number: int) -> int:
        mask = 2**self._half - 1
        left, right = number >> self._half, number & mask
        for key in self._keys:
            left, right = right, left ^ (_mixed(right ^ key) & mask)
        return left << self._half | right


def _mixed(x: int) -> int:
    """A number whose every bit depends on all of `x` (the finalizer of splitmix64)."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
    return x ^ x >> 31

"""A permutation of numbers that is not stored: each place of it is computed by itself.

It gives the order of the tasks of an epoch, and of the blocks of shuffled records, for any number
of them. It is a Feistel network over pairs of numbers, repeated until the result is below n: J.
Black and P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002, their generalized
Feistel cipher.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.random import default_rng  # imported now: NumPy does so when it is first used
from numpy.typing import NDArray

_ROUNDS = 6
_MASK = (1 << 64) - 1


class Order:
    """The numbers [0, n) in an order that a seed draws, or in ascending order."""

    def __init__(self, n: int, seed: int, epoch: int, shuffle: bool = True) -> None:
        """Draw the order of an epoch."""
        self._n = n
        self._is_drawn = shuffle and n > 1
        # n <= left * right < n + 2 sqrt(n) + 2, so almost no place needs a second step.
        self._left = math.isqrt(max(n - 1, 0)) + 1
        self._right = -(-n // self._left)
        self._keys = [
            int(key) for key in default_rng([seed, epoch]).integers(0, 1 << 63, size=_ROUNDS)
        ]

    def at(self, place: int) -> int:
        """Return the number at a place."""
        if not self._is_drawn:
            return place
        while True:
            # The network permutes a slightly larger range. Stepping on until the number is inside
            # keeps it a permutation of [0, n).
            place = self._step(place)
            if place < self._n:
                return place

    def place_of(self, number: int) -> int:
        """Return the place of a number."""
        if not self._is_drawn:
            return number
        while True:
            number = self._step_back(number)
            if number < self._n:
                return number

    def first(self, count: int) -> NDArray[np.int64]:
        """Return the numbers at the first places; the time grows with `count`."""
        places = np.arange(count, dtype=np.uint64)
        if not self._is_drawn:
            return places.astype(np.int64)
        places = self._steps(places)
        while (outside := np.flatnonzero(places >= self._n)).size:
            places[outside] = self._steps(places[outside])
        return places.astype(np.int64)

    def _step(self, place: int) -> int:
        high, low = divmod(place, self._right)
        sizes = self._left, self._right
        for number, key in enumerate(self._keys):
            high, low = low, (high + _mix(low ^ key)) % sizes[number % 2]
        return high * self._right + low

    def _step_back(self, place: int) -> int:
        high, low = divmod(place, self._right)
        sizes = self._left, self._right
        for number, key in reversed(tuple(enumerate(self._keys))):
            high, low = (low - _mix(high ^ key)) % sizes[number % 2], high
        return high * self._right + low

    def _steps(self, places: NDArray[np.uint64]) -> NDArray[np.uint64]:
        high, low = np.divmod(places, np.uint64(self._right))
        sizes = np.uint64(self._left), np.uint64(self._right)
        for number, key in enumerate(self._keys):
            high, low = low, (high + _mix_all(low ^ np.uint64(key))) % sizes[number % 2]
        return high * np.uint64(self._right) + low


def _mix(value: int) -> int:
    """Return 32 bits that depend on all bits of a number: the finalizer of SplitMix64."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value >> 32


def _mix_all(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values >> np.uint64(32)

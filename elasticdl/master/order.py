"""The order in which the tasks of an epoch are leased: a permutation that nobody has to hold.

Each place of it is computed by itself, so an epoch begins at once, however many tasks it has. It is
a Feistel network over pairs of numbers, walked on until it ends below n: J. Black and P. Rogaway,
"Ciphers with Arbitrary Finite Domains", CT-RSA 2002, their generalized Feistel cipher.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.random import default_rng  # imported now: NumPy does so when it is first used
from numpy.typing import NDArray

_ROUNDS = 6
_MASK = (1 << 64) - 1


class Order:
    """The numbers [0, n) in an order that a seed draws, or in their own."""

    def __init__(self, n: int, seed: int, epoch: int, shuffle: bool = True) -> None:
        """Draw the order of an epoch."""
        self._n = n
        self._is_drawn = shuffle and n > 1
        # n <= left * right < n + 2 sqrt(n) + 2: almost no place has to be walked on from.
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
            place = self._step(place)
            if place < self._n:
                return place

    def first(self, count: int) -> NDArray[np.int64]:
        """Return the numbers at the first places; as long to make as it is."""
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

    def _steps(self, places: NDArray[np.uint64]) -> NDArray[np.uint64]:
        high, low = np.divmod(places, np.uint64(self._right))
        sizes = np.uint64(self._left), np.uint64(self._right)
        for number, key in enumerate(self._keys):
            high, low = low, (high + _mix_all(low ^ np.uint64(key))) % sizes[number % 2]
        return high * np.uint64(self._right) + low


def _mix(value: int) -> int:
    """Return 32 bits that all bits of a number decide: the finalizer of SplitMix64."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value >> 32


def _mix_all(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values >> np.uint64(32)


class HandOuts:
    """Which training tasks were handed out at least once: those before a cursor in their order.

    The orders of all epochs follow each other. A byte for each task of one epoch tells which of it
    were, so that nobody has to walk the order for it.
    """

    def __init__(self, per_epoch: int, seed: int, shuffle: bool) -> None:
        """Begin with none."""
        self._per_epoch, self._seed, self._shuffle = per_epoch, seed, shuffle
        self.count = 0
        """Tasks handed out, over all epochs."""
        self.epoch = 0
        """Of the last one."""
        self._handed = bytearray(per_epoch)  # of that epoch
        self._order: Order | None = None
        self._order_epoch = -1
        self._next: int | None = None  # once it was looked up

    @property
    def next_id(self) -> int:
        """The task at the cursor."""
        if self._next is None:
            epoch, place = divmod(self.count, self._per_epoch)
            if self._order is None or epoch != self._order_epoch:
                self._order, self._order_epoch = self._order_of(epoch), epoch
            self._next = epoch * self._per_epoch + self._order.at(place)
        return self._next

    def hand_out(self) -> None:
        """Move the cursor on over the next task."""
        epoch, number = divmod(self.next_id, self._per_epoch)
        self.count += 1
        self._next = None
        if epoch != self.epoch:
            self.epoch, self._handed = epoch, bytearray(self._per_epoch)
        self._handed[number] = True

    def of_epoch(self, epoch: int) -> NDArray[np.bool_]:
        """Return which tasks of an epoch, up to that of the last one, were handed out."""
        if epoch == self.epoch:
            return np.frombuffer(self._handed, np.bool_).copy()
        return np.ones(self._per_epoch, np.bool_)

    def teller(self) -> Callable[[int], bool]:
        """Return what tells of a training task whether it was, up to now."""
        first, handed = self.epoch * self._per_epoch, bytes(self._handed)

        def was_handed_out(task_id: int) -> bool:
            number = task_id - first
            return number < 0 or (number < len(handed) and bool(handed[number]))

        return was_handed_out

    def restore(self, count: int) -> None:
        """Take over the cursor of another master."""
        self.count, self._next = count, None
        self.epoch, place = divmod(max(count - 1, 0), max(self._per_epoch, 1))
        handed = np.zeros(self._per_epoch, np.bool_)
        handed[self._order_of(self.epoch).first(place + 1 if count else 0)] = True
        self._handed = bytearray(handed.tobytes())

    def _order_of(self, epoch: int) -> Order:
        return Order(self._per_epoch, self._seed, epoch, self._shuffle)

"""Made-up clicks with a drifting signal: each hour half of the items in fashion change."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NUM_USERS, NUM_ITEMS = 2_000, 300
FIRST_NEW_USER = 1_000_000
NOBODY = 1 << 40
"""A user that clicks on nothing, ever."""


@dataclass(frozen=True, slots=True)
class Events:
    """Users, the items that they saw, and their clicks: arrays of equal length."""

    user: NDArray[np.int64]
    item: NDArray[np.int64]
    clicked: NDArray[np.int64]

    def messages(self) -> list[bytes]:
        """Return the events as messages of JSON."""
        names = ("user", "item", "clicked")
        rows = zip(self.user.tolist(), self.item.tolist(), self.clicked.tolist(), strict=True)
        return [json.dumps(dict(zip(names, row, strict=True))).encode() for row in rows]


class Clicks:
    """A shop. Its visitors click more or less often, and on items that are in fashion."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._zeal = self._rng.normal(0.0, 0.7, NUM_USERS)
        self._appeal = self._rng.normal(0.0, 1.5, NUM_ITEMS)
        self._hour = 0
        self._num_new = 0

    def make(self, count: int, hour: int = 0) -> Events:
        """Make events of an hour. The first event has a new user."""
        while self._hour < hour:
            self._hour += 1
            changed = self._rng.permutation(NUM_ITEMS)[: NUM_ITEMS // 2]
            self._appeal[changed] = self._rng.normal(0.0, 1.5, len(changed))
        user = self._rng.integers(0, NUM_USERS, count)
        item = self._rng.integers(0, NUM_ITEMS, count)
        logit = self._zeal[user] + self._appeal[item] - 1.0
        clicked = self._rng.random(count) < 1.0 / (1.0 + np.exp(-logit))
        user[:1] = FIRST_NEW_USER + self._num_new
        self._num_new += 1
        return Events(user, item, clicked.astype(np.int64))

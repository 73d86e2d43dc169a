"""Adds up the keys that workers look up most, over all workers, in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from elasticdl.job import HotKeys

_MOST_TABLES = 100
_MOST_KEYS = 64  # of a table; of more, the rarest are forgotten
_MOST_TOLD = 5


class HotKeySums:
    """The workers' reports about their hottest keys; each has the news since the last one."""

    def __init__(self) -> None:
        self._num_ids: Counter[str] = Counter()
        self._counts: dict[str, Counter[int]] = {}

    def add(self, found: Iterable[HotKeys]) -> None:
        """Add one worker's report."""
        for hot in found:
            if hot.table not in self._counts and len(self._counts) >= _MOST_TABLES:
                continue
            counts = self._counts.setdefault(hot.table, Counter())
            self._num_ids[hot.table] += hot.num_ids
            counts.update(dict(hot.keys))
            # A key that is really hot stays among the most common ones of each report.
            if len(counts) > _MOST_KEYS:
                self._counts[hot.table] = Counter(dict(counts.most_common(_MOST_KEYS)))

    def shares(self) -> dict[str, Sequence[tuple[int, float]]]:
        """Return by table the hottest keys, each with its share of the counted ids."""
        return {
            table: [(key, n / self._num_ids[table]) for key, n in counts.most_common(_MOST_TOLD)]
            for table, counts in self._counts.items()
        }

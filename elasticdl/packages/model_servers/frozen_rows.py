"""Keeps rows of a table that is not trained: each is fetched once."""

from __future__ import annotations

import numpy as np

from elasticdl.backends.base import Float32, Int64

_LIMIT_BYTES = 1024 * 1024 * 1024
_FIRST_ROWS = 1024


class FrozenRows:
    """The rows of one table that were fetched; rows beyond the limit are not kept."""

    def __init__(self, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._places: dict[int, int] = {}
        self._rows: Float32 = np.zeros((0, 0), np.float32)

    def missing(self, ids: Int64) -> Int64:
        """Return which of some ids must be fetched, each once."""
        unique = np.unique(ids).tolist()
        return np.array([key for key in unique if key not in self._places], np.int64)

    def keep(self, ids: Int64, rows: Float32) -> None:
        """Keep the rows of ids that were missing, shape (n, dim), while there is room."""
        room = self._limit_bytes // (4 * rows.shape[1]) - len(self._places)
        ids, rows = ids[: max(0, room)], rows[: max(0, room)]
        start, end = len(self._places), len(self._places) + len(ids)
        if end > len(self._rows):
            grown = np.zeros((max(end, 2 * start, _FIRST_ROWS), rows.shape[1]), np.float32)
            grown[:start] = self._rows[:start] if start else 0.0
            self._rows = grown
        self._rows[start:end] = rows
        self._places |= {key: start + k for k, key in enumerate(ids.tolist())}

    def rows_of(self, ids: Int64, fetched: Int64, rows: Float32) -> Float32:
        """Return the row of each id, shape `ids.shape + (dim,)`.

        Args:
            ids: Ids of any shape.
            fetched: The ids that were fetched just now, in order.
            rows: The rows of `fetched`, shape (n, dim).
        """
        flat = ids.ravel()
        found = np.empty((flat.size, rows.shape[1]), np.float32)
        places = np.array([self._places.get(key, -1) for key in flat.tolist()], np.int64)
        is_kept = places >= 0
        if is_kept.any():
            found[is_kept] = self._rows[places[is_kept]]
        found[~is_kept] = rows[np.searchsorted(fetched, flat[~is_kept])]
        return found.reshape(*ids.shape, rows.shape[1])

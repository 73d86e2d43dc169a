"""Keeps amounts over time in a bounded number of cells, which get longer as the job does.

All cells of a job have one length, a power of two in seconds. When the job outlasts the cells,
neighbouring cells are added together. So no amount is lost: up to rounding, the sum over the cells
is the sum of all added amounts.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

NUM_CELLS = 600
FIRST_STEP_SECONDS = 1.0


class Bins:
    """The time axis that all rows of a job share; a row holds some amounts for each cell.

    generation: Grows when cells are added together, so that every cell has changed.
    """

    def __init__(self) -> None:
        self.began: float | None = None
        self.step = FIRST_STEP_SECONDS
        self.count = 0  # cells up to the latest time that was seen
        self.generation = 0
        self._rows: list[Row] = []

    def row(self, width: int) -> Row:
        """Return a new row with `width` amounts a cell, all of them 0."""
        row = Row(width)
        self._rows.append(row)
        return row

    def remove(self, row: Row) -> None:
        """Forget a row."""
        self._rows.remove(row)

    def see(self, time: float) -> None:
        """Make the cells reach up to a time."""
        if self.began is None:
            self.began = math.floor(time)
        while time - self.began > NUM_CELLS * self.step:
            self.step *= 2
            self.generation += 1
            # Rounded up: the last pair of cells may be half full.
            self.count = -(-self.count // 2)
            for row in self._rows:
                row.halve()
        self.count = max(self.count, math.ceil((time - self.began) / self.step))

    def add(
        self, row: Row, begin: float, end: float, amounts: NDArray[np.float64], stamp: int
    ) -> None:
        """Spread amounts evenly over a time; the part before the first cell goes to that cell.

        Args:
            row: The row to change.
            begin: Seconds since 1970.
            end: Not before `begin`.
            amounts: Shape (width,).
            stamp: Marks the cells that change.
        """
        self.see(end)
        assert self.began is not None
        low = max(0.0, (begin - self.began) / self.step)
        high = max(low, (end - self.began) / self.step)
        first, last = self._cell(low), self._cell(high)
        if first == last:
            row.amounts[first] += amounts
        else:
            edges = np.arange(first, last + 2, dtype=np.float64)
            edges[0], edges[-1] = low, high
            # The first and last cell are only partly covered by the time.
            shares = np.diff(edges) / (high - low)
            row.amounts[first : last + 1] += shares[:, None] * amounts
        row.stamps[first : last + 1] = stamp

    def _cell(self, position: float) -> int:
        return min(int(position), NUM_CELLS - 1)


class Row:
    """Amounts for each cell, shape (NUM_CELLS, width), and the stamp of each cell's last change."""

    def __init__(self, width: int) -> None:
        self.amounts = np.zeros((NUM_CELLS, width))
        self.stamps = np.zeros(NUM_CELLS, np.int64)

    def halve(self) -> None:
        """Add neighbouring cells together."""
        half = NUM_CELLS // 2
        self.amounts[:half] = self.amounts.reshape(half, 2, -1).sum(axis=1)
        self.amounts[half:] = 0.0
        self.stamps[:half] = self.stamps.reshape(half, 2).max(axis=1)
        self.stamps[half:] = 0

    def first_changed(self, since: int) -> int | None:
        """Return the first cell that has changed after a stamp; None if none has."""
        changed = np.flatnonzero(self.stamps > since)
        return int(changed[0]) if len(changed) else None

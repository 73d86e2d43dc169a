"""Which worker looks at the data before the first record, and what it found."""

from __future__ import annotations

from collections.abc import Sequence

from elasticdl.job import DataCheckTurn

_MOST_LINES = 40
_MOST_CHARACTERS = 1000  # of a line, which has names and values of the data


class DataCheck:
    """One worker looks for the whole job; the others wait for it.

    It is not in the journal: a master that comes back has another worker look again, if nothing was
    trained.

    Attributes:
        worker_id: Who looks, or has looked; -1: nobody.
        lines: What was found.
    """

    def __init__(self) -> None:
        self.worker_id = -1
        self.lines: tuple[str, ...] = ()
        self._is_over = False

    def turn(self, worker_id: int, is_holder_alive: bool, has_begun: bool) -> DataCheckTurn:
        """Return whether a worker is to look.

        Args:
            worker_id: Who asks.
            is_holder_alive: Whether the one that looks still does. One that died of it is the
                first and the last.
            has_begun: Whether the job has done some work.
        """
        if self._is_over or has_begun:
            return DataCheckTurn.OVER
        if self.worker_id in (-1, worker_id):
            self.worker_id = worker_id
            return DataCheckTurn.YOURS
        self._is_over = not is_holder_alive
        return DataCheckTurn.OVER if self._is_over else DataCheckTurn.WAIT

    def is_looking(self, worker_id: int) -> bool:
        """Whether a worker looks just now, as far as the master knows."""
        return worker_id == self.worker_id and not self._is_over

    def done(self, worker_id: int, lines: Sequence[str]) -> bool:
        """Take what a worker found; return whether it was its turn."""
        if self._is_over or worker_id != self.worker_id:
            return False
        self._is_over = True
        self.lines = tuple(line[:_MOST_CHARACTERS] for line in lines[:_MOST_LINES])
        return True

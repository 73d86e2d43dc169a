"""Hand-overs: a process that is asked to end writes all that it holds.

A hand-over is as good as a checkpoint for the successor of that replica, and for no other process.
The process applies nothing after it. So a successor that begins with the hand-over lacks nothing
that the process ever had.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import Any

from elasticdl.master.journal import Journal


@dataclass(frozen=True, slots=True)
class HandOver:
    """The hand-over of one process.

    at: seconds that the job had lasted.
    is_of_worker: The last worker of a world wrote the parameters that all workers share.
    """

    index: int
    session: str
    version: int
    at: float
    is_of_worker: bool = False


class HandOvers:
    """Keeps the last hand-over of each replica, as long as no checkpoint is newer."""

    def __init__(self, journal: Journal, whose: str = "") -> None:
        """Start without any; `whose` tells these facts from those of others in one journal."""
        self._journal = journal
        self._last: dict[int, HandOver] = {}
        self._noted, self._outdated = f"{whose}handed over", f"{whose}hand-over outdated"
        journal.handle(self._noted, self._apply)
        journal.handle(self._outdated, self._apply_outdated)

    # --- events ----------------------------------------------------------------------------------

    def note(self, hand_over: HandOver) -> None:
        """Note a hand-over that is whole; it replaces the hand-over of the predecessor."""
        self._journal.record(self._noted, *astuple(hand_over))

    def checkpoint_written(self, began: float) -> bool:
        """Forget the hand-overs that are older than a checkpoint; return whether there were any.

        Args:
            began: The time at which the checkpoint was asked for. Its parts may be of any time
                since, so a hand-over of that time is kept.
        """
        outdated = [index for index, last in self._last.items() if last.at < began]
        for index in outdated:
            self._journal.record(self._outdated, index)
        return bool(outdated)

    # --- questions -------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[HandOver]:
        return iter(self._last.values())

    # --- facts -----------------------------------------------------------------------------------

    def _apply(
        self, index: int, session: str, version: int, at: float, is_of_worker: bool = False
    ) -> None:
        self._last[index] = HandOver(index, session, version, at, is_of_worker)

    def _apply_outdated(self, index: int) -> None:
        del self._last[index]

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> list[list[Any]]:
        """Return the state as JSON has it."""
        return [list(astuple(last)) for last in self._last.values()]

    def restore(self, snapshot: list[list[Any]]) -> None:
        """Take over the state of a snapshot."""
        found = [HandOver(*values) for values in snapshot]
        self._last = {last.index: last for last in found}

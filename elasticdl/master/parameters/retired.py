"""Forgets tasks of a stream that are done and proved.

A task is needed again when a ps replica is restored from a checkpoint that was begun before the
task was done. So a task is done for good if it was done before the oldest checkpoint in use was
begun. Then it is proved, and its records are added to a sum. The ledger, the replicas, the journal
and the checkpoints need not know it any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from elasticdl.job.status import EpochLedger
from elasticdl.master.journal import Journal
from elasticdl.master.parameters.proof import Proof
from elasticdl.state.base import Snapshot

_AT_ONCE = 1024
"""The smallest number of tasks that are forgotten together."""
_OLDEST = 2
"""The number of newest checkpoints that replicas can restore, though tasks were forgotten."""


class ForgottenTasks:
    """The tasks before `first`, and what became of their records."""

    def __init__(self, journal: Journal, forget: Callable[[int], None]) -> None:
        """Begin with none.

        Args:
            journal: The journal of the job.
            forget: Has everybody in this process forget the tasks before one.
        """
        self._journal = journal
        self._forget = forget
        self.first = 0
        """Tasks before it are forgotten."""
        self._sum = EpochLedger(0, 0, 0, 0, 0)
        self._note = ""
        self._done: dict[int, int] = {}  # checkpoint -> all tasks before this one are in it
        journal.handle("checkpoint has", self._apply_has)
        journal.handle("retire", self._apply_retire)

    # --- events ----------------------------------------------------------------------------------

    def written(self, version: int, first_open: int, restorable: Sequence[int]) -> None:
        """A checkpoint is whole.

        Args:
            version: Of it.
            first_open: The first task that was not done when it was begun.
            restorable: Versions that a replica may be given, the newest first.
        """
        self._journal.record("checkpoint has", version, first_open, list(restorable))

    def proved(self, stop: int, found: Proof) -> None:
        """The tasks before `stop` are proved."""
        # A stream has one epoch, so the proof has one line at most.
        counts = [0, 0, 0, 0, 0]
        for line in found.ledger:
            counts = [line.records, line.trained_once, line.repeated, line.lost, line.examples]
        self._journal.record("retire", stop, counts, found.note)

    # --- questions -------------------------------------------------------------------------------

    def due(self, restorable: Sequence[int]) -> int | None:
        """Return the task up to which tasks can be forgotten; None if these are few.

        Args:
            restorable: Versions that a replica may be given, the newest first.
        """
        if not restorable:
            return None
        # A replica may go back from an unsound checkpoint to an older one, so that the oldest of
        # these decides. A proof asks all replicas, so a few tasks are not worth one.
        stop = min(self._done.get(version, 0) for version in restorable[:_OLDEST])
        return stop if stop - self.first >= _AT_ONCE else None

    def allows(self, version: int) -> bool:
        """Whether a replica that is restored from a checkpoint has all that is forgotten."""
        return self._done.get(version, 0) >= self.first

    def with_all(self, found: Proof) -> Proof:
        """Return the proof of all tasks, given the proof of the tasks that are not forgotten."""
        if not self.first:
            return found
        lines = found.ledger or (EpochLedger(0, 0, 0, 0, 0),)
        whole = _add(self._sum, lines[0])
        note = "; ".join(filter(None, [self._note, found.note]))
        return Proof((whole, *lines[1:]) if whole.records else lines[1:], found.problem, note)

    # --- facts -----------------------------------------------------------------------------------

    def _apply_has(self, version: int, first_open: int, restorable: Iterable[int]) -> None:
        self._done[version] = first_open
        self._done = {each: self._done.get(each, 0) for each in restorable}

    def _apply_retire(self, stop: int, counts: Sequence[int], note: str) -> None:
        self.first = stop
        self._sum = _add(self._sum, EpochLedger(0, *counts))
        self._note = note or self._note
        self._forget(stop)

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it."""
        one = self._sum
        return {
            "first": self.first,
            "sum": [one.records, one.trained_once, one.repeated, one.lost, one.examples],
            "note": self._note,
            "done": [list(item) for item in self._done.items()],
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of a snapshot."""
        self.first, self._note = snapshot["first"], snapshot["note"]
        self._sum = EpochLedger(0, *snapshot["sum"])
        self._done = dict(snapshot["done"])


def _add(one: EpochLedger, other: EpochLedger) -> EpochLedger:
    return EpochLedger(
        one.epoch,
        one.records + other.records,
        one.trained_once + other.trained_once,
        one.repeated + other.repeated,
        one.lost + other.lost,
        one.examples + other.examples,
    )

"""Decides when a checkpoint is due, and which old checkpoints are deleted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass

from elasticdl.config import CheckpointSection
from elasticdl.master.journal import Journal
from elasticdl.master.patience import Patience
from elasticdl.state.base import Snapshot

RECOVERY_FOLDER = "recovery"
"""The folder of the job's own checkpoints, inside the job's folder."""

_SHARE_OF_TIME = 0.05  # share of time that recovery checkpoints may take, beyond
_LEAST_PAUSE_SECONDS = 10.0  # pause between two checkpoints that a redo log wants
_RESTS_SECONDS = 10.0  # longest time for which a writing replica lets updates go first


@dataclass(frozen=True, slots=True)
class WholeCheckpoint:
    """A checkpoint of this job that a ps replica can restore."""

    version: int
    is_private: bool  # the job's own, not one that the user asked for


class CheckpointSchedule:
    """Keeps when checkpoints are due, and the list of checkpoints that this job has written.

    There are two kinds. The user asks for checkpoints (`--checkpoint_steps`). The **recovery
    checkpoint** in the job's own folder makes the loss of a replica cheap.

    kept: the versions of the user's checkpoints that are there.
    newest: the newest checkpoint of both kinds.
    patience: the tries of the last checkpoint, which must be written.
    is_last_private: the last checkpoint goes to the job's own folder.
    """

    def __init__(
        self,
        journal: Journal,
        settings: CheckpointSection,
        is_wanted: Callable[[], bool] = lambda: False,
        event_seconds: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Start without checkpoints.

        Args:
            journal: The journal of the job.
            settings: The user's settings of checkpoints.
            is_wanted: Returns whether the redo log of a ps replica is filling up.
            event_seconds: Returns the event time that the data has reached; 0 or None: not known.
        """
        self._journal = journal
        self._settings = settings
        self._next_version = settings.checkpoint_steps
        self._event_seconds = event_seconds
        self._is_wanted = is_wanted
        self._not_before = 0.0  # time, of one that is wanted; not journalled
        self._next_event: float | None = None  # event time at which the next one is due
        self._is_again = False  # the last one was interrupted by the loss of a process
        self.is_best_due = False  # the next one is that of the best evaluation
        self.best: int | None = None  # version that is kept as the best one
        self._is_best_given_up = False  # the best evaluation has no checkpoint
        self._next_recovery: float | None = None  # time
        self.patience = Patience(journal, "last checkpoint")
        self.is_last_private = settings.checkpoint_dir is None
        self.kept: list[int] = []
        self.newest: WholeCheckpoint | None = None
        self._of_others: set[int] = set()  # kept versions of other layouts
        journal.handle("checkpoint", self._apply_written)
        journal.handle("recovery checkpoint", self._apply_written_for_recovery)
        journal.handle("recovery checkpoint of a move", self._apply_moved)
        journal.handle("checkpoint due", self._apply_due)
        journal.handle("checkpoint due by event time", self._apply_due_by_event)
        journal.handle("best", self._apply_best)
        journal.handle("checkpoint again", self._apply_again)
        journal.handle("recovery checkpoint due", self._apply_recovery_due)
        journal.handle("last checkpoint elsewhere", self._apply_elsewhere)

    # --- events ----------------------------------------------------------------------------------

    def begin_training(self, now: float) -> None:
        """Plan the first recovery checkpoint and the first by event time, unless that was done."""
        if self._next_recovery is None:
            self._journal.record("recovery checkpoint due", now + self._settings.recovery_seconds)
        if self._settings.event_seconds and self._next_event is None and self._events:
            self._plan_by_event()

    def _plan_by_event(self) -> None:
        every = self._settings.event_seconds
        self._journal.record("checkpoint due by event time", (self._events // every + 1) * every)

    def begin(self, version: int) -> None:
        """Note that a user's checkpoint is being written; the next is due at the next multiple."""
        every = self._settings.checkpoint_steps
        is_time = every > 0 and version >= self._next_version
        if is_time or self._is_again:
            next_version = (version // every + 1) * every if is_time else self._next_version
            self._journal.record("checkpoint due", next_version)
        if self._is_due_by_event:
            self._plan_by_event()

    def written(self, version: int) -> None:
        """Note that a user's checkpoint is whole, and drop old ones; the best one stays."""
        best = version if self.is_best_due else self.best
        old = to_delete([*self.kept, version], self._settings.keep_checkpoint_max)
        self._journal.record("checkpoint", version, [v for v in old if v != best])
        if self.is_best_due:
            self._journal.record("best", version)

    def want_best(self) -> None:
        """Have one written of the best evaluation so far."""
        self._journal.record("best", -1)

    def give_up_best(self) -> None:
        """It could not be written; the one before stays the best that there is."""
        if self.is_best_due:
            self._journal.record("best", -2)

    def written_for_recovery(self, version: int) -> None:
        """Note that a recovery checkpoint is whole; it replaces the one before."""
        self._journal.record("recovery checkpoint", version)

    def moved(self, version: int) -> None:
        """Note that the model has moved, and a recovery checkpoint of all at one instant is whole.

        Older checkpoints have the parts of the old replicas, each at an instant of its own. They
        restore none of the replicas that there are now.
        """
        self._journal.record("recovery checkpoint of a move", version)

    def ended(self, seconds: float, now: float) -> None:
        """Plan the next recovery checkpoint; a checkpoint of either kind took `seconds`."""
        # A replica that writes lets updates go first, for `_RESTS_SECONDS` at most. This wait
        # costs the training nothing, so it does not count.
        taken = max(0.0, seconds - _RESTS_SECONDS)
        pause = max(self._settings.recovery_seconds, taken / _SHARE_OF_TIME)
        self._not_before = now + max(_LEAST_PAUSE_SECONDS, seconds / _SHARE_OF_TIME)
        self._journal.record("recovery checkpoint due", now + pause)

    def repeat(self) -> None:
        """Have one for the user written as soon as all parameters are there."""
        if not self._is_again:
            self._journal.record("checkpoint again")

    def give_up_users_place(self) -> None:
        """Have the last checkpoint written into the job's own folder."""
        self._journal.record("last checkpoint elsewhere")

    def reopened(self) -> None:
        """Go on with a job that had failed; a part of a fact."""
        self.patience.reset()
        self.is_last_private = self._settings.checkpoint_dir is None

    # --- questions -------------------------------------------------------------------------------

    def is_due(self, version: int) -> bool:
        """Whether one for the user should be written while training at this model version."""
        if self._settings.checkpoint_dir is None:
            return False
        is_time = self._settings.checkpoint_steps > 0 and version >= self._next_version
        return is_time or self._is_again or self.is_best_due or self._is_due_by_event

    @property
    def _is_due_by_event(self) -> bool:
        return self._next_event is not None and self._events >= self._next_event

    @property
    def _events(self) -> float:
        """The event time that the data has reached; 0: not known, or the data has no times."""
        return self._event_seconds() or 0.0

    def is_recovery_due(self, version: int, now: float) -> bool:
        """Whether a recovery checkpoint should be written while training."""
        has_news = version > (0 if self.newest is None else self.newest.version)
        is_time = self._next_recovery is not None and now >= self._next_recovery
        is_wanted = now >= self._not_before and self._is_wanted()
        return self._settings.recovery_seconds > 0 and has_news and (is_time or is_wanted)

    def candidates(self) -> list[WholeCheckpoint]:
        """Return the checkpoints that can be restored, the best first."""
        if self.newest is None:
            return []
        own = (version for version in reversed(self.kept) if version not in self._of_others)
        older = (WholeCheckpoint(version, is_private=False) for version in own)
        return [self.newest, *(point for point in older if point != self.newest)]

    @property
    def best_kept(self) -> int | None:
        """The version that is kept of the best evaluation so far; None while there is none."""
        return None if self.is_best_due or self._is_best_given_up else self.best

    # --- facts -----------------------------------------------------------------------------------

    def _apply_due(self, next_version: int) -> None:
        self._next_version = next_version
        self._is_again = False

    def _apply_due_by_event(self, seconds: float) -> None:
        self._next_event = seconds

    def _apply_best(self, version: int) -> None:
        self.is_best_due, self._is_best_given_up = version == -1, version == -2
        if version >= 0:
            self.best = version

    def _apply_again(self) -> None:
        self._is_again = True

    def _apply_elsewhere(self) -> None:
        self.is_last_private = True

    def _apply_recovery_due(self, at: float) -> None:
        self._next_recovery = at

    def _apply_written(self, version: int, deleted: list[int]) -> None:
        self.kept = sorted({*self.kept, version} - set(deleted))
        self._of_others.discard(version)
        self.newest = WholeCheckpoint(version, is_private=False)

    def _apply_moved(self, version: int) -> None:
        self._of_others = set(self.kept)
        self.newest = WholeCheckpoint(version, is_private=True)

    def _apply_written_for_recovery(self, version: int) -> None:
        self.newest = WholeCheckpoint(version, is_private=True)

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it."""
        return {
            "kept": list(self.kept),
            "next_version": self._next_version,
            "next_event": self._next_event,
            "is_again": self._is_again,
            "best": [self.is_best_due, self.best, self._is_best_given_up],
            "next_recovery": self._next_recovery,
            "newest": None if self.newest is None else list(astuple(self.newest)),
            "patience": self.patience.snapshot(),
            "is_last_private": self.is_last_private,
            "of_others": sorted(self._of_others),
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of a snapshot."""
        self.kept = list(snapshot["kept"])
        self._next_version = snapshot["next_version"]
        self._next_event = snapshot.get("next_event")
        self._is_again = snapshot["is_again"]
        self.is_best_due, self.best, *given_up = snapshot.get("best", (False, None))
        self._is_best_given_up = any(given_up)
        self._next_recovery = snapshot["next_recovery"]
        newest = snapshot["newest"]
        self.newest = None if newest is None else WholeCheckpoint(*newest)
        # Journals of earlier versions do not have these.
        self.patience.restore(snapshot.get("patience"))
        self.is_last_private = snapshot.get("is_last_private", self.is_last_private)
        self._of_others = set(snapshot.get("of_others", ()))


def to_delete(versions: Sequence[int], keep: int) -> list[int]:
    """Return the checkpoints to delete, oldest first, so that the newest `keep` stay; 0: none."""
    ordered = sorted(set(versions))
    return ordered[:-keep] if keep else []

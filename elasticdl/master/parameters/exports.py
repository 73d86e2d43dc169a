"""Decides when the next version of an export is due."""

from __future__ import annotations

from elasticdl.config import CheckpointSection
from elasticdl.job import ServedProgram
from elasticdl.master.journal import Journal
from elasticdl.master.patience import Patience
from elasticdl.settings.export_every import Every
from elasticdl.state.base import Snapshot

_LONGEST_PAUSE_SECONDS = 30.0


class ExportSchedule:
    """Keeps when versions are due while training, and whether the last version is there.

    A master that comes back writes a version at once, since the times are not journalled. Nothing
    else is lost: the list of versions is read from the folder.
    """

    def __init__(self, journal: Journal, settings: CheckpointSection) -> None:
        """Start without versions."""
        self._journal = journal
        self._is_wanted = settings.export_dir is not None
        self._every = Every.of(settings.export_every)
        self._not_before = 0.0  # time
        self._next_version = self._every.updates
        self._newest = 0  # model version in the newest export
        self._patience = Patience(journal, "export")
        self._patience_at_end = Patience(journal, "last export")
        self.is_over = not self._is_wanted
        """Whether the last version is there, or was given up."""
        self._key = ""  # identity of the model that the workers train
        self.program: ServedProgram | None = None
        """The program of the workers' model; None: no worker has written it so far."""
        journal.handle("export over", self._apply_over)
        journal.handle("export program", self._apply_program)

    # --- events ----------------------------------------------------------------------------------

    def needs_program(self, key: str, is_first: bool) -> bool:
        """Say whether a worker that begins is to write its model's program.

        A program of a worker with another model is not exported any more.

        Args:
            key: The identity of the worker's model.
            is_first: Whether this worker writes, among the workers that begin together.
        """
        if not self._is_wanted or (self.program is not None and self._key == key):
            return False
        if self.program is None:
            return is_first
        self._journal.record("export program", key, None)
        return True

    def has_program(self, key: str, program: ServedProgram) -> None:
        """Note that a worker has written its model's program; the first one of a model counts."""
        if self._is_wanted and (self.program is None or self._key != key):
            self._journal.record("export program", key, [program.name, program.sha256])

    def begin(self, version: int, now: float) -> None:
        """Note that a version is being written."""
        self._not_before = now + self._every.seconds
        if every := self._every.updates:
            self._next_version = (version // every + 1) * every

    def written(self, version: int, is_last: bool) -> None:
        """Note that a version is there."""
        self._newest = version
        self._patience.succeeded()
        if is_last:
            self._journal.record("export over")

    def failed(self, now: float, is_last: bool) -> float | None:
        """It could not be written; return the seconds to the next try.

        None: the last one is given up; while training it is tried at long intervals.
        """
        patience = self._patience_at_end if is_last else self._patience
        pause = patience.failed(now)
        self._not_before = now + (_LONGEST_PAUSE_SECONDS if pause is None else pause)
        # The next try waits for the pause only, not for the next multiple of updates.
        self._next_version = 0
        return pause

    def give_up(self) -> None:
        """The version of the end is not written."""
        self._journal.record("export over")

    # --- questions -------------------------------------------------------------------------------

    def is_due(self, version: int, now: float) -> bool:
        """Whether a version should be written while training, at this model version."""
        is_time = now >= self._not_before and version >= self._next_version
        return self.program is not None and is_time and version > self._newest

    def is_last_due(self, now: float) -> bool:
        """Whether the version of the end should be written now."""
        return not self.is_over and self._patience_at_end.may_try(now)

    # --- facts -----------------------------------------------------------------------------------

    def _apply_program(self, key: str, program: list[str] | None) -> None:
        self._key = key
        self.program = None if program is None else ServedProgram(*program)

    def _apply_over(self) -> None:
        self.is_over = True
        self._patience_at_end.reset()

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it."""
        patience = [self._patience.snapshot(), self._patience_at_end.snapshot()]
        program = None if self.program is None else [self.program.name, self.program.sha256]
        return {"is_over": self.is_over, "patience": patience, "program": [self._key, program]}

    def restore(self, snapshot: Snapshot | None) -> None:
        """Take over the state of a snapshot; None: of one that has none, of an earlier version."""
        if snapshot is not None:
            self.is_over = snapshot["is_over"]
            self._apply_program(*snapshot.get("program", ("", None)))
            for patience, state in zip(
                (self._patience, self._patience_at_end), snapshot["patience"], strict=True
            ):
                patience.restore(state)

"""When a checkpoint is due, and which old ones go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from elasticdl.master.journal import Journal


class Checkpoints:
    """The schedule of checkpoints and the list of those that were written by this job."""

    def __init__(self, journal: Journal, every_versions: int) -> None:
        """Start without checkpoints.

        Args:
            journal: Where facts are recorded.
            every_versions: `--checkpoint_steps`; 0: only the one at the end of the job.
        """
        self._journal = journal
        self._every_versions = every_versions
        self._next_version = every_versions
        self.is_writing = False  # not journalled: a restarted master's is not under way
        self.kept: list[int] = []
        journal.handle("checkpoint", self._apply_written)
        journal.handle("checkpoint due", self._apply_due)

    def is_due(self, version: int) -> bool:
        """Whether a checkpoint while training should start at this model version."""
        return self._every_versions > 0 and not self.is_writing and version >= self._next_version

    def begin(self, version: int) -> None:
        """Note that one is being written; the next one is due at the next multiple."""
        self.is_writing = True
        if self._every_versions and version >= self._next_version:
            next_version = (version // self._every_versions + 1) * self._every_versions
            self._journal.record("checkpoint due", next_version)

    def written(self, version: int, keep: int) -> list[int]:
        """Note a checkpoint that is whole; return the versions to delete.

        Args:
            version: Its model version.
            keep: `--keep_checkpoint_max`; 0: all.
        """
        self.is_writing = False
        delete = to_delete([*self.kept, version], keep)
        self._journal.record("checkpoint", version, delete)
        return delete

    def failed(self) -> None:
        """Note that one could not be written; those before it stay."""
        self.is_writing = False

    def _apply_due(self, next_version: int) -> None:
        self._next_version = next_version

    def _apply_written(self, version: int, deleted: list[int]) -> None:
        self.kept = sorted({*self.kept, version} - set(deleted))

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON has it."""
        return {"kept": list(self.kept), "next_version": self._next_version}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Take over the state of a snapshot."""
        self.kept = list(snapshot["kept"])
        self._next_version = snapshot["next_version"]


def to_delete(versions: Sequence[int], keep: int) -> list[int]:
    """Return the checkpoints to delete, oldest first, so that the newest `keep` stay; 0: none."""
    ordered = sorted(set(versions))
    return ordered[:-keep] if keep else []

"""When a checkpoint is due, and which old ones go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from elasticdl.master.journal import Journal


@dataclass(frozen=True, slots=True)
class WholeCheckpoint:
    """A checkpoint of this job that a ps replica can restore."""

    version: int
    is_private: bool  # the job's own, not one that the user asked for


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
        # Not journalled: a restarted master's is not under way.
        self.is_writing = False
        self.is_private = False  # the one that is being written is the job's own
        self._is_again = False  # the last one came to nothing, through no fault of the files
        self.kept: list[int] = []
        self.newest: WholeCheckpoint | None = None
        journal.handle("checkpoint", self._apply_written)
        journal.handle("private checkpoint", self._apply_private)
        journal.handle("checkpoint due", self._apply_due)

    def candidates(self) -> list[WholeCheckpoint]:
        """Return what there is to restore, the best first."""
        if self.newest is None:
            return []
        older = (WholeCheckpoint(version, is_private=False) for version in reversed(self.kept))
        return [self.newest, *(point for point in older if point != self.newest)]

    def is_due(self, version: int) -> bool:
        """Whether a checkpoint while training should start at this model version."""
        is_time = self._every_versions > 0 and version >= self._next_version
        return not self.is_writing and (is_time or self._is_again)

    def begin(self, version: int, is_private: bool = False) -> None:
        """Note that one is being written; the next one is due at the next multiple."""
        self.is_writing, self.is_private = True, is_private
        if is_private:
            return
        self._is_again = False
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

    def written_privately(self, version: int) -> None:
        """Note that a checkpoint of the job's own is whole."""
        self.is_writing = False
        self._journal.record("private checkpoint", version)

    def failed(self, is_again: bool = False) -> None:
        """Note that one could not be written; those before it stay.

        Args:
            is_again: Whether to write another one as soon as the replicas are there.
        """
        self.is_writing = False
        self._is_again = self._is_again or is_again

    def _apply_due(self, next_version: int) -> None:
        self._next_version = next_version

    def _apply_written(self, version: int, deleted: list[int]) -> None:
        self.kept = sorted({*self.kept, version} - set(deleted))
        self.newest = WholeCheckpoint(version, is_private=False)

    def _apply_private(self, version: int) -> None:
        self.newest = WholeCheckpoint(version, is_private=True)

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON has it."""
        newest = None if self.newest is None else [self.newest.version, self.newest.is_private]
        return {
            "kept": list(self.kept),
            "next_version": self._next_version,
            "newest": newest,
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Take over the state of a snapshot."""
        self.kept = list(snapshot["kept"])
        self._next_version = snapshot["next_version"]
        newest = snapshot["newest"]
        self.newest = None if newest is None else WholeCheckpoint(*newest)


def to_delete(versions: Sequence[int], keep: int) -> list[int]:
    """Return the checkpoints to delete, oldest first, so that the newest `keep` stay; 0: none."""
    ordered = sorted(set(versions))
    return ordered[:-keep] if keep else []

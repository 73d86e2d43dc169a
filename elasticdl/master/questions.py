"""What the ps replicas are asked: to write checkpoints, and at the end what they have applied.

One question at a time. A replica that is lost before it has answered makes the question void: it is
asked again once all replicas are there and have all that was done.
"""

from __future__ import annotations

from collections.abc import Callable

from elasticdl.config import JobConfig
from elasticdl.job import Strategy
from elasticdl.master.actions import (
    Action,
    AskAudit,
    DeleteCheckpoints,
    ExpireRows,
    Note,
    WriteCheckpoint,
)
from elasticdl.master.audit import Replicas, audit
from elasticdl.master.checkpoints import Checkpoints
from elasticdl.master.course import Course
from elasticdl.master.ledger import Ledger
from elasticdl.master.phases import ENDED, Phase
from elasticdl.master.places import Places
from elasticdl.master.progress import Meter
from elasticdl.master.tasks import JobTasks

_TIMES_UNREACHABLE = 5  # in a row; each costs the master seconds
_SHARE_OF_TIME = 0.05  # that checkpoints of the job's own may take, beyond
_RESTS_SECONDS = 10.0  # for which a replica that writes one lets updates go first, at most


class Questions:
    """Decides what the replicas are asked, and what an answer is worth.

    Nothing of it is journalled: a restarted master asks again.
    """

    def __init__(
        self,
        config: JobConfig,
        tasks: JobTasks,
        course: Course,
        ledger: Ledger,
        places: Places,
        checkpoints: Checkpoints,
        meter: Meter,
        act: Callable[[Action], None],
    ) -> None:
        self._config = config
        self._tasks = tasks
        self._course = course
        self._ledger = ledger
        self._places = places
        self._checkpoints = checkpoints
        self._meter = meter
        self._act = act
        self._is_last = False  # the question under way is one that ends its phase
        self._generation = 0  # of the replicas that were asked
        self._times_unreachable = 0
        self._began = 0.0  # when the checkpoint under way was begun
        self._next_private: float | None = None

    # --- asking ----------------------------------------------------------------------------------

    def ask_in_training(self, now: float) -> None:
        """Have a checkpoint written if one is due."""
        if not self._places.is_complete or self._checkpoints.is_writing:
            return
        version = self._meter.model_version
        has_place = self._config.checkpoint.checkpoint_dir is not None
        if has_place and self._ledger.is_whole and self._checkpoints.is_due(version):
            self._write_checkpoint(now)
        elif self._is_private_due(version, now):
            self._write_checkpoint(now, is_private=True)

    def ask_at_end(self, now: float) -> None:
        """Have the last checkpoint written, or the proof made, once all replicas have all of it."""
        is_settled = self._places.is_complete and self._ledger.is_idle
        if not is_settled or self._is_last or self._checkpoints.is_writing:
            return
        self._is_last, self._generation = True, self._places.generation
        if self._course.phase is Phase.CHECKPOINTING:
            self._write_checkpoint(now)
        else:
            self._act(AskAudit())

    def ask_before_failing(self, now: float) -> None:
        """Have what was trained written, after the checkpoint under way, if there is one."""
        if not self._is_last and not self._checkpoints.is_writing:
            self._is_last = True
            self._write_checkpoint(now)

    def _is_private_due(self, version: int, now: float) -> bool:
        """Whether the job needs a checkpoint of its own, so that a replica's loss costs little."""
        seconds = self._config.checkpoint.recovery_seconds
        if not seconds or self._config.training.distribution_strategy is Strategy.LOCAL:
            return False
        if self._next_private is None:
            self._next_private = now + seconds
        newest = self._checkpoints.newest
        has_news = version > (0 if newest is None else newest.version)
        return has_news and now >= self._next_private

    def _write_checkpoint(self, now: float, is_private: bool = False) -> None:
        version = self._meter.model_version
        self._generation, self._began = self._places.generation, now
        self._checkpoints.begin(version, is_private)
        self._act(ExpireRows())  # what has come to its end need not be written
        self._act(WriteCheckpoint(version, is_private))

    # --- answers: each returns whether the phase is over ------------------------------------------

    def checkpoint_written(self, version: int, now: float) -> bool:
        """A checkpoint is whole."""
        self._times_unreachable = 0
        self._plan_private(now)
        if self._checkpoints.is_private:
            self._checkpoints.written_privately(version)
            return False
        deleted = self._checkpoints.written(version, self._config.checkpoint.keep_checkpoint_max)
        text = f"checkpoint of version {version} is written"
        self._act(Note("checkpoint", text, {"version": version}))
        if deleted:
            self._act(DeleteCheckpoints(tuple(deleted)))
        was_last = self._take_last()
        # Else a replica that was back may not have had all of it yet.
        return was_last and self._generation == self._places.generation

    def checkpoint_failed(
        self, version: int, message: str, was_unreachable: bool, now: float
    ) -> bool:
        """A checkpoint could not be written. The last one of a job must be there."""
        is_again = self._may_ask_again(was_unreachable)
        self._plan_private(now)
        text = f"checkpoint of version {version}: {message}"
        self._act(Note("checkpoint failed", text, {"version": version}, is_warning=True))
        if self._checkpoints.is_private:
            self._checkpoints.failed()
            return False
        self._checkpoints.failed(is_again)
        if self._course.phase in ENDED:
            return False
        self._course.message = text
        is_over = self._take_last() and not is_again
        if is_over:
            self._course.add_problem(text)
        return is_over

    def audited(self, replicas: Replicas) -> bool:
        """The replicas have said what they have applied."""
        if not self._take_last() or self._generation != self._places.generation:
            return False
        found = audit(
            self._tasks,
            self._config.training.minibatch_size,
            replicas,
            self._meter.skipped,
            self._places.lost_tasks,
        )
        self._course.proved(found.ledger, found.note)
        if found.problem:
            self._course.add_problem(f"ledger: {found.problem}")
        return True

    def audit_failed(self, was_unreachable: bool) -> bool:
        """The replicas could not be asked; the job cannot be proved if that is final."""
        return self._take_last() and not self._may_ask_again(was_unreachable)

    def _take_last(self) -> bool:
        was_last, self._is_last = self._is_last, False
        return was_last

    def _may_ask_again(self, was_unreachable: bool) -> bool:
        """Whether to repeat what failed, perhaps because a replica was lost meanwhile."""
        self._times_unreachable += was_unreachable
        return was_unreachable and self._times_unreachable < _TIMES_UNREACHABLE

    def _plan_private(self, now: float) -> None:
        taken = max(0.0, now - self._began - _RESTS_SECONDS)
        pause = max(self._config.checkpoint.recovery_seconds, taken / _SHARE_OF_TIME)
        self._next_private = now + pause

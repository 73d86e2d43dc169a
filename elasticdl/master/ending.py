"""The end of a job: finished, failed at once, or failed once its last checkpoint is written."""

from __future__ import annotations

from collections.abc import Callable

from elasticdl.config import JobConfig
from elasticdl.job import Role
from elasticdl.master.actions import Action, Note
from elasticdl.master.history import JobHistory
from elasticdl.master.ledger import Ledger
from elasticdl.master.membership import Membership
from elasticdl.master.parameters.pair import JobParameters
from elasticdl.master.parameters.schedule import RECOVERY_FOLDER
from elasticdl.master.phase_plan import PhasePlan
from elasticdl.master.phases import Phase
from elasticdl.observe import kinds

_HAVE_TRAINED = frozenset({Phase.TRAINING, Phase.EVALUATING, Phase.EXPORTING, Phase.CHECKPOINTING})
_ARE_TRAINED = frozenset({Phase.EVALUATING, Phase.EXPORTING, Phase.CHECKPOINTING})


class JobEnding:
    """Ends a job, and says how it goes on where it can."""

    def __init__(
        self,
        config: JobConfig,
        history: JobHistory,
        ledger: Ledger,
        members: Membership,
        parameters: JobParameters,
        plan: PhasePlan,
        final_words: Callable[[], list[str]],
        act: Callable[[Action], None],
    ) -> None:
        self._config = config
        self._history = history
        self._ledger = ledger
        self._members = members
        self._parameters = parameters
        self._plan = plan
        self._final_words = final_words  # what a finished job is to be told
        self._act = act

    def stop(self, reason: str, now: float) -> None:
        """Cancel the job; what is trained to its end is kept in a last checkpoint."""
        message, is_trained = f"stopped: {reason}", self._history.phase in _ARE_TRAINED
        if self._config.command == "train" and is_trained and self._parameters.is_complete:
            self.fail_after_checkpoint(message, now, hurries=True)
        else:
            self.fail(message, now, is_cancelled=True)

    def finish(self, now: float) -> None:
        """End the job as finished, unless it has shortcomings."""
        if shortcomings := self._plan.shortcomings():
            self.fail("; ".join(shortcomings), now)
            return
        parts = (*self._final_words(), self._history.message)
        message = "; ".join(part for part in parts if part)
        self._parameters.job_finished()
        self._history.end(Phase.FINISHED, message, now)
        self._act(Note(kinds.JobEnded(str(Phase.FINISHED)), "the job is finished"))

    def fail_after_checkpoint(self, message: str, now: float, hurries: bool = False) -> None:
        """Fail, once what has been trained is in a checkpoint, if the job can write any.

        Args:
            message: Why.
            now: The time.
            hurries: The checkpoint is tried once, and not waited for long.
        """
        history, config = self._history, self._config
        if history.has_ended or history.failing:
            return
        is_for_user = self._plan.needs(Phase.CHECKPOINTING)
        is_kept = config.keeps_own_checkpoints and self._ledger.training_records_done > 0
        is_held = bool(self._members.present(Role.WORKER)) or not config.has_worlds
        has_trained = history.phase in _HAVE_TRAINED
        if not (has_trained and is_held and (is_for_user or is_kept)):
            self.fail(message, now, is_cancelled=hurries)
            return
        history.fail_after_checkpoint(message, hurries)
        if hurries:
            # Earlier failures may have made the pause before the next try long. A job that hurries
            # has only one try, so the pause is dropped and the try comes now.
            self._parameters.schedule.patience.succeeded()
        text = f"{message}; writing a last checkpoint"
        self._act(Note(kinds.JobStopping(), text, is_warning=True))

    def fail(self, message: str, now: float, is_cancelled: bool = False) -> None:
        """Fail at once."""
        config, newest = self._config, self._parameters.schedule.newest
        goes_on = not (is_cancelled or self._history.hurries) and self._can_go_on
        job_dir = config.cluster.job_dir
        if goes_on:
            message += f"; the same command with --job_dir={job_dir} goes on"
        elif newest is not None and newest.is_private and config.is_local:
            folder = f"{job_dir}/{RECOVERY_FOLDER}"
            message += f"; what was trained is in {folder}, where --checkpoint_dir_for_init begins"
        self._history.end(Phase.FAILED, message, now, goes_on)
        ended = kinds.JobEnded(str(Phase.FAILED))
        self._act(Note(ended, f"the job failed: {message}", is_warning=True))

    @property
    def _can_go_on(self) -> bool:
        """Whether another master can repair the cause of this job's failure.

        It tries again the tasks that were set aside, and goes on from there. A job that has trained
        nothing is begun anew instead. If the proof has found a fault, nothing can be trusted.
        """
        config = self._config
        is_resumable = config.cluster.job_dir is not None and not config.is_local
        has_trained = config.command == "train" and self._ledger.training_records_done > 0
        return is_resumable and has_trained and not self._history.is_unproved

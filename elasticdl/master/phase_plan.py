"""The plan of a job: which phases it needs, and when each is over. It changes nothing."""

from __future__ import annotations

from collections.abc import Callable

from elasticdl.config import JobConfig
from elasticdl.job import Role
from elasticdl.master.evaluation import Evaluations
from elasticdl.master.history import JobHistory
from elasticdl.master.ledger import Ledger
from elasticdl.master.membership import Membership
from elasticdl.master.parameters.pair import JobParameters
from elasticdl.master.phases import ORDER, Phase


class PhasePlan:
    """Decides the next phase of a job, from the state of its parts."""

    def __init__(
        self,
        config: JobConfig,
        history: JobHistory,
        ledger: Ledger,
        members: Membership,
        evaluations: Evaluations,
        parameters: JobParameters,
        holds: Callable[[Phase], bool],
    ) -> None:
        self._config = config
        self._history = history
        self._ledger = ledger
        self._members = members
        self._evaluations = evaluations
        self._parameters = parameters
        self._holds = holds  # whether a feature has still something to do in a phase

    @property
    def is_trained(self) -> bool:
        """Whether all training tasks are done, and nothing else is left to do now."""
        return self._ledger.is_trained and self._ledger.is_idle

    def is_over(self, phase: Phase) -> bool:
        """Whether a phase has nothing left; some are ended by an event of their own."""
        return self._is_done(phase) and not self._holds(phase)

    def _is_done(self, phase: Phase) -> bool:
        match phase:
            case Phase.PENDING:
                return self._parameters.is_complete and self._members.num_alive(Role.WORKER) > 0
            case Phase.TRAINING:
                return self.is_trained
            case Phase.EVALUATING | Phase.PREDICTING | Phase.EXPORTING:
                return self._ledger.is_idle
            case _:
                return False

    def after(self, phase: Phase) -> Phase:
        """Return the next phase that this job needs."""
        for candidate in ORDER[ORDER.index(phase) + 1 :]:
            if self.needs(candidate):
                return candidate
        raise AssertionError("every job ends with FINISHED")

    def needs(self, phase: Phase) -> bool:
        """Whether the job goes through a phase."""
        command, checkpoint = self._config.command, self._config.checkpoint
        is_sound = not self.shortcomings()
        match phase:
            case Phase.TRAINING:
                return command == "train"
            case Phase.PREDICTING:
                return command == "predict"
            case Phase.EVALUATING:
                return command != "predict" and self._is_to_evaluate and is_sound
            case Phase.EXPORTING:
                wanted = checkpoint.output or checkpoint.export_tables
                return command == "train" and wanted is not None and is_sound
            case Phase.CHECKPOINTING:
                is_kept = not is_sound and self._config.keeps_own_checkpoints
                return command == "train" and (checkpoint.checkpoint_dir is not None or is_kept)
            case Phase.AUDITING:
                return command == "train"
            case _:
                return True

    @property
    def _is_to_evaluate(self) -> bool:
        """Whether there is something to evaluate on that the last evaluation has not seen."""
        evaluations = self._evaluations
        seen = evaluations.num_epochs * self._ledger.per_epoch
        is_seen = evaluations.follows_epochs and bool(seen) and seen == self._ledger.num_begun
        return evaluations.can_start and not is_seen

    def shortcomings(self) -> list[str]:
        """Say what the job has not done, and will fail for."""
        set_aside = self._ledger.aside.words()
        return [*self._history.problems, *([set_aside] if set_aside else [])]

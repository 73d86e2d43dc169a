"""The history of the job as a whole: its phases, its failures, and its proof."""

from __future__ import annotations

from collections import deque
from dataclasses import astuple

from elasticdl.job.status import EpochLedger
from elasticdl.master.journal import Journal
from elasticdl.master.phases import ENDED, Phase
from elasticdl.state.base import Snapshot

_LAST_WORDS_KEPT = 100

BEGUN_FIRST, AT_REST = "begun tasks first", "at rest"
"""States of a change of the model: the old model does the tasks that are begun; none is begun."""

_RESTS = "the tasks that were begun are done by the model before"


class JobHistory:
    """Keeps the facts about the job as a whole.

    training_began: the time of the first lease of any kind.
    failures: the number of failures of processes.
    deaths_of_tasks: the number of workers that died of a task that they held.
    problems: the reasons for which the job will fail at its end.
    failing: the reason why the job fails as soon as its last checkpoint is written, or "".
    hurries: the job does not wait long for that checkpoint.
    goes_on: the job has failed, and the same command goes on with it.
    is_reopened: the job was reopened, and its processes are not yet planned.
    is_unproved: the proof has found a fault.
    ledger: the lines that the proof fills in.
    model_change: the state of a change of the model; "" if there is none.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.phase = Phase.PENDING
        self.training_began: float | None = None
        self.training_ended: float | None = None
        self.ended_seconds = 0.0
        self.failures = 0
        self.deaths_of_tasks = 0
        self.problems: list[str] = []
        self.failing = ""
        self.hurries = False
        self.goes_on = False
        self.is_reopened = False
        self.is_unproved = False
        self.message = ""
        self.model_change = ""
        self.ledger: tuple[EpochLedger, ...] = ()
        self._last_words: deque[str] = deque(maxlen=_LAST_WORDS_KEPT)
        journal.handle("began", self._apply_began)
        journal.handle("phase", self._apply_phase)
        journal.handle("ended", self._apply_ended)
        journal.handle("failure", self._apply_failure)
        journal.handle("death of task", self._apply_death_of_task)
        journal.handle("last words", self._last_words.append)
        journal.handle("problem", self._apply_problem)
        journal.handle("failing", self._apply_failing)
        journal.handle("message", self._apply_message)
        journal.handle("taken up", self._apply_taken_up)
        journal.handle("proof", self._apply_proof)
        journal.handle("model at rest", self._apply_at_rest)

    # --- events ----------------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Note the first lease."""
        if self.training_began is None:
            self._journal.record("began", now)

    def enter(self, phase: Phase, now: float) -> None:
        """Go on to a phase in which the job has not ended."""
        self._journal.record("phase", str(phase), now)

    def end(self, phase: Phase, message: str, now: float, goes_on: bool = False) -> None:
        """End the job as finished or failed; `goes_on`: the same command may take it up again."""
        self._journal.record("ended", str(phase), message, now, goes_on)

    def taken_up(self) -> None:
        """Note that the processes of a job that was reopened are planned."""
        if self.is_reopened:
            self._journal.record("taken up")

    def process_failed(self) -> None:
        """Count a failure of a process."""
        self._journal.record("failure")

    def worker_died_of_task(self) -> None:
        """Count a worker that died of a task."""
        self._journal.record("death of task")

    def heard_last_words(self, words: str) -> None:
        """Keep what a lost process said last."""
        if words:
            self._journal.record("last words", words)

    def add_problem(self, message: str, is_of_proof: bool = False) -> None:
        """Note what will fail the job at its end."""
        self._journal.record("problem", message, is_of_proof)

    def fail_after_checkpoint(self, message: str, hurries: bool = False) -> None:
        """Note what fails the job as soon as its last checkpoint is written."""
        self._journal.record("failing", message, hurries)

    def say(self, message: str) -> None:
        """Set what is to be said of the job now."""
        if message != self.message:
            self._journal.record("message", message)

    def proved(self, ledger: tuple[EpochLedger, ...], note: str) -> None:
        """Note the result of the proof."""
        self._journal.record("proof", [list(astuple(line)) for line in ledger], note)

    def come_to_rest(self) -> None:
        """Have what was trained written, since no task is begun: another model may go on then."""
        self.fail_after_checkpoint(_RESTS)

    def model_is_at_rest(self) -> None:
        """Note that no task is begun: another model may go on."""
        self._journal.record("model at rest")

    # --- questions -------------------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        """Whether the job has finished or failed."""
        return self.phase in ENDED

    @property
    def is_at_rest(self) -> bool:
        """Whether the model changes, and none of the training tasks is begun: the master leaves."""
        return self.model_change == AT_REST

    @property
    def is_stopping(self) -> bool:
        """Whether nothing is begun any more: the job fails, or rests for another model."""
        return bool(self.failing) or self.is_at_rest

    @property
    def comes_to_rest(self) -> bool:
        """Whether what was trained is being written, so that another model may go on."""
        return self.failing == _RESTS

    def has_heard(self, words: str) -> bool:
        """Whether another process has failed with the same last words."""
        return words in self._last_words

    # --- facts -----------------------------------------------------------------------------------

    def _apply_phase(self, phase: str, now: float) -> None:
        if self.training_began is not None and self.training_ended is None:
            self.training_ended = now
        self.phase = Phase(phase)

    def _apply_began(self, now: float) -> None:
        self.training_began = now

    def _apply_ended(self, phase: str, message: str, now: float, goes_on: bool = False) -> None:
        self.phase = Phase(phase)
        self.goes_on = goes_on
        self.message = message
        self.ended_seconds = now
        if self.training_ended is None:
            self.training_ended = now

    def _apply_failure(self) -> None:
        self.failures += 1

    def _apply_death_of_task(self) -> None:
        self.deaths_of_tasks += 1

    def _apply_problem(self, message: str, is_of_proof: bool = False) -> None:
        self.problems.append(message)
        self.is_unproved |= is_of_proof

    def _apply_failing(self, message: str, hurries: bool = False) -> None:
        self.failing, self.hurries = message, hurries

    def _apply_message(self, message: str) -> None:
        self.message = message

    def _apply_proof(self, lines: list[list[int]], note: str) -> None:
        self.ledger = tuple(EpochLedger(*line) for line in lines)
        self.message = note

    def reopened(self) -> None:
        """Go on with a job that had failed; a part of a fact."""
        self.phase, self.is_reopened = Phase.TRAINING, True
        self.goes_on = self.hurries = False
        self.failing = self.message = ""
        self.problems.clear()
        self.failures = self.deaths_of_tasks = 0
        self._last_words.clear()

    def _apply_taken_up(self) -> None:
        self.is_reopened = False

    def _apply_at_rest(self) -> None:
        self.model_change, self.failing = AT_REST, ""

    def model_changes(self, how: str) -> None:
        """Begin to change the model, or go on by the other one (""); a part of a fact."""
        self.model_change, self.failing = how, ""

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it."""
        return {
            "phase": str(self.phase),
            "times": [self.training_began, self.training_ended, self.ended_seconds],
            "failures": self.failures,
            "deaths_of_tasks": self.deaths_of_tasks,
            "last_words": list(self._last_words),
            "problems": list(self.problems),
            "failing": self.failing,
            "ways_on": [self.hurries, self.goes_on, self.is_reopened, self.is_unproved],
            "message": self.message,
            "model_change": self.model_change,
            "proof": [list(astuple(line)) for line in self.ledger],
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of a snapshot."""
        self.phase = Phase(snapshot["phase"])
        self.training_began, self.training_ended, self.ended_seconds = snapshot["times"]
        self.failures = snapshot["failures"]
        self.deaths_of_tasks = snapshot["deaths_of_tasks"]
        self._last_words.extend(snapshot["last_words"])
        self.problems = list(snapshot["problems"])
        self.failing = snapshot["failing"]
        ways_on = snapshot.get("ways_on", [False] * 4)  # earlier versions had none
        self.hurries, self.goes_on, self.is_reopened, self.is_unproved = ways_on
        self.message = snapshot["message"]
        self.model_change = snapshot.get("model_change", "")
        self.ledger = tuple(EpochLedger(*line) for line in snapshot["proof"])

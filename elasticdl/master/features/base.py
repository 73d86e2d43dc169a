"""The contract between the master's core and its features.

The core has what every job needs: leases, processes, parameters and phases. All else is a
`JobFeature` in a list. The core calls each hook of each feature, in the order of the list, and
knows none of them by name. See docs/designs/features.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from elasticdl.config import JobConfig
from elasticdl.job import Lease, Outcome, Progress, Task, TaskReport
from elasticdl.job.status import JobStatus
from elasticdl.master.actions import Action, Note
from elasticdl.master.evaluation import Evaluations
from elasticdl.master.history import JobHistory
from elasticdl.master.journal import Journal
from elasticdl.master.ledger import Ledger, Settled
from elasticdl.master.membership import Member, Membership
from elasticdl.master.parameters.pair import JobParameters
from elasticdl.master.phase_plan import PhasePlan
from elasticdl.master.phases import Phase
from elasticdl.master.processes import Processes
from elasticdl.master.progress import Meter
from elasticdl.master.results import Failure
from elasticdl.master.tasks import JobTasks
from elasticdl.master.waiting import LeaseRules
from elasticdl.observe.kind import Kind
from elasticdl.state.base import Snapshot


@dataclass(frozen=True, slots=True)
class JobParts:
    """The parts of the core that a feature may look at, and what it may ask the core for.

    fail: Fails the job, with words.
    fail_after_checkpoint: Does so once what has been trained is in a checkpoint.
    advance: Goes on to what is due; a feature calls it at the end of an event of its own.
    """

    config: JobConfig
    tasks: JobTasks
    journal: Journal
    history: JobHistory
    ledger: Ledger
    members: Membership
    evaluations: Evaluations
    meter: Meter
    parameters: JobParameters
    plan: PhasePlan
    processes: Processes
    act: Callable[[Action], None]
    fail: Callable[[str, float], None]
    fail_after_checkpoint: Callable[[str, float], None]
    advance: Callable[[float], None]

    def note(self, kind: Kind, text: str, is_warning: bool = False) -> None:
        """Have something said in the log and in the event log."""
        self.act(Note(kind, text, is_warning))


class JobFeature:
    """A feature of a job. Each hook does nothing by itself; a feature overrides those it needs.

    A feature decides as the core does: it is told of events and of the time, records facts in the
    journal, and asks for actions. It reads no clock, no file and no socket. It registers its facts
    with the journal when it is made.

    Events that only one feature knows are methods of that feature. The caller of such a method
    finds the feature with `Features.of`.
    """

    # --- events ----------------------------------------------------------------------------------

    def resumed(self, now: float) -> None:
        """Another master goes on with the job, after its facts were replayed."""

    def heard(self, member: Member, progress: Progress) -> None:
        """A worker has told with a heartbeat how far it is."""

    def worker_lost(self, worker_id: int) -> None:
        """A worker is lost."""

    def leased(self, task: Task, now: float) -> None:
        """A task has been leased, not for a second attempt at the same request."""

    def checked(self, task: Task, report: TaskReport) -> TaskReport:
        """Return the report that a worker ends its lease with, as a failure if it is wrong."""
        return report

    def outcome(self, task: Task, report: TaskReport, outcome: Outcome, now: float) -> Outcome:
        """Return how the lease that a worker reports ends for the ledger: usually as it says."""
        return outcome

    def ended(self, task: Task, report: TaskReport, settled: Settled, now: float) -> None:
        """A lease has ended, by a report or because its worker died of the task."""

    def settled(self, task: Task, report: TaskReport, settled: Settled) -> Failure | None:
        """A lease has ended, and the job goes on so far; return a failure if it is to fail."""
        return None

    def advance(self, now: float) -> None:
        """Something has happened: start what is due. Called with each event until the job ends."""

    def entered(self, phase: Phase, now: float) -> None:
        """The job has gone on to a phase."""

    def passing(self, is_training_over: bool) -> None:
        """The core has asked for all that is due; training may end with this event."""

    def reopened(self) -> None:
        """The job had failed, and begins to go on. A part of a fact: change only what is yours."""

    # --- questions -------------------------------------------------------------------------------

    def may_begin(self, num_tasks: int) -> int:
        """Return how many training tasks may be begun, of those that the features before allow."""
        return num_tasks

    def may_lease(self, task_id: int) -> bool:
        """Whether a task may be leased beside those that are leased now."""
        return True

    def may_try(self, task_id: int, now: float) -> bool:
        """Whether it is time to lease a task; if not, no other task is leased in its place."""
        return True

    def has_errand(self, now: float) -> bool:
        """Whether a worker is wanted for something that is no task of the ledger."""
        return False

    def errand(self, worker_id: int, now: float) -> Lease:
        """Return that errand, as a lease of a task with an id below zero. Asked if there is one."""
        raise NotImplementedError

    def errand_ended(self, report: TaskReport) -> bool:
        """An errand has ended; return whether the report was waited for."""
        return False

    def completed(self, lease: Lease) -> Lease:
        """Return a lease together with what its worker has to know for this feature."""
        return lease

    def holds(self, phase: Phase) -> bool:
        """Whether the job stays in a phase, though the ledger has nothing left to do in it."""
        return False

    def is_looked_at_by(self, worker_id: int) -> bool:
        """Whether a worker looks at the data now, before its first task."""
        return False

    def spares(self, now: float) -> bool:
        """Whether the job goes on, though the last checkpoint of a failing job is written."""
        return False

    @property
    def event_seconds(self) -> float | None:
        """The event time that the data has reached; 0: not known; None: it has no times."""
        return None

    # --- displays --------------------------------------------------------------------------------

    def show(self, status: JobStatus) -> JobStatus:
        """Return a picture of the job, with what this feature has to show."""
        return status

    def troubles(self) -> list[str]:
        """Say what the job waits for, as far as this feature knows."""
        return []

    def final_words(self) -> str:
        """Say what a finished job is to be told of this feature; "" for nothing."""
        return ""

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it, under keys that no other part of the job has."""
        return {}

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state; `snapshot` is that of the whole job."""


F = TypeVar("F", bound=JobFeature)


class Features(LeaseRules):
    """The features of a job, asked one after the other."""

    def __init__(self) -> None:
        """Begin empty: the ledger needs this object, and the features need the ledger."""
        self._features: list[JobFeature] = []
        self._overriding: dict[str, list[JobFeature]] = {}

    def __iter__(self) -> Iterator[JobFeature]:
        return iter(self._features)

    def add(self, features: Iterable[JobFeature]) -> None:
        """Add features, which come after those that are here."""
        self._features.extend(features)
        self._overriding.clear()

    def overriding(self, hook: Callable[..., object]) -> list[JobFeature]:
        """Return the features that override a hook; most features override few hooks."""
        name = hook.__name__
        found = self._overriding.get(name)
        if found is None:
            found = [f for f in self._features if getattr(type(f), name) is not hook]
            self._overriding[name] = found
        return found

    def of(self, kind: type[F]) -> F:
        """Return the feature of a class.

        Raises:
            LookupError: The job has none.
        """
        for feature in self._features:
            if isinstance(feature, kind):
                return feature
        raise LookupError(f"this job has no {kind.__name__}")

    def may_begin(self, num_tasks: int) -> int:
        """Return how many training tasks may be begun; the last feature has the last word."""
        for feature in self.overriding(JobFeature.may_begin):
            num_tasks = feature.may_begin(num_tasks)
        return num_tasks

    def may_lease(self, task_id: int) -> bool:
        """Whether a task may be leased beside those that are leased now."""
        return all(f.may_lease(task_id) for f in self.overriding(JobFeature.may_lease))

    def checked(self, task: Task, report: TaskReport) -> TaskReport:
        """Return the report of a lease, as a failure if a feature finds it wrong."""
        for feature in self.overriding(JobFeature.checked):
            report = feature.checked(task, report)
        return report

    def outcome(self, task: Task, report: TaskReport, now: float) -> Outcome:
        """Return how the lease that a worker reports ends for the ledger."""
        outcome = report.outcome
        for feature in self.overriding(JobFeature.outcome):
            outcome = feature.outcome(task, report, outcome, now)
        return outcome

    def settled(self, task: Task, report: TaskReport, settled: Settled) -> Failure | None:
        """Have all features take in the end of a lease; return the first failure."""
        features = self.overriding(JobFeature.settled)
        found = [feature.settled(task, report, settled) for feature in features]
        return next(filter(None, found), None)

    def completed(self, lease: Lease) -> Lease:
        """Return a lease with what its worker has to know."""
        for feature in self.overriding(JobFeature.completed):
            lease = feature.completed(lease)
        return lease

    def errands(self, now: float) -> list[JobFeature]:
        """Return the features that want a worker for something of their own."""
        return [f for f in self.overriding(JobFeature.has_errand) if f.has_errand(now)]

    def errand_ended(self, report: TaskReport) -> bool:
        """An errand has ended; return whether the report was waited for."""
        return any(feature.errand_ended(report) for feature in self._features)

    def holds(self, phase: Phase) -> bool:
        """Whether the job stays in a phase."""
        return any(f.holds(phase) for f in self.overriding(JobFeature.holds))

    def is_looked_at_by(self, worker_id: int) -> bool:
        """Whether a worker looks at the data now, before its first task."""
        return any(feature.is_looked_at_by(worker_id) for feature in self._features)

    def spares(self, now: float) -> bool:
        """Whether the job goes on, though the last checkpoint of a failing job is written."""
        return any(feature.spares(now) for feature in self._features)

    @property
    def event_seconds(self) -> float | None:
        """The event time that the data has reached; 0: not known; None: it has no times."""
        found = [feature.event_seconds for feature in self._features]
        return next((seconds for seconds in found if seconds is not None), None)

    def show(self, status: JobStatus) -> JobStatus:
        """Return a picture of the job, with what each feature has to show."""
        for feature in self._features:
            status = feature.show(status)
        return status

    def troubles(self) -> list[str]:
        """Say what the job waits for."""
        return [words for feature in self._features for words in feature.troubles()]

    def final_words(self) -> list[str]:
        """Say what a finished job is to be told."""
        return [words for feature in self._features if (words := feature.final_words())]

    def snapshot(self) -> Snapshot:
        """Return the state of all as JSON has it."""
        found: Snapshot = {}
        for feature in self._features:
            found |= feature.snapshot()
        return found

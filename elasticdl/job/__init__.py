"""The nouns that all rooms share: records come in shards, shards are cut into tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

Event: TypeAlias = dict[str, Any]
"""A line of the event log, as parsed JSON. `observe/kinds.py` lists the fields of each event."""

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    MetricStates = dict[str, list[NDArray[np.float64]]]
else:  # the import of NumPy takes a fifth of the start of a process that has no use for it
    MetricStates = dict[str, list]
"""The state arrays of each metric, by its name (`output/metric` if there are several outputs).

The arrays are sums. Two states of one metric are merged by adding array to array."""


STALENESS_BUCKETS = 16
"""Updates are counted as 0, 1, 2 to 3, 4 to 7, ... versions late. The last bucket has the rest."""


def staleness_bucket(staleness: int) -> int:
    """Return the bucket of a histogram in which an update counts."""
    return min(int(staleness).bit_length(), STALENESS_BUCKETS - 1)


COUNTERS = {
    "duplicates": "minibatches that came to a ps replica again, and were acknowledged",
    "stale_leases": "requests under a lease that was over, refused by a ps replica",
    "gaps": "minibatches before which others were missing, refused by a ps replica",
    "stale_reports": "reports of a lease that was over, refused by the master",
    "resumed_tasks": "tasks that another lease went on with, past their first minibatch",
    "resumed_masters": "masters that went on with the job of one that was lost",
}
"""The counters of recovery, with their meaning. A ps replica counts since it began."""


class Mode(StrEnum):
    """The purpose for which `feed` prepares records."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"


class DataCheckTurn(StrEnum):
    """Whether a worker looks at the data before the first record of the job."""

    YOURS = "yours"
    WAIT = "wait"  # another worker looks at the data
    OVER = "over"


FIRST_LOSS = "first loss"
"""This metric of a training task is the loss of its first minibatch."""

OF_MODEL = "model: "
"""A finding of the data check that is about the model begins with this."""

SLOW_READING = "slow to read: "
"""A finding of the data check has this before the reason why records are slow to read."""


class Strategy(StrEnum):
    """The place where parameters live (`--distribution_strategy`)."""

    LOCAL = "Local"
    PARAMETER_SERVER = "ParameterServerStrategy"
    ALLREDUCE = "AllreduceStrategy"
    HYBRID = "HybridStrategy"


class Role(StrEnum):
    """A kind of process; processes say it to each other, so those of packages are here too."""

    MASTER = "master"
    WORKER = "worker"
    PS = "ps"
    MODEL_SERVER = "modelserver"

    @property
    def words(self) -> str:
        """The name of this role in messages."""
        return {Role.PS: "ps replica", Role.MODEL_SERVER: "model server"}.get(self, self.value)


class Label(StrEnum):
    """The activity of a process at a moment. For a worker it is that of its computing thread."""

    STARTING = "starting"  # not yet ready to take part
    TRAIN = "train"
    WAIT_FOR_DATA = "wait for data"
    WAIT_FOR_PARAMETERS = "wait for parameters"
    EVALUATE = "evaluate"  # runs the model without training it: predictions too
    CHECKPOINT = "checkpoint"  # writes the model: exports too
    RE_FORM = "re-form"  # agrees with others on who takes part
    RECOVER = "recover"  # makes good what was lost, or waits until that is done
    PENDING = "pending"  # waits for processes to be started
    IDLE = "idle"  # there is nothing for it to do


class TaskKind(StrEnum):
    """The kind of work that a task asks for."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"
    METRICS = "metrics"  # compute the results of merged metric states
    EXPORT = "export"  # write the trained model
    CALLBACKS = "callbacks"  # call the user's callbacks


@dataclass(frozen=True, slots=True)
class Shard:
    """Records `[start, end)` of a named source; the reader of the data understands `name`."""

    name: str
    start: int
    end: int

    @property
    def num_records(self) -> int:
        """The number of records in the shard."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Task:
    """A range of one shard, for one epoch and one purpose. `id` is unique within the job.

    METRICS, EXPORT and CALLBACKS tasks have an empty shard. `evaluation_id` is set for EVALUATION
    and METRICS tasks and the CALLBACKS task of an evaluation, -1 otherwise.
    """

    id: int
    kind: TaskKind
    shard: Shard
    epoch: int = 0
    evaluation_id: int = -1

    def __str__(self) -> str:
        """Say which task it is, as messages do."""
        if not self.shard.name:
            return f"{self.kind} task {self.id}"
        return (
            f"{self.kind} task {self.id} (records {self.shard.start} to {self.shard.end} of "
            f"{self.shard.name}, epoch {self.epoch})"
        )


class MomentKind(StrEnum):
    """The kinds of moments at which callbacks are called."""

    TRAIN_BEGIN = "train begin"
    EPOCH_END = "epoch end"  # and the begin of the next one
    EVALUATION = "evaluation"
    TRAIN_END = "train end"


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment at which callbacks are called. `number` counts epochs or evaluations from 0."""

    kind: MomentKind
    number: int = 0
    logs: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CallbackCall:
    """The input of a CALLBACKS task.

    state: JSON that the last CALLBACKS task returned; "" for the first one.
    learning_rate: The rate that a callback has set; None: the optimizer uses its own.
    """

    state: str
    learning_rate: float | None
    moment: Moment
    num_epochs: int


@dataclass(frozen=True, slots=True)
class CallbackResult:
    """The decisions of callbacks. `stop` says why training is to stop; "" if it goes on."""

    state: str
    learning_rate: float | None = None
    stop: str = ""


@dataclass(frozen=True, slots=True)
class Lease:
    """A task in the hands of one worker. `number` counts the hand-outs of this task from 1.

    is_suspect: A worker was lost, and this task may be the cause. The worker that holds such a
        task works on nothing else, one minibatch after the other. It announces each stage before
        the stage begins. So the next death shows the minibatch.
    report_may_wait: The report that it is done may come with the worker's next request for a task.
    """

    task: Task
    number: int
    metric_states: MetricStates = field(default_factory=dict)  # merged; for METRICS tasks only
    generation: int = 0  # of route and world at the start of the lease: `JointGeneration`
    is_suspect: bool = False
    learning_rate: float | None = None  # TRAINING: set by a callback; None: the optimizer's own
    callbacks: CallbackCall | None = None  # CALLBACKS
    late_before: float = 0.0  # TRAINING on a stream: a message with an earlier time is late
    place: int = 0  # TRAINING: number of the task in the order of all epochs
    report_may_wait: bool = False

    @property
    def fence(self) -> int:
        """The number that ps replicas know it by, which grows with each lease of the task.

        That of any lease of a later generation is larger, too.
        """
        return first_fence(JointGeneration.of(self.generation).of_ps) + self.number


@dataclass(frozen=True, slots=True)
class Position:
    """The minibatch and the stage that a worker has reached in a task that it holds.

    seconds: Time in this stage so far, if the stage takes long; 0: the stage begins.
    is_overdue: The stage takes too long, so the worker ends itself.
    """

    task_id: int
    lease: int
    minibatch: int  # -1: the stage belongs to no single minibatch
    stage: str
    seconds: float = 0.0
    is_overdue: bool = False

    @property
    def is_in_model_file(self) -> bool:
        """Whether the stage runs the user's code. The other stages wait for ps replicas."""
        return self.stage not in ("pull", "push")

    def of(self, task: Task) -> str:
        """Return the position in words: `feed of minibatch 3 of training task 7 (records ...)`."""
        minibatch = f"minibatch {self.minibatch} of " if self.minibatch >= 0 else ""
        return f"{self.stage} of {minibatch}{task}"


@dataclass(frozen=True, slots=True)
class Wait:
    """No task is free now; ask again after `seconds`, with patience."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The job no longer needs this worker."""


class Outcome(StrEnum):
    """The ways in which a lease ends."""

    DONE = "done"
    FAILED = "failed"  # the user's code or data raised; `message` says what and where
    RETURNED = "returned"  # the worker leaves, or lost its parameters; costs no retry


@dataclass(frozen=True, slots=True)
class MeasuredWindow:
    """The part of a task of a stream that belongs to one window of event time.

    The model scores each minibatch before it is trained, in the first lease of a task. A whole
    minibatch counts in the window of its newest message.

    number: Number of the window: its start divided by its length, in seconds since 1970.
    num_messages: Messages of the task in this window, each by its own time.
    num_trained: Trained records of the minibatches in this window.
    loss_sum: Sum of the loss over these records.
    num_measured: The number of these records that `metric_states` covers.
    """

    number: int
    num_messages: int = 0
    num_trained: int = 0
    loss_sum: float = 0.0
    num_measured: int = 0
    metric_states: MetricStates = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskReport:
    """The report of a worker at the end of a lease.

    fatal: The job fails at once (for example with `--on_nan=stop`).
    may_pass: The cause is outside of the job, such as a full disk. A later try may succeed.
    is_certain: Another try would fail in the same way.
    num_records: Examples that were trained, evaluated or predicted under this lease.
    loss_sum: Sum over the minibatches of loss x examples.
    end_index: Minibatches that `feed` made of the task; -1: not known.
    num_examples: Examples in these minibatches; -1: not known. `feed` may leave records out, or
        make several examples of one record. So this number can differ from that of the records.
    num_missing: Positions of the task less its records. It is negative if messages have several
        records each.
    num_unreadable: Messages that the worker could not read and has set aside.
    num_late: Records that came late. They count here even if they were not trained.
    num_gone: Positions that the broker deleted before they were read.
    time: Newest event time of the records in seconds since 1970, or 0.
    skipped: Minibatches that were left out because of `--on_nan=skip`.
    skipped_examples: The number of examples in each of these.
    """

    task_id: int
    lease: int
    outcome: Outcome
    message: str = ""
    fatal: bool = False
    may_pass: bool = False
    is_certain: bool = False
    num_records: int = 0
    loss_sum: float = 0.0
    model_version: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0
    staleness_histogram: tuple[int, ...] = ()  # by `staleness_bucket`
    num_recomputed: int = 0  # minibatches computed again on newer parameters
    num_minibatches: int = 0
    end_index: int = -1
    num_examples: int = -1
    num_missing: int = 0
    num_unreadable: int = 0
    num_late: int = 0
    num_gone: int = 0
    time: float = 0.0
    windows: tuple[MeasuredWindow, ...] = ()  # TRAINING on a stream; not in metric_states
    skipped: tuple[int, ...] = ()
    skipped_examples: tuple[int, ...] = ()
    metric_states: MetricStates = field(default_factory=dict)  # EVALUATION, TRAINING
    num_measured: int = 0  # TRAINING: records in metric_states, without those in windows
    metrics: dict[str, float] = field(default_factory=dict)  # METRICS: the results
    callbacks: CallbackResult | None = None  # CALLBACKS


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress that a worker reports with each heartbeat: totals since its process began."""

    num_records: int = 0
    loss_sum: float = 0.0
    num_minibatches: int = 0
    model_version: int = 0
    stage_seconds: dict[str, float] = field(default_factory=dict)  # feed, ids, pull, compute, ...
    learning_rate: float | None = None  # of the last step
    waits_for: str = ""  # the data that it cannot read at present, and why


@dataclass(frozen=True, slots=True)
class TaskAudit:
    """The minibatches `[0, next_index)` of one task that one ps replica has applied."""

    task_id: int
    next_index: int
    num_records: int  # examples, as the pushes said; a minibatch applied twice counts twice


@dataclass(frozen=True, slots=True)
class PsRoute:
    """The addresses of ps replicas. `generation` counts replicas that were lost and are back."""

    generation: int
    addresses: tuple[str, ...]  # by index; "" for a replica that is not there
    layout: int = 0  # counts the moves to other numbers of replicas


@dataclass(frozen=True, slots=True)
class ReplicaStart:
    """The state with which a new process of a ps replica begins."""

    checkpoint: str  # folder of a whole checkpoint of this job; "": there is none
    redo_log: str = ""  # folder of its redo log; "": the job keeps none
    num_replicas: int = 0  # of the whole model; 0: the number in the settings of the job
    layout: int = 0  # counts the moves to other numbers of replicas
    awaits_move: bool = False  # a move of rows gives it its state
    journal_system: str = ""  # the system that keeps the master's journal; "": not known
    first_lease: int = 0  # `Lease.fence` of the first lease that it may let in


@dataclass(frozen=True, slots=True)
class JointGeneration:
    """The generations of world and ps replicas in a hybrid job; a lease has them as one number."""

    of_worlds: int
    of_ps: int

    @classmethod
    def of(cls, number: int) -> JointGeneration:
        """Return the two generations in one number."""
        return cls(number >> _PS_BITS, number & ((1 << _PS_BITS) - 1))

    @property
    def number(self) -> int:
        """Both generations as one number."""
        return (self.of_worlds << _PS_BITS) | self.of_ps


_PS_BITS = 32


def first_fence(generation: int) -> int:
    """Return a number below `Lease.fence` of a generation's leases, and not below earlier ones'."""
    return min(generation, _MOST_FENCED) << _LEASE_BITS


_LEASE_BITS = 16  # of the 32 that replicas have for a lease
_MOST_FENCED = (1 << 15) - 1


@dataclass(frozen=True, slots=True)
class HotKeys:
    """The keys of a table that a worker has looked up most since its last report.

    num_ids: Ids that were counted. Only a sample of the minibatches is counted.
    keys: Each key, with the number of counted ids that it has.
    """

    table: str
    num_ids: int
    keys: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Usage:
    """The use of time, memory and network that a process of any role reports with a heartbeat.

    All numbers are totals since the process began.

    began: Time of its start in seconds since 1970. It tells a process from its successor.
    label: Its activity now.
    label_seconds: Seconds by activity. They add up to the time since the process began.
    bytes_sent, bytes_received: Bytes of tensors and their frames, without calls of the master.
    host: Its machine, or its pod.
    wants_checkpoint: The redo log of a ps replica is nearly full, or its writing has failed.
    """

    began: float
    label: Label
    label_seconds: dict[str, float]
    cpu_seconds: float
    resident_bytes: int
    bytes_sent: int
    bytes_received: int
    host: str = ""
    hot_keys: tuple[HotKeys, ...] = ()  # in some heartbeats only
    core_wait_seconds: float = 0.0  # its threads waited for a core; summed over them
    wants_checkpoint: bool = False


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """The answer of the master to a heartbeat.

    interval_seconds: Time until the next heartbeat.
    route: Addresses of the ps replicas, if they have changed.
    is_recovering: Whether parameters are lost and not yet restored.
    ended_world: The world of all-reduce that is to end at the next step; 0: no world ends.
    """

    interval_seconds: float
    route: PsRoute | None = None
    is_recovering: bool = False
    ended_world: int = 0


@dataclass(frozen=True, slots=True)
class Attendance:
    """The message of a worker that comes to the rendezvous of an all-reduce job.

    ring: Address at which its ring listens.
    store: Address at which other workers can read its parameters.
    version: Updates that its parameters have; -1: it has no parameters.
    synced_world: The last world in which its parameters were the same as those of the others.
    told_world: The last world that the master gave it. The worker has left this world.
    missed: Workers of that world that it could not reach.
    num_unsound, problem: See `GrpcMasterClient.restore_point`.
    """

    ring: str
    store: str = ""
    version: int = -1
    synced_world: int = 0
    told_world: int = 0
    missed: tuple[int, ...] = ()
    num_unsound: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Seat:
    """A worker's place in a world: a numbered agreement on who reduces together.

    The tuples are by rank. The parameters of rank 0 count. A worker that is behind gets them
    before the first step.

    tasks_per_epoch: Number of training tasks. It decides which tasks make one update together.
    """

    world_id: int
    rank: int
    workers: tuple[int, ...]
    rings: tuple[str, ...]
    are_behind: tuple[bool, ...]
    generation: int = 0
    tasks_per_epoch: int = 0


@dataclass(frozen=True, slots=True)
class Restore:
    """No worker has parameters: start from this checkpoint, or, if it is "", from the beginning."""

    checkpoint: str


@dataclass(frozen=True, slots=True)
class ServedProgram:
    """A model without its parameters, which a worker has written for model servers.

    name: Its folder, beside the versions of an export.
    sha256: Hash of its list of files.
    """

    name: str
    sha256: str

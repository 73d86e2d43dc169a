"""The nouns that all rooms share: records come in shards, shards are cut into tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Event: TypeAlias = dict[str, Any]
"""A line of the event log, as JSON has it: `observe/kinds.py` says which fields an event has."""

MetricStates = dict[str, list[NDArray[np.float64]]]
"""Sums that add up over workers: metric name (`output/metric` when there are several outputs) ->
the state arrays of that metric. Two states of one metric merge by adding array to array."""


STALENESS_BUCKETS = 16
"""Counts of updates that were 0, 1, 2 to 3, 4 to 7, ... versions late; the last has the rest."""


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
"""What is counted of the ways in which a job recovers. Ps replicas count since they began."""


class Mode(StrEnum):
    """What `feed` prepares records for."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"


class DataCheckTurn(StrEnum):
    """Whether a worker looks at the data before the first record of the job."""

    YOURS = "yours"
    WAIT = "wait"  # another one is at it
    OVER = "over"


FIRST_LOSS = "first loss"
"""Among the metrics of a training task: the loss of its first minibatch."""

OF_MODEL = "model: "
"""Begins a line about the model among those of the look at the data."""


class Strategy(StrEnum):
    """Where parameters live (`--distribution_strategy`)."""

    LOCAL = "Local"
    PARAMETER_SERVER = "ParameterServerStrategy"
    ALLREDUCE = "AllreduceStrategy"
    HYBRID = "HybridStrategy"


class Role(StrEnum):
    """A kind of process."""

    MASTER = "master"
    WORKER = "worker"
    PS = "ps"
    MODEL_SERVER = "modelserver"

    @property
    def words(self) -> str:
        """What a process of this role is called in messages."""
        return {Role.PS: "ps replica", Role.MODEL_SERVER: "model server"}.get(self, self.value)


class Label(StrEnum):
    """What a process does with a second of its time. A worker's is that of its computing thread."""

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
    """What a worker does with a task."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"
    METRICS = "metrics"  # compute the results of merged metric states
    EXPORT = "export"  # write the trained model
    CALLBACKS = "callbacks"  # call the user's callbacks


@dataclass(frozen=True, slots=True)
class Shard:
    """Records `[start, end)` of a named source; `name` is what its reader understands."""

    name: str
    start: int
    end: int

    @property
    def num_records(self) -> int:
        """How many records the shard holds."""
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
    """What callbacks are called for."""

    TRAIN_BEGIN = "train begin"
    EPOCH_END = "epoch end"  # and the begin of the next one
    EVALUATION = "evaluation"
    TRAIN_END = "train end"


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that callbacks are called for; `number` of the epoch or evaluation, from 0."""

    kind: MomentKind
    number: int = 0
    logs: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CallbackCall:
    """What a CALLBACKS task is given.

    state: JSON that the callbacks before left; "" if there were none. learning_rate: what one of
    them has set; None: the optimizer's own.
    """

    state: str
    learning_rate: float | None
    moment: Moment
    num_epochs: int


@dataclass(frozen=True, slots=True)
class CallbackResult:
    """What callbacks have decided. `stop` says why training is to stop; "" if it is not."""

    state: str
    learning_rate: float | None = None
    stop: str = ""


@dataclass(frozen=True, slots=True)
class Lease:
    """A task in the hands of one worker. `number` counts the hand-outs of this task from 1.

    is_suspect: a worker was lost that may have died of this task. Whoever holds it works on it
        alone, one minibatch after the other, and announces each stage before it begins, so that
        the next death names the minibatch.
    """

    task: Task
    number: int
    metric_states: MetricStates = field(default_factory=dict)  # merged; for METRICS tasks only
    generation: int = 0  # of the route, and the world, when it was handed out: `JointGeneration`
    is_suspect: bool = False
    learning_rate: float | None = None  # TRAINING: what a callback has set
    callbacks: CallbackCall | None = None  # CALLBACKS
    late_before: float = 0.0  # TRAINING, of a stream: a message of an earlier time is late
    place: int = 0  # TRAINING: in the order of all epochs, in which tasks are handed out


@dataclass(frozen=True, slots=True)
class Position:
    """Where a worker is in a task that it holds.

    seconds: how long it has been there, of one that takes long; 0: it begins there.
    is_overdue: it has been there for too long, so the worker ends itself.
    """

    task_id: int
    lease: int
    minibatch: int  # -1: none in particular
    stage: str
    seconds: float = 0.0
    is_overdue: bool = False

    @property
    def is_in_model_file(self) -> bool:
        """Whether the stage runs the user's code; the others wait for ps replicas."""
        return self.stage not in ("pull", "push")

    def of(self, task: Task) -> str:
        """Say where in its task it is: `feed of minibatch 3 of training task 7 (records ...)`."""
        minibatch = f"minibatch {self.minibatch} of " if self.minibatch >= 0 else ""
        return f"{self.stage} of {minibatch}{task}"


@dataclass(frozen=True, slots=True)
class Wait:
    """No task is free now; ask again after `seconds`, with patience."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The job needs this worker no longer."""


class Outcome(StrEnum):
    """How a lease ended."""

    DONE = "done"
    FAILED = "failed"  # the user's code or data raised; `message` says what and where
    RETURNED = "returned"  # the worker leaves, or lost its parameters; costs no retry


@dataclass(frozen=True, slots=True)
class MeasuredWindow:
    """What a task of a stream has in one window of event time.

    number: of the window: how many of its length lie between 1970 and its start. num_messages: of
    the task's records, by their own times. The others are of its minibatches, each of which counts
    in the window of its newest message: records trained, their summed loss, and the metrics of
    `num_measured` of them. In the first lease of a task each was scored before it was trained.
    """

    number: int
    num_messages: int = 0
    num_trained: int = 0
    loss_sum: float = 0.0
    num_measured: int = 0
    metric_states: MetricStates = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What a worker says when a lease ends.

    `end_index` is how many minibatches `feed` made of the task, `num_examples` how many examples
    were in them; -1 if that is not known. Where `feed` leaves records out, or makes several
    examples of one, there are fewer or more examples than records. `num_missing` says how many
    more positions than records the task has (below zero: messages have several records each),
    `num_unreadable` at how many a message cannot be read and was set aside; `num_late` counts its
    records that came late, whether they were trained or not; `num_gone` the positions that the
    broker deleted before they were read. `time` is the newest event time of its
    records in seconds since 1970, or 0.
    `num_records` counts the examples trained, evaluated or predicted under this lease; `loss_sum`
    is the sum over its minibatches of loss x examples. `skipped` names minibatches left out because
    of `--on_nan=skip`, `skipped_examples` says how many examples each has. `fatal` fails the job at
    once (e.g. `--on_nan=stop`). `may_pass`: what failed is outside of the job, such as a disk that
    is full, and may be well again later. `is_certain`: another try would fail in the same way.
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
    num_recomputed: int = 0  # minibatches computed again, on newer parameters
    num_minibatches: int = 0
    end_index: int = -1
    num_examples: int = -1
    num_missing: int = 0
    num_unreadable: int = 0
    num_late: int = 0
    num_gone: int = 0
    time: float = 0.0
    windows: tuple[MeasuredWindow, ...] = ()  # TRAINING, of a stream: beside metric_states
    skipped: tuple[int, ...] = ()
    skipped_examples: tuple[int, ...] = ()
    metric_states: MetricStates = field(default_factory=dict)  # EVALUATION, TRAINING
    num_measured: int = 0  # TRAINING: records that metric_states are of, those in no window
    metrics: dict[str, float] = field(default_factory=dict)  # METRICS: the results
    callbacks: CallbackResult | None = None  # CALLBACKS


@dataclass(frozen=True, slots=True)
class Progress:
    """What a worker says of itself with each heartbeat; totals since its process started."""

    num_records: int = 0
    loss_sum: float = 0.0
    num_minibatches: int = 0
    model_version: int = 0
    stage_seconds: dict[str, float] = field(default_factory=dict)  # feed, ids, pull, compute, ...
    learning_rate: float | None = None  # of the last step
    waits_for: str = ""  # what it can read nothing of for a while, and why


@dataclass(frozen=True, slots=True)
class EpochLedger:
    """What became of the records of one epoch.

    A record that `feed` left out counts as trained once: it was read, and there was nothing to do.
    examples: that `feed` made of the records; as many as these, unless said.
    """

    epoch: int
    records: int
    trained_once: int
    repeated: int
    lost: int
    examples: int = -1

    def __post_init__(self) -> None:
        if self.examples < 0:
            object.__setattr__(self, "examples", self.records)


@dataclass(frozen=True, slots=True)
class TaskAudit:
    """What one ps replica has applied of one task: minibatches `[0, next_index)`."""

    task_id: int
    next_index: int
    num_records: int  # examples, as the pushes said; twice as many if they were applied twice


@dataclass(frozen=True, slots=True)
class PsRoute:
    """Where the ps replicas are. `generation` counts the replicas that were lost and are back."""

    generation: int
    addresses: tuple[str, ...]  # by index; "" of one that is not there
    layout: int = 0  # counts the moves to other numbers of replicas


@dataclass(frozen=True, slots=True)
class ReplicaStart:
    """What a ps replica that has been started begins with."""

    checkpoint: str  # folder of a whole checkpoint of this job; "": there is none
    redo_log: str = ""  # folder of its redo log; "": the job keeps none
    num_replicas: int = 0  # how many share the model; 0: as the job is set up
    layout: int = 0  # counts the moves to other numbers of replicas
    awaits_move: bool = False  # it begins with what a move gives it
    journal_system: str = ""  # which system writes the master's journal; "": it is not known


@dataclass(frozen=True, slots=True)
class JointGeneration:
    """The generations of the two holders of a hybrid job; a lease carries them as one number."""

    of_worlds: int
    of_ps: int

    @classmethod
    def of(cls, number: int) -> JointGeneration:
        """Take one number apart."""
        return cls(number >> _PS_BITS, number & ((1 << _PS_BITS) - 1))

    @property
    def number(self) -> int:
        """Both as one number."""
        return (self.of_worlds << _PS_BITS) | self.of_ps


_PS_BITS = 32


@dataclass(frozen=True, slots=True)
class HotKeys:
    """The keys of a table that a worker has looked up most since it said so before.

    num_ids: that were counted, of a sample of the minibatches. keys: and how many of the ids.
    """

    table: str
    num_ids: int
    keys: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process of any role says of itself with each heartbeat; totals since it began.

    began: when, in seconds since 1970; it tells a process from its successor. label: what it is at
    now. label_seconds: add up to the time since it began. The bytes are those of tensors and what
    frames them; calls of the master are not in them. host: its machine, or its pod. swapped_bytes:
    read back from the swap space of the machine since that was started, by whichever process.
    wants_checkpoint: the redo log of a ps replica is filling up, or broken off.
    """

    began: float
    label: Label
    label_seconds: dict[str, float]
    cpu_seconds: float
    resident_bytes: int
    bytes_sent: int
    bytes_received: int
    host: str = ""
    swapped_bytes: int = 0
    hot_keys: tuple[HotKeys, ...] = ()  # now and then
    core_wait_seconds: float = 0.0  # of its threads, all together
    wants_checkpoint: bool = False


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """What the master answers to a heartbeat.

    interval_seconds: until the next one. route: where the ps replicas are, if that is news.
    is_recovering: whether parameters are lost and not yet restored. ended_world: the world of
    all-reduce that is to end at the next step; 0: none is.
    """

    interval_seconds: float
    route: PsRoute | None = None
    is_recovering: bool = False
    ended_world: int = 0


@dataclass(frozen=True, slots=True)
class Attendance:
    """What a worker says that comes to the rendezvous of an all-reduce job.

    ring: where its ring listens. store: where its parameters are served. version: updates that
    these have; -1: it has none. synced_world: the last world in which it had the parameters of all.
    told_world: the last world that it was told of; this one is over for it. missed: workers that it
    missed there. num_unsound, problem: as of `GrpcMasterClient.restore_point`.
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

    The tuples are by rank. Rank 0 has the parameters that count; those that `are_behind` are to be
    given them first. tasks_per_epoch: training tasks, from which follows which make an update.
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
    """Nobody has parameters: begin with those of a checkpoint; "": as at the start of the job."""

    checkpoint: str


@dataclass(frozen=True, slots=True)
class Recovery:
    """A ps replica that was lost and is back, and what it lacked of what had been done."""

    replica: int
    version: int  # of the checkpoint that it restored; 0: none, it began empty
    tasks: int
    minibatches: int
    records: int
    is_replayed: bool  # trained on it again; else they are lost to it
    seconds: float  # from its loss until workers were told where it is
    is_handed_over: bool = False  # by its predecessor: it has all that was ever applied


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A process of a running job."""

    role: Role
    index: int
    state: str  # planned, starting, alive, leaving
    pid: int  # on the machine where it runs; 0 before it has registered
    address: str  # of a ps replica
    seconds: float  # since it was planned, or has registered
    silent_seconds: float  # since it was heard of
    tasks_done: int  # by a worker
    usage: Usage | None = None  # as it said last


@dataclass(frozen=True, slots=True)
class EpochScores:
    """How a complete epoch went, as far as that is known.

    loss: mean over its records, as they were trained. metrics: of the records that were measured.
    validation: of the evaluation after it.
    """

    loss: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    validation: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BestEvaluation:
    """The best of the evaluations so far, by the metric of `--keep_best`.

    version: of the model that was evaluated. checkpoint: the version that is kept of it; None
    until one is written. num_epochs: that were complete.
    """

    metric: str
    mode: str  # max or min
    value: float
    version: int
    num_epochs: int = 0
    checkpoint: int | None = None


def moment(num_epochs: int, version: int) -> str:
    """Say when an evaluation was, by the epochs that were complete and the model version."""
    after = f"after epoch {num_epochs}, " if num_epochs else ""
    return f"{after}at update {version:,}"


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """Where a job is in a partition of its stream.

    lag counts the positions before `end` that are not trained; `skipped` those that the broker had
    deleted before they were read. `time` is the newest event time that is trained, in seconds since
    1970; 0: none is, since this master began.
    """

    name: str
    position: int  # up to which it was cut into tasks
    end: int  # as the broker said last
    lag: int
    skipped: int = 0
    time: float = 0.0

    def delay_seconds(self, now: float) -> float | None:
        """Return how old the newest trained message is; 0 where none waits, None: not known."""
        if not self.lag:
            return 0.0
        return max(0.0, now - self.time) if self.time else None


@dataclass(frozen=True, slots=True)
class WindowStatus:
    """How the messages of a window of event time were scored, each before it was trained.

    start: in seconds since 1970. num_messages: exact, whatever was done again. loss, metrics: the
    latter of `num_measured` records. is_over: the watermark has passed its end.
    """

    start: float
    seconds: float
    num_messages: int
    num_measured: int = 0
    loss: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A picture of a running job, for displays and for `--summary`."""

    job_name: str
    # pending, running, evaluating, exporting, checkpointing, auditing, then finished or failed
    status: str
    message: str
    seconds: float
    epoch: int
    num_epochs: int
    tasks_todo: int
    tasks_doing: int
    tasks_done: int
    records_done: int  # over all epochs, as workers report progress
    records_total: int
    records_per_second: float
    loss: float | None  # mean over recent minibatches
    model_version: int
    mean_staleness: float
    max_staleness: int
    metrics: dict[str, float]
    num_workers_alive: int
    num_ps_alive: int
    ledger: tuple[EpochLedger, ...] = ()  # filled at the end
    skipped: tuple[str, ...] = ()
    checkpoints: tuple[int, ...] = ()
    output: str = ""
    recoveries: tuple[Recovery, ...] = ()
    staleness_histogram: tuple[int, ...] = ()
    num_recomputed: int = 0  # minibatches computed again: updates were lost, or came too late
    epoch_loss: float | None = None  # mean over the records of the epoch under way
    train_metrics: dict[str, float] = field(default_factory=dict)  # of an epoch so far
    recent_train_metrics: dict[str, float] = field(default_factory=dict)
    train_metrics_epoch: int = 0  # the epoch, and how many of its records `train_metrics` are of
    train_metrics_records: int = 0
    evaluated_records: int = 0  # records that `metrics` are of
    counters: dict[str, int] = field(default_factory=dict)  # see COUNTERS
    data_check: tuple[str, ...] = ()  # what a look at the data found before the first record
    best: BestEvaluation | None = None  # with `--keep_best`
    overfitting: str = ""  # how the model overfits, and what to do; "" if it does not
    members: tuple[MemberStatus, ...] = ()  # where they were asked for
    partitions: tuple[PartitionStatus, ...] = ()  # of a stream
    num_unreadable: int = 0  # messages that were set aside, for they cannot be read
    num_late: int = 0  # messages that came late, trained or not
    watermark: float = 0.0  # of a stream, in seconds since 1970; 0: it is not known
    windows: tuple[WindowStatus, ...] = ()  # of event time, the last ones
    history: tuple[EpochScores, ...] = ()  # of the complete epochs, in their order

    def staleness_percentile(self, share: float) -> int:
        """Return what the staleness of this share of updates does not exceed.

        Exact up to 1, above that the upper end of a bucket.
        """
        wanted, seen = share * sum(self.staleness_histogram), 0
        for bucket, count in enumerate(self.staleness_histogram):
            seen += count
            if count and seen >= wanted:
                return min(self.max_staleness, (1 << bucket) - 1)
        return self.max_staleness


def no_status(job_name: str, num_epochs: int) -> JobStatus:
    """Return the picture of a job that has not begun."""
    return JobStatus(
        job_name=job_name,
        status="pending",
        message="",
        seconds=0.0,
        epoch=0,
        num_epochs=num_epochs,
        tasks_todo=0,
        tasks_doing=0,
        tasks_done=0,
        records_done=0,
        records_total=0,
        records_per_second=0.0,
        loss=None,
        model_version=0,
        mean_staleness=0.0,
        max_staleness=0,
        metrics={},
        num_workers_alive=0,
        num_ps_alive=0,
    )


@dataclass(frozen=True, slots=True)
class ServedProgram:
    """All of a model but its parameters, as a worker has written it for those who serve.

    name: Its folder beside the versions of an export. sha256: Of its list of files.
    """

    name: str
    sha256: str

"""The state of a running job, as displays and the summary show it."""

from __future__ import annotations

from dataclasses import dataclass, field

from elasticdl.job import Role, Usage


@dataclass(frozen=True, slots=True)
class EpochLedger:
    """The account of the records of one epoch.

    A record that `feed` leaves out counts as trained once: it was read, and it gave no example.

    examples: Examples that `feed` made of the records. The default is the number of records.
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
class Recovery:
    """A ps replica that was lost and is back, and the work that it did not have any more."""

    replica: int
    version: int  # of the checkpoint that it restored; 0: it began empty
    tasks: int
    minibatches: int
    records: int
    is_replayed: bool  # the work is done again; else it is lost
    seconds: float  # from its loss until the workers had its new address
    is_handed_over: bool = False  # its predecessor gave it all that was ever applied


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A process of a running job."""

    role: Role
    index: int
    state: str  # planned, starting, alive, leaving
    pid: int  # on the machine where it runs; 0 before it has registered
    address: str  # of a ps replica
    seconds: float  # since it was planned or, later, since it registered
    silent_seconds: float  # since its last message
    tasks_done: int  # by a worker
    usage: Usage | None = None  # of its last heartbeat


@dataclass(frozen=True, slots=True)
class EpochScores:
    """The scores of a complete epoch, as far as they are known.

    loss: Mean over its records, each at the time when it was trained.
    metrics: Metrics of the records that were measured.
    validation: Metrics of the evaluation after the epoch.
    """

    loss: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    validation: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BestEvaluation:
    """The best of the evaluations so far, by the metric of `--keep_best`.

    version: Version of the model that was evaluated.
    num_epochs: Epochs that were complete then.
    checkpoint: Version of the checkpoint that is kept of it; None until one is written.
    """

    metric: str
    mode: str  # max or min
    value: float
    version: int
    num_epochs: int = 0
    checkpoint: int | None = None


def moment(num_epochs: int, version: int) -> str:
    """Return the time of an evaluation in words: its complete epochs and its model version."""
    after = f"after epoch {num_epochs}, " if num_epochs else ""
    return f"{after}at update {version:,}"


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """The progress of a job in a partition of its stream.

    position: End of the part that was cut into tasks.
    end: End of the partition, as the broker said last.
    lag: Positions before `end` that are not trained.
    skipped: Positions that the broker had deleted before they were read.
    time: Newest event time that is trained, in seconds since 1970. It is 0 until this master has
        seen one.
    """

    name: str
    position: int
    end: int
    lag: int
    skipped: int = 0
    time: float = 0.0

    def delay_seconds(self, now: float) -> float | None:
        """Return the age of the newest trained message; 0: no message waits, None: not known."""
        if not self.lag:
            return 0.0
        return max(0.0, now - self.time) if self.time else None


@dataclass(frozen=True, slots=True)
class WindowStatus:
    """The scores of the messages in a window of event time, each taken before it was trained.

    start: Start of the window in seconds since 1970.
    num_messages: Exact number of messages, even if some tasks were done twice.
    num_measured: The number of records that `metrics` covers.
    is_over: The watermark has passed the end of the window.
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
    """The state of a running job, for displays and for `--summary`."""

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
    train_metrics: dict[str, float] = field(default_factory=dict)  # of one epoch so far
    recent_train_metrics: dict[str, float] = field(default_factory=dict)
    train_metrics_epoch: int = 0  # the epoch of `train_metrics`
    train_metrics_records: int = 0  # records of that epoch in `train_metrics`
    evaluated_records: int = 0  # records in `metrics`
    counters: dict[str, int] = field(default_factory=dict)  # see COUNTERS
    data_check: tuple[str, ...] = ()  # findings in the data before the first record
    best: BestEvaluation | None = None  # with `--keep_best`
    overfitting: str = ""  # how the model overfits, and what to do; "" if it does not
    members: tuple[MemberStatus, ...] = ()  # only if the request asked for them
    partitions: tuple[PartitionStatus, ...] = ()  # of a stream
    num_unreadable: int = 0  # messages that could not be read and were set aside
    num_late: int = 0  # messages that came late, trained or not
    watermark: float = 0.0  # of a stream, in seconds since 1970; 0: not known
    windows: tuple[WindowStatus, ...] = ()  # of event time, the last ones
    history: tuple[EpochScores, ...] = ()  # of the complete epochs, in their order

    def staleness_percentile(self, share: float) -> int:
        """Return a staleness that this share of updates does not exceed.

        The result is exact up to 1. Above 1 it is the upper end of a bucket.
        """
        wanted, seen = share * sum(self.staleness_histogram), 0
        for bucket, count in enumerate(self.staleness_histogram):
            seen += count
            if count and seen >= wanted:
                return min(self.max_staleness, (1 << bucket) - 1)
        return self.max_staleness


def no_status(job_name: str, num_epochs: int) -> JobStatus:
    """Return the state of a job that has not begun."""
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

"""The leases and minibatches on their way through a worker's pipeline."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from elasticdl.backends.base import Int64, Minibatch, Predictions, StepResult
from elasticdl.errors import (
    DataError,
    ElasticdlError,
    MemoryLimitError,
    NonFiniteLossError,
    SideEffectError,
    in_short,
    is_of_storage,
)
from elasticdl.job import (
    FIRST_LOSS,
    STALENESS_BUCKETS,
    Lease,
    Outcome,
    TaskKind,
    TaskReport,
    staleness_bucket,
)
from elasticdl.worker.measuring import PartSums
from elasticdl.worker.parameters import Committed, ComputedMinibatch, Parameters
from elasticdl.worker.predictions import Predicted
from elasticdl.worker.reading import TaskReading
from elasticdl.worker.spans import Place

_WRITE = frozenset({TaskKind.EXPORT, TaskKind.PREDICTION})  # results, to a disk or a store

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Running:
    """A lease on its way through the pipeline. Each field is written by one stage, as named."""

    lease: Lease
    reading: TaskReading = field(default_factory=TaskReading)  # feed; at the end compute
    is_over: bool = False  # prepare, compute, commit: what still comes of it is dropped
    is_reported: bool = False  # commit
    num_on_the_way: int = 0  # of a suspect: minibatches that are not through; under a lock
    missing: int = 0  # feed: positions of the task's range that have no record
    records: int = 0  # commit (training), compute (others)
    minibatches: int = 0
    loss_sum: float = 0.0
    first_loss: float | None = None  # of its first minibatch: commit
    staleness_sum: int = 0
    staleness_max: int = 0
    staleness_histogram: list[int] = field(default_factory=lambda: [0] * STALENESS_BUCKETS)
    recomputed: int = 0  # compute
    learning_rate: float | None = None  # of the last step: commit; in synchronous training compute
    # compute: minibatches to be measured, whether any were, of which part of the task they are
    to_measure: list[tuple[Minibatch, Predictions]] = field(default_factory=list)
    is_measured: bool = False
    part: int | None = None
    parts: dict[int | None, PartSums] = field(default_factory=dict)  # compute; None: of no part
    skipped: dict[int, int] = field(default_factory=dict)  # minibatch -> examples in it
    predicted: list[Predicted] = field(default_factory=list)  # compute

    @property
    def is_training(self) -> bool:
        """Return whether the minibatches change the model."""
        return self.lease.task.kind is TaskKind.TRAINING

    def count(self, num_records: int, loss_sum: float, staleness: int) -> None:
        """Note a minibatch whose gradients have been applied."""
        self.records += num_records
        self.minibatches += 1
        self.loss_sum += loss_sum
        if self.first_loss is None and num_records:
            self.first_loss = loss_sum / num_records
        self.staleness_sum += staleness
        self.staleness_max = max(self.staleness_max, staleness)
        self.staleness_histogram[staleness_bucket(staleness)] += 1

    def trained(self, report: TaskReport, model_version: int) -> TaskReport:
        """Return the report of a training task with what was counted."""
        return replace(
            report,
            num_records=self.records,
            num_minibatches=self.minibatches,
            loss_sum=self.loss_sum,
            metrics={} if self.first_loss is None else {FIRST_LOSS: self.first_loss},
            staleness_sum=self.staleness_sum,
            staleness_max=self.staleness_max,
            staleness_histogram=tuple(self.staleness_histogram),
            num_recomputed=self.recomputed,
            skipped=tuple(self.skipped),
            skipped_examples=tuple(self.skipped.values()),
            model_version=model_version,
        )

    def returned(self) -> TaskReport:
        """Return the report that gives the lease back, so that another worker can take it."""
        return TaskReport(self.lease.task.id, self.lease.number, Outcome.RETURNED)

    def failure(self, error: Exception) -> TaskReport:
        """Return the report that the task has failed, and log it."""
        task = self.lease.task
        is_known = isinstance(error, ElasticdlError)
        given = {"task": task.id, "lease": self.lease.number, "kind": str(task.kind)}
        # The master logs a known error. An unexpected error is logged here with its traceback,
        # once.
        is_news = not is_known and self.lease.number == 1
        level, trace = (logging.WARNING, error) if is_news else (logging.INFO, None)
        log.log(level, "%s failed: %s", task, in_short(error), exc_info=trace, extra=given)
        fatal = isinstance(error, NonFiniteLossError | MemoryLimitError | SideEffectError)
        named = fatal or (isinstance(error, DataError) and task.shard.name in str(error))
        said = str(error) if is_known else f"{type(error).__name__}: {in_short(error)}"
        return TaskReport(
            task.id,
            self.lease.number,
            Outcome.FAILED,
            message=said if named else f"{task}: {said}",
            fatal=fatal,
            may_pass=task.kind in _WRITE and is_of_storage(error),
            is_certain=isinstance(error, ElasticdlError) and error.is_certain,
        )


@dataclass(slots=True)
class Item:
    """An item of the channels: a minibatch of a lease, or the lease's end."""

    running: Running
    index: int = -1
    place: Place | None = None  # which minibatch it is
    minibatch: Minibatch | None = None
    part: int | None = None  # of its task, in which it is measured
    ids: Sequence[Int64] = ()  # from prepare on
    parameters: Parameters | None = None  # from prepare on
    result: StepResult | None = None  # from compute on; None for a skipped minibatch
    computed: ComputedMinibatch | None = None  # from the push on
    learning_rate: float = 0.0  # from the push on
    committed: Committed | None = None  # from commit on; in synchronous training from compute on
    refusal: Exception | None = None  # of a push from compute: commit is to decide about it
    report: TaskReport | None = None  # the end of the lease; nothing of it follows

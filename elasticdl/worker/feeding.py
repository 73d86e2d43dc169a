"""The feed stage of one lease: its records become minibatches, by the user's `feed`."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from elasticdl.backends.base import Minibatch, Predictor
from elasticdl.config import JobConfig
from elasticdl.data.base import DataReader, Records
from elasticdl.job import Label, Mode, Outcome, TaskKind, TaskReport
from elasticdl.worker.activity import Activity, Thread
from elasticdl.worker.exchange import Exchange
from elasticdl.worker.parameters import PendingPull
from elasticdl.worker.protocol import LeaseProtocol
from elasticdl.worker.records import read_all, task_seed, with_ends
from elasticdl.worker.running import Item, Running
from elasticdl.worker.spans import Place, Spans

log = logging.getLogger(__name__)

_MODES = {
    TaskKind.TRAINING: Mode.TRAINING,
    TaskKind.EVALUATION: Mode.EVALUATION,
    TaskKind.PREDICTION: Mode.PREDICTION,
}


class Feeding:
    """Makes the minibatches of leases, from where their parameters stand."""

    def __init__(
        self,
        config: JobConfig,
        model: Predictor,
        exchange: Exchange,
        readers: Mapping[TaskKind, DataReader],
        has_own_reader: bool,
        protocol: LeaseProtocol[PendingPull],
        spans: Spans,
        activity: Activity,
        landed: threading.Condition,
        wait: Callable[[Callable[[], bool]], None],
    ) -> None:
        """Put the stage together.

        Args:
            config: The job's settings.
            model: Makes minibatches of records.
            exchange: Knows how far the parameters have come.
            readers: The readers of records, by the kind of task.
            has_own_reader: Whether the reader is the user's code.
            protocol: Decides what happens to a lease.
            spans: Counts the time of the stage.
            activity: Counts the time of the worker.
            landed: Its lock guards the protocol.
            wait: Waits until the protocol agrees.
        """
        self._config, self._model, self._exchange = config, model, exchange
        self._readers, self._has_own_reader = readers, has_own_reader
        self._protocol, self._spans, self._activity = protocol, spans, activity
        self._landed, self._wait = landed, wait
        self._is_deterministic = config.training.deterministic

    def feed(self, running: Running, put: Callable[[Item], None]) -> TaskReport:
        """Pass on the minibatches of a lease; return its report, with the counts that `feed` made.

        Args:
            running: The lease.
            put: Takes each minibatch; it waits while there is no room.
        """
        lease, task = running.lease, running.lease.task
        # The restored parameters must be here first: `start_index` asks how far they have come.
        if lease.generation > self._exchange.generation:
            self._activity.at(Thread.FEED, Label.RECOVER)
        self._exchange.reach(lease.generation)
        self._activity.at(Thread.FEED, Label.WAIT_FOR_DATA)
        mode = _MODES.get(task.kind)
        report = TaskReport(task.id, lease.number, Outcome.DONE)
        if mode is None:
            return report
        start = num_minibatches = num_examples = 0
        if self._protocol.asks_where_to_begin(lease):
            self._activity.at(Thread.FEED, Label.WAIT_FOR_PARAMETERS)
            start = self._exchange.start_index(lease)
            self._activity.at(Thread.FEED, Label.WAIT_FOR_DATA)
        if running.is_training and lease.number > 1:
            log.info("task %d, lease %d: goes on at minibatch %d", task.id, lease.number, start)
        minibatches = self._model.minibatches(
            self._read(running),
            mode,
            self._config.training.minibatch_size,
            task_seed(self._config.training.seed, task.id),
        )
        made = self._made_by_feed(running, minibatches)
        looks_ahead = self._is_deterministic and running.is_training
        ended = with_ends(made) if looks_ahead else ((minibatch, False) for minibatch in made)
        for index, (minibatch, is_last) in enumerate(ended):
            if not self._protocol.goes_on(running):
                break
            num_minibatches += 1
            num_examples += minibatch.num_records
            if is_last:
                self._exchange.ends_at(lease, num_minibatches)
            # A later lease begins where the holders stand. `feed` makes all minibatches of the task
            # again, and those before `start` are dropped.
            if index >= start:
                if running.lease.is_suspect:
                    with self._landed:
                        self._protocol.fed(running)
                part = running.reading.part_after(num_examples)
                place = Place(lease, index, minibatch.num_records)
                put(Item(running, index, place, minibatch, part))
        return running.reading.fed(
            replace(
                report,
                end_index=num_minibatches,
                num_examples=num_examples,
                num_missing=running.missing,
            )
        )

    def _read(self, running: Running) -> Iterator[Records]:
        """Read a task's records; the time counts for `feed` if the reader is the user's code."""
        task, num_read = running.lease.task, 0
        records = read_all(self._readers[task.kind], task, running.lease.late_before)
        if self._has_own_reader:
            yield from records
            return
        while True:
            with self._spans.waiting("feed"):
                block = next(records, None)
            if block is None:
                running.missing = task.shard.num_records - num_read
                running.reading.ended()
                return
            num_read += len(block)
            running.reading.read(block)
            yield block

    def _made_by_feed(
        self, running: Running, minibatches: Iterator[Minibatch]
    ) -> Iterator[Minibatch]:
        size, left = self._config.training.minibatch_size, running.lease.task.shard.num_records
        for index in itertools.count():
            if running.lease.is_suspect:
                # A suspect task goes through the pipeline one minibatch at a time: the last
                # announced one is then the one that killed the worker.
                self._wait(lambda: self._protocol.may_feed(running))
            place = Place(running.lease, index, max(0, min(size, left - index * size)))
            with self._spans.span("feed", place):
                minibatch = next(minibatches, None)
            if minibatch is None:
                return
            yield minibatch

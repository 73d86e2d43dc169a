"""Computes one minibatch, or the end of a lease; in one thread, in order."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from elasticdl.backends.base import (
    Float32,
    Minibatch,
    Predictor,
    RunsCallbacks,
    StepResult,
    Trainer,
)
from elasticdl.config import JobConfig
from elasticdl.data.base import DataReader
from elasticdl.data.sources import is_cut_as_it_comes
from elasticdl.errors import ModelError, NonFiniteLossError
from elasticdl.job import (
    CallbackCall,
    CallbackResult,
    Lease,
    MetricStates,
    Strategy,
    TaskKind,
    TaskReport,
)
from elasticdl.worker.exchange import Exchange
from elasticdl.worker.export import export
from elasticdl.worker.measuring import SHARE, MeasuringBudget, PartSums
from elasticdl.worker.parameters import Parameters
from elasticdl.worker.predictions import Predicted, PredictionSink
from elasticdl.worker.running import Item, Running
from elasticdl.worker.spans import Place, Span

log = logging.getLogger(__name__)


class Computation:
    """Applies a model to minibatches, as their tasks ask for it."""

    def __init__(
        self,
        config: JobConfig,
        model: Predictor,
        trainer: Trainer | None,
        exchange: Exchange,
        sink: Callable[[], PredictionSink],
        span: Callable[[str, Place | None], Span],
        measuring_share: float = SHARE,
        trained_on: DataReader | None = None,
    ) -> None:
        self._config = config
        self._trained_on = trained_on
        self._model = model
        self._trainer = trainer
        self._exchange = exchange
        self._make_sink = sink
        self._sink: PredictionSink | None = None
        self._span = span
        self._newest_part = -1  # of which a minibatch was measured
        self._budget = MeasuringBudget(measuring_share, config.training.num_epochs)

    def idled(self, seconds: float) -> None:
        """Note how long there was nothing to compute, as no task was there."""
        self._budget.idled(seconds)

    def step(self, item: Item) -> None:
        """Train, evaluate or predict; a training step leaves its gradients in `item.result`."""
        assert item.minibatch is not None
        assert item.parameters is not None
        running, minibatch, given = item.running, item.minibatch, item.parameters
        match running.lease.task.kind:
            case TaskKind.TRAINING:
                self._train(item, minibatch, given)
            case TaskKind.EVALUATION:
                with self._span("evaluate", item.place):
                    if item.index == 0:
                        self._model.new_metrics()
                    self._model.evaluate_step(minibatch, given.rows, given.dense, given.state)
                running.records += minibatch.num_records
            case _:
                assert minibatch.record_numbers is not None
                with self._span("predict", item.place):
                    outputs = self._model.predict_step(
                        minibatch, given.rows, given.dense, given.state
                    )
                running.predicted.append(Predicted(outputs, minibatch.record_numbers))
                running.records += minibatch.num_records

    def _train(self, item: Item, minibatch: Minibatch, given: Parameters) -> None:
        assert self._trainer is not None, "only training jobs have training tasks"
        with self._span("compute", item.place) as span:
            item.result = self._trainer.train_step(minibatch, given.rows, given.dense, given.state)
        self._budget.computed(span.seconds)
        if problem := _problem(item.result, given.state):
            self._refuse(item, problem)

    def measure(self, item: Item) -> None:
        """Take a trained minibatch into the metrics of its lease, if the budget allows it."""
        running = item.running
        if item.result is None or running.lease.is_suspect:
            return
        assert item.minibatch is not None
        sums = running.parts.setdefault(item.part, PartSums())
        sums.num_trained += item.minibatch.num_records
        sums.loss_sum += item.result.loss * item.minibatch.num_records
        if item.part is None:
            is_lent = self._budget.lends_to(running.lease.task.epoch)
        else:
            is_lent = item.part > self._newest_part and self._budget.lends
        # A call of a metric costs more than its records, so more minibatches of the part are
        # added to it.
        comes_along = bool(running.to_measure) and item.part == running.part
        if not (comes_along or self._budget.allows or is_lent):
            return
        if item.part is not None:
            self._newest_part = max(self._newest_part, item.part)
        if item.part != running.part:
            self._collect(running)
            running.part = item.part
        sums.num_measured += item.minibatch.num_records
        self._budget.takes(item.minibatch.num_records)
        running.to_measure.append((item.minibatch, item.result.predictions))
        if self._budget.is_enough(running.to_measure):
            self._measure(running)

    def _measure(self, running: Running) -> None:
        """Add the gathered minibatches to the metrics; a failing metric fails no training."""
        assert self._trainer is not None, "only training jobs have training tasks"
        minibatches, predictions = zip(*running.to_measure, strict=True)
        try:
            with self._span("metrics", Place(running.lease)) as span:
                if not running.is_measured:
                    self._model.new_metrics()
                self._trainer.measure(minibatches, predictions)
            self._budget.measured(span.seconds, len(minibatches))
        except ModelError as error:
            log.warning("metrics of training cannot be computed: %s", error)
            self._budget.give_up()
        running.is_measured = True
        running.to_measure.clear()

    def _collect(self, running: Running) -> None:
        """Keep the metrics of what was measured since the last call, and begin anew."""
        if running.to_measure:
            self._measure(running)
        if not running.is_measured:
            return
        running.is_measured = False
        began = time.perf_counter()
        states = self._model.metric_states()
        self._budget.collected(time.perf_counter() - began)
        running.parts[running.part].states = states

    def _measured(self, running: Running, report: TaskReport) -> TaskReport:
        self._collect(running)
        sums = running.parts
        # Without states of metrics, the number of measured records has no meaning.
        if self._budget.is_given_up or not any(each.states for each in sums.values()):
            for each in sums.values():
                each.num_measured, each.states = 0, {}
        whole = sums.get(None, PartSums())
        report = replace(report, num_measured=whole.num_measured, metric_states=whole.states)
        parts = {part: each for part, each in sums.items() if part is not None}
        return running.reading.measured(report, parts)

    def _refuse(self, item: Item, problem: str) -> None:
        task = item.running.lease.task
        what = (
            f"{problem} in task {task.id} (records {task.shard.start} to "
            f"{task.shard.end} of {task.shard.name}), minibatch {item.index}"
        )
        if self._config.training.on_nan == "stop":
            raise NonFiniteLossError(f"{what}; --on_nan=skip would leave such minibatches out")
        log.warning("%s: skipped", what)
        item.result = None

    def finish(self, running: Running, report: TaskReport) -> TaskReport:
        """Do what a lease needs after its last minibatch; return the report of its end."""
        lease = running.lease
        match lease.task.kind:
            case TaskKind.TRAINING:
                return self._measured(running, report)
            case TaskKind.EVALUATION:
                return replace(
                    report,
                    num_records=running.records,
                    metric_states=self._model.metric_states() if running.records else {},
                )
            case TaskKind.PREDICTION:
                # The sink is made at the first prediction: the user's processor is built only where
                # it is used.
                if self._sink is None:
                    self._sink = self._make_sink()
                with self._span("write", Place(lease)):
                    self._sink.write(lease.task, running.predicted, lease.number)
                return replace(report, num_records=running.records)
            case TaskKind.METRICS:
                with self._span("metrics", Place(lease)):
                    metrics = self._results(lease)
                return replace(report, metrics=metrics)
            case TaskKind.CALLBACKS:
                assert self._trainer is not None, "only training jobs have callbacks"
                assert lease.callbacks is not None
                with self._span("callbacks", Place(lease)):
                    result = self._called(self._trainer, lease.callbacks)
                return replace(report, callbacks=result)
            case TaskKind.EXPORT:
                assert self._trainer is not None, "only training jobs have an export"
                by_clock = not is_cut_as_it_comes(self._config.data.training_data)
                settings = self._config.checkpoint
                columns = None if self._trained_on is None else self._trained_on.metadata
                if not export(self._exchange, self._trainer, settings, lease, by_clock, columns):
                    return running.returned()
        return report

    def _called(self, trainer: Trainer, call: CallbackCall) -> CallbackResult:
        assert isinstance(trainer, RunsCallbacks), "it has said that it has callbacks"
        is_alone = self._config.training.distribution_strategy is Strategy.LOCAL
        return trainer.run_callbacks(call, is_alone)

    def _results(self, lease: Lease) -> dict[str, float]:
        """Turn merged states into numbers; those of training are grouped by range of records."""
        if lease.task.evaluation_id >= 0:
            return self._model.metric_results(lease.metric_states)
        ranges: dict[str, MetricStates] = {}
        for name, arrays in lease.metric_states.items():
            which, _, metric = name.partition("/")
            ranges.setdefault(which, {})[metric] = arrays
        return {
            f"{which}/{name}": value
            for which, states in ranges.items()
            for name, value in self._model.metric_results(states).items()
        }


def _problem(result: StepResult, state: Float32) -> str:
    """Say why a minibatch must not be trained; "" if it may.

    The gradient is checked too: it may be NaN while the loss is finite, as with the square root of
    0. One such update would make every parameter that it reaches NaN.
    """
    if not math.isfinite(result.loss):
        return f"loss is {result.loss}"
    if not np.isfinite(result.dense_grad).all():
        return f"loss is {result.loss:g}, and its gradient of dense parameters has NaN or infinity"
    if not all(np.isfinite(rows).all() for rows in result.row_grads):
        return f"loss is {result.loss:g}, and its gradient of embedding rows has NaN or infinity"
    if np.isinf(state).any() and (np.isnan(result.state_delta) & np.isinf(state)).any():
        return (
            f"loss is {result.loss:g}, and state of the model that was infinite is finite now, "
            "which no change can express (use a large finite number instead of infinity),"
        )
    return ""

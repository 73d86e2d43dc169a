"""What is computed on one minibatch, and at the end of a lease; in one thread, in order."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

from elasticdl.backends.base import Minibatch, Predictor
from elasticdl.config import JobConfig
from elasticdl.errors import NonFiniteLossError
from elasticdl.job import TaskKind, TaskReport
from elasticdl.worker.exchange import Parameters, Training
from elasticdl.worker.export import export
from elasticdl.worker.predictions import Predicted, PredictionSink
from elasticdl.worker.running import Item, Running
from elasticdl.worker.stages import Place

log = logging.getLogger(__name__)

Enter = Callable[[str, Running, Place], AbstractContextManager[None]]
"""Begins a stage that runs the user's code."""


class Computation:
    """Applies a model to minibatches, as their tasks ask for it."""

    def __init__(
        self,
        config: JobConfig,
        model: Predictor,
        training: Training | None,
        sink: Callable[[], PredictionSink],
        enter: Enter,
    ) -> None:
        self._config = config
        self._model = model
        self._training = training
        self._make_sink = sink
        self._sink: PredictionSink | None = None
        self._enter = enter

    def step(self, item: Item) -> None:
        """Train, evaluate or predict; a training step leaves its gradients in `item.result`."""
        assert item.minibatch is not None
        assert item.parameters is not None
        running, minibatch, given = item.running, item.minibatch, item.parameters
        match running.lease.task.kind:
            case TaskKind.TRAINING:
                self._train(item, minibatch, given)
            case TaskKind.EVALUATION:
                with self._enter("evaluate", item.running, item.place):
                    if item.index == 0:
                        self._model.new_metrics()
                    self._model.evaluate_step(minibatch, given.rows, given.dense, given.state)
                running.records += minibatch.num_records
            case _:
                assert minibatch.record_numbers is not None
                with self._enter("predict", item.running, item.place):
                    outputs = self._model.predict_step(
                        minibatch, given.rows, given.dense, given.state
                    )
                running.predicted.append(Predicted(outputs, minibatch.record_numbers))
                running.records += minibatch.num_records

    def _train(self, item: Item, minibatch: Minibatch, given: Parameters) -> None:
        assert self._training is not None, "only training jobs have training tasks"
        with self._enter("compute", item.running, item.place):
            item.result = self._training.trainer.train_step(
                minibatch, given.rows, given.dense, given.state
            )
        if not math.isfinite(item.result.loss):
            self._refuse_loss(item, item.result.loss)

    def _refuse_loss(self, item: Item, loss: float) -> None:
        task = item.running.lease.task
        what = (
            f"loss is {loss} in task {task.id} (records {task.shard.start} to "
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
            case TaskKind.EVALUATION:
                return replace(
                    report,
                    num_records=running.records,
                    metric_states=self._model.metric_states() if running.records else {},
                )
            case TaskKind.PREDICTION:
                if self._sink is None:
                    self._sink = self._make_sink()
                with self._enter("write", running, Place(lease)):
                    self._sink.write(lease.task, running.predicted)
                return replace(report, num_records=running.records)
            case TaskKind.METRICS:
                with self._enter("metrics", running, Place(lease)):
                    metrics = self._model.metric_results(lease.metric_states)
                return replace(report, metrics=metrics)
            case TaskKind.CALLBACKS:
                assert self._training is not None, "only training jobs have callbacks"
                assert lease.callbacks is not None
                with self._enter("callbacks", running, Place(lease)):
                    result = self._training.trainer.run_callbacks(lease.callbacks)
                return replace(report, callbacks=result)
            case TaskKind.EXPORT:
                assert self._training is not None, "only training jobs have an export"
                exchange, trainer = self._training.exchange, self._training.trainer
                if not export(exchange, trainer, self._config.checkpoint, lease):
                    return running.returned()
        return report

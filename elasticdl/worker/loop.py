"""The worker's loop: lease a task, and take its minibatches through feed, pull, compute, push.

Four threads, one stage each, joined by bounded channels, so that neighbouring minibatches (of
one task or of two) overlap:

    feed     lease -> read -> user's feed -> minibatch
    prepare  ids of the embedding layers -> pull rows and dense parameters
    compute  loss and gradients (the calling thread)
    commit   push; at the end of a task, report

Everything about a lease happens in the order of its minibatches, and its end (done, failed,
returned) is reported by the commit stage only, after all that came before it.

In synchronous training nothing is pulled ahead, and compute pushes by itself: a gradient that comes
too late for its round is computed again on newer parameters.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from elasticdl.backends.base import Minibatch, Predictor, StepResult, Trainer
from elasticdl.config import JobConfig
from elasticdl.data.base import DataReader
from elasticdl.errors import (
    AuthenticationError,
    DataError,
    GapError,
    MemoryLimitError,
    NonFiniteLossError,
    StaleLeaseError,
    StaleParametersError,
    StoreError,
    UnavailableError,
)
from elasticdl.job import (
    Finished,
    Lease,
    MasterClient,
    Mode,
    Outcome,
    Progress,
    Shard,
    TaskKind,
    TaskReport,
    Wait,
)
from elasticdl.worker.channel import Channel, Closed
from elasticdl.worker.exchange import Committed, Exchange, Following, ParameterSource, Step
from elasticdl.worker.export import export
from elasticdl.worker.predictions import PredictionSink
from elasticdl.worker.running import Item, Running
from elasticdl.worker.stages import StageClock, run_after_others

log = logging.getLogger(__name__)

_MODES = {
    TaskKind.TRAINING: Mode.TRAINING,
    TaskKind.EVALUATION: Mode.EVALUATION,
    TaskKind.PREDICTION: Mode.PREDICTION,
}

_NOT_THE_TASKS_FAULT = (StoreError, UnavailableError, AuthenticationError)


@dataclass(frozen=True, slots=True)
class Training:
    """What a worker of a training job has beside."""

    trainer: Trainer
    exchange: Exchange


class Worker:
    """Works off leases until the master says that the job is finished."""

    def __init__(
        self,
        config: JobConfig,
        worker_id: int,
        master: MasterClient,
        model: Predictor,
        source: ParameterSource,
        readers: dict[TaskKind, DataReader],
        sink: Callable[[], PredictionSink],
        training: Training | None = None,
    ) -> None:
        self._config = config
        self._worker_id = worker_id
        self._master = master
        self._model = model
        self._source = source
        self._training = training
        self._readers = readers
        self._make_sink = sink
        self._sink: PredictionSink | None = None
        self._clock = StageClock()
        self._progress = Progress()
        # Steps whose pull was sent and whose push is not acknowledged.
        self._in_flight = threading.Semaphore(config.pipeline_depth + 1)
        # With one step in flight, what the next push may bring back with it.
        self._pulls_with_push = config.pipeline_depth == 0
        self._following: Following | None = None
        self._synchronous = not config.training.use_async
        self._stop = threading.Event()
        self._fed: Channel[Item] = Channel(capacity=4)
        self._prepared: Channel[Item] = Channel(capacity=2)
        self._computed: Channel[Item] = Channel(capacity=2)
        self._error: BaseException | None = None

    def run(self) -> None:
        """Work until the master has no more tasks for this worker.

        Raises:
            ElasticdlError: Something failed that is not the fault of one task.
        """
        threads = [
            threading.Thread(target=self._beside, args=(stage,), name=stage.__name__, daemon=True)
            for stage in (self._feed, self._prepare, self._commit)
        ]
        for thread in threads:
            thread.start()
        self._guard(self._compute)
        if self._error is None:
            for thread in threads:
                thread.join()
        self._stop.set()
        if self._error is not None:
            raise self._error

    def _beside(self, stage: Callable[[], None]) -> None:
        """Run a stage beside the one that computes."""
        run_after_others()
        self._guard(stage)

    def _guard(self, stage: Callable[[], None]) -> None:
        """Run a stage; when one ends with an error, all end."""
        try:
            stage()
        except Closed:
            pass
        except BaseException as error:
            if self._error is None:
                self._error = error
            self._stop.set()
            for channel in (self._fed, self._prepared, self._computed):
                channel.abort()
            self._in_flight.release()  # a prepare stage that waits must see the end

    @property
    def _trained(self) -> Training:
        assert self._training is not None, "only training jobs have training tasks"
        return self._training

    def progress(self) -> Progress:
        """Return what was done so far; for the heartbeat's thread."""
        return replace(self._progress, stage_seconds=self._clock.seconds())

    # --- feed ------------------------------------------------------------------------------------

    def _feed(self) -> None:
        for lease in self._leases():
            running = Running(lease)
            try:
                end_index = self._feed_lease(running)
                report = TaskReport(lease.task.id, lease.number, Outcome.DONE, end_index=end_index)
            except Closed:
                raise
            except StaleLeaseError as error:
                log.info("task %d: %s", lease.task.id, error)
                continue
            except Exception as error:
                report = running.failure(error)
            self._fed.put(Item(running, report=report))
        self._fed.end()

    def _leases(self) -> Iterator[Lease]:
        while not self._stop.is_set():
            with self._clock.measure("lease"):
                answer = self._master.lease(self._worker_id)
            match answer:
                case Lease():
                    yield answer
                case Wait(seconds):
                    with self._clock.measure("no task"):
                        self._stop.wait(seconds)
                case Finished():
                    return

    def _feed_lease(self, running: Running) -> int:
        """Feed what a lease asks for; return how many minibatches the task has."""
        lease = running.lease
        self._source.reach(lease.generation)
        mode = _MODES.get(lease.task.kind)
        if mode is None:
            return 0
        start = num_minibatches = 0
        # A first lease has nothing to go on from, but in synchronous training others wait for it.
        if mode is Mode.TRAINING and (lease.number > 1 or self._synchronous):
            start = self._trained.exchange.start_index(lease)
        if mode is Mode.TRAINING and lease.number > 1:
            log.info(
                "task %d, lease %d: goes on at minibatch %d", lease.task.id, lease.number, start
            )
        minibatches = self._model.minibatches(
            self._readers[lease.task.kind].read(lease.task.shard),
            mode,
            self._config.training.minibatch_size,
            task_seed(self._config.training.seed, lease.task.id),
        )
        for index, minibatch in enumerate(self._timed(minibatches)):
            if running.dead:
                break
            num_minibatches += 1
            if index >= start:
                self._fed.put(Item(running, index=index, minibatch=minibatch))
        return num_minibatches

    def _timed(self, minibatches: Iterator[Minibatch]) -> Iterator[Minibatch]:
        while True:
            with self._clock.measure("feed"):
                minibatch = next(minibatches, None)
            if minibatch is None:
                return
            yield minibatch

    # --- prepare ---------------------------------------------------------------------------------

    def _prepare(self) -> None:
        for item in self._fed:
            if item.minibatch is not None and not item.running.dead:
                try:
                    self._fetch(item)
                except MemoryLimitError as error:
                    item = self._ended(item, error)
                except _NOT_THE_TASKS_FAULT:
                    raise
                except Exception as error:
                    item = self._ended(item, error)
            self._prepared.put(item)
        self._prepared.end()

    def _fetch(self, item: Item) -> None:
        assert item.minibatch is not None
        training = item.running.is_training
        with self._clock.measure("ids"):
            item.ids = self._model.ids(item.minibatch)
        following = None
        if training:
            if self._pulls_with_push:
                following = Following(item.ids, Step(item.running.lease, item.index))
            self._following = following
            with self._clock.measure("staleness wait"):
                self._in_flight.acquire()
            self._following = None
        try:
            if following is not None and following.parameters is not None:
                item.parameters = following.parameters
            else:
                self._pull(item)
        except BaseException:
            if training:
                self._in_flight.release()
            raise

    def _pull(self, item: Item) -> None:
        lease = item.running.lease
        step = Step(lease, item.index) if item.running.is_training else None
        with self._clock.measure("pull"):
            item.parameters = self._source.pull(item.ids, step)

    # --- compute ---------------------------------------------------------------------------------

    def _compute(self) -> None:
        for item in self._waited(self._prepared):
            if item.running.dead and not item.is_failure:
                if item.report is not None:
                    self._computed.put(item)
                self._drop(item)
                continue
            try:
                if item.report is not None:
                    item.report = self._finish(item.running, item.report)
                else:
                    self._step(item)
            except _NOT_THE_TASKS_FAULT:
                raise
            except Exception as error:
                item = self._ended(item, error)
            self._computed.put(item)
        self._computed.end()

    def _waited(self, channel: Channel[Item]) -> Iterator[Item]:
        items = iter(channel)
        while True:
            with self._clock.measure("compute wait"):
                item = next(items, None)
            if item is None:
                return
            yield item

    def _step(self, item: Item) -> None:
        running, minibatch, given = item.running, item.minibatch, item.parameters
        assert minibatch is not None
        assert given is not None
        match running.lease.task.kind:
            case TaskKind.TRAINING:
                self._train(item)
                if self._synchronous:
                    self._push_together(item)
            case TaskKind.EVALUATION:
                with self._clock.measure("evaluate"):
                    if item.index == 0:
                        self._model.new_metrics()
                    self._model.evaluate_step(minibatch, given.rows, given.dense, given.state)
                running.records += minibatch.num_records
            case _:
                with self._clock.measure("predict"):
                    running.outputs.append(
                        self._model.predict_step(minibatch, given.rows, given.dense, given.state)
                    )
                running.records += minibatch.num_records

    def _train(self, item: Item) -> None:
        assert item.minibatch is not None
        assert item.parameters is not None
        given = item.parameters
        with self._clock.measure("compute"):
            item.result = self._trained.trainer.train_step(
                item.minibatch, given.rows, given.dense, given.state
            )
        if not math.isfinite(item.result.loss):
            self._not_finite(item)

    def _push_together(self, item: Item) -> None:
        """Push in this thread, which alone can compute again what came too late."""
        while item.result is not None:
            try:
                item.committed = self._push(item, item.result)
                return
            except StaleParametersError:
                item.running.recomputed += 1
                self._pull(item)
                self._train(item)
            except StaleLeaseError as error:
                self._lost(item.running, error)
                return
            except GapError:
                return  # commit meets it again, and gives the lease back

    def _not_finite(self, item: Item) -> None:
        task = item.running.lease.task
        assert item.result is not None
        what = (
            f"loss is {item.result.loss} in task {task.id} (records {task.shard.start} to "
            f"{task.shard.end} of {task.shard.name}), minibatch {item.index}"
        )
        if self._config.training.on_nan == "stop":
            raise NonFiniteLossError(f"{what}; --on_nan=skip would leave such minibatches out")
        log.warning("%s: skipped", what)
        item.result = None

    def _finish(self, running: Running, report: TaskReport) -> TaskReport:
        """Do what a lease needs after its last minibatch."""
        if report.outcome is not Outcome.DONE:
            return report
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
                self._sink.write(lease.task, running.outputs)
                return replace(report, num_records=running.records)
            case TaskKind.METRICS:
                return replace(report, metrics=self._model.metric_results(lease.metric_states))
            case TaskKind.EXPORT:
                settings = self._config.checkpoint
                if not export(self._trained.exchange, self._trained.trainer, settings, lease):
                    return running.returned()
        return report

    # --- commit ----------------------------------------------------------------------------------

    def _commit(self) -> None:
        for item in self._computed:
            running = item.running
            if item.report is not None:
                self._report(running, item.report)
            elif running.is_training:
                if not running.dead:
                    self._hand_in(item)
                self._give_back(item)

    def _hand_in(self, item: Item) -> None:
        running = item.running
        try:
            if item.result is None:
                with self._clock.measure("push"):
                    self._trained.exchange.skip(running.lease, item.index)
                running.skipped.append(item.index)
            else:
                done = item.committed or self._push(item, item.result)
                self._count(item, item.result, done)
        except StaleLeaseError as error:
            self._lost(running, error)
        except (GapError, StaleParametersError) as error:
            # A replica came back without the minibatches before; or the pull was given up when its
            # connection broke, and what follows is pulled already. The next lease begins there.
            log.info("task %d: given back: %s", running.lease.task.id, error)
            running.dead = True
            self._report(running, running.returned())
        except MemoryLimitError as error:
            # A replica that was restored lacks rows that this pull found before.
            running.dead = True
            self._report(running, running.failure(error))

    def _push(self, item: Item, result: StepResult) -> Committed:
        assert item.minibatch is not None
        assert item.parameters is not None
        with self._clock.measure("push"):
            self._trained.exchange.name(item.minibatch, item.ids)
            return self._trained.exchange.push(
                item.parameters,
                result,
                self._trained.trainer.learning_rate(item.parameters.version),
                item.running.lease,
                item.index,
                item.minibatch.num_records,
                self._following,
            )

    def _lost(self, running: Running, error: StaleLeaseError) -> None:
        running.dead = True
        log.info("task %d: %s", running.lease.task.id, error)

    def _count(self, item: Item, result: StepResult, done: Committed) -> None:
        assert item.minibatch is not None
        running, num_records = item.running, item.minibatch.num_records
        loss = result.loss * num_records
        running.count(num_records, loss, done.staleness)
        before = self._progress
        self._progress = Progress(
            num_records=before.num_records + num_records,
            loss_sum=before.loss_sum + loss,
            num_minibatches=before.num_minibatches + 1,
            model_version=done.version,
        )

    def _report(self, running: Running, report: TaskReport) -> None:
        if running.is_training:
            self._trained.exchange.end_task(running.lease)
        if running.dead and report.outcome is Outcome.DONE:
            return  # somebody else has the task, or it was given back, or its failure reported
        if running.is_training:
            report = running.trained(report, self._progress.model_version)
        with self._clock.measure("report"):
            self._master.report(self._worker_id, report)

    # --- failures --------------------------------------------------------------------------------

    def _ended(self, item: Item, error: Exception) -> Item:
        """Turn an item whose stage failed into the end of its lease."""
        item.running.dead = True
        if item.parameters is not None and item.report is None:
            self._give_back(item)
        return Item(item.running, report=item.running.failure(error))

    def _drop(self, item: Item) -> None:
        if item.parameters is not None:
            self._give_back(item)

    def _give_back(self, item: Item) -> None:
        """Let the next minibatch be pulled; nobody waits for one that is not pushed."""
        if item.running.is_training:
            if item.running.dead:
                self._trained.exchange.end_task(item.running.lease)
            self._in_flight.release()


def task_seed(job_seed: int, task_id: int) -> int:
    """Return the seed of a task's shuffle: the same in every worker and for every lease.

    The finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
    generators", 2014) over both numbers; 63 bits.
    """
    mask = (1 << 64) - 1
    z = (job_seed * 0x9E3779B97F4A7C15 + task_id + 1) * 0x9E3779B97F4A7C15 & mask
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
    return (z ^ (z >> 31)) >> 1


def sample_minibatch(
    reader: DataReader, model: Predictor, mode: Mode, minibatch_size: int
) -> Minibatch:
    """Return the first minibatch of a source, from which a model is built.

    Raises:
        DataError: The source has no records.
    """
    for shard in reader.shards():
        end = min(shard.end, shard.start + minibatch_size)
        records = reader.read(Shard(shard.name, shard.start, end))
        for minibatch in model.minibatches(records, mode, minibatch_size, seed=0):
            return minibatch
    raise DataError("expected at least one record to build the model from, found none")

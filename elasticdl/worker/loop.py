"""The worker's loop: lease a task, and pass its minibatches through feed, pull, compute, push.

Four threads, one stage each, joined by bounded channels, so that neighbouring minibatches (of
one task or of two) overlap:

    feed     lease -> read -> user's feed -> minibatch
    prepare  ids of the embedding layers -> pull rows and dense parameters
    compute  loss and gradients (the calling thread)
    commit   push; at the end of a task, report

Everything about a lease happens in the order of its minibatches, and its end (done, failed,
returned) is reported by the commit stage only, after all that came before it.

`worker/protocol.py` decides what happens to a lease; this file has the threads. Their work is in
`feeding.py`, `pulling.py`, `computation.py` and `pushing.py`.

In synchronous training the compute stage pushes. A gradient that comes too late for its round is
computed again on newer parameters, so nothing is pulled ahead. In a hybrid job the rows are pulled
ahead, and the commit stage pushes their gradients. There the compute stage reads the newest dense
parameters and pushes only the dense gradient.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from elasticdl.backends.base import Predictor, StepResult, Trainer
from elasticdl.config import JobConfig
from elasticdl.data.base import DataReader
from elasticdl.errors import ModelError, place_of
from elasticdl.job import Finished, Label, Lease, Outcome, Progress, TaskKind, TaskReport, Wait
from elasticdl.observe.labels import LabelClock
from elasticdl.rpc.base import MasterClient
from elasticdl.runtime.ending import DaemonThread
from elasticdl.runtime.process import STOPPED_EXIT_CODE
from elasticdl.worker.activity import LABELS, Activity, Thread
from elasticdl.worker.channel import Channel, Closed
from elasticdl.worker.computation import Computation
from elasticdl.worker.culprit import Culprits
from elasticdl.worker.exchange import Exchange
from elasticdl.worker.feeding import Feeding
from elasticdl.worker.lookahead import Lookahead
from elasticdl.worker.parameters import Committed, PendingPull, Step
from elasticdl.worker.predictions import PredictionSink
from elasticdl.worker.protocol import Arrival, LeaseProtocol, Ruling, Stage
from elasticdl.worker.pulling import Pulling
from elasticdl.worker.pushing import Pushing
from elasticdl.worker.reading import readings_of
from elasticdl.worker.records import located
from elasticdl.worker.running import Item, Running
from elasticdl.worker.spans import Spans, Work, run_after_others
from elasticdl.worker.step_watch import StepWatch
from elasticdl.worker.telling import Telling

log = logging.getLogger(__name__)

_NO_TASK = ("lease", "no task")
_EXCHANGE = ("ids", "pull", "push")
"""Stages that pulling ahead hides behind `compute`."""


class Worker:
    """Works off leases until the master says that the job is finished."""

    def __init__(
        self,
        config: JobConfig,
        worker_id: int,
        master: MasterClient,
        model: Predictor,
        exchange: Exchange,
        readers: dict[TaskKind, DataReader],
        sink: Callable[[], PredictionSink],
        trainer: Trainer | None = None,
        has_own_reader: bool = False,
        labels: LabelClock | None = None,
        watches: Sequence[StepWatch] = (),
    ) -> None:
        """Put a worker together.

        Args:
            config: The job's settings.
            worker_id: Its number.
            master: Leases the tasks.
            model: Computes minibatches.
            exchange: The source of parameters and the target of gradients.
            readers: The readers of records, by the kind of task.
            sink: Makes the sink for predictions.
            trainer: The same model in a training job; None in other jobs.
            has_own_reader: Whether the reader is the user's code.
            labels: Counts the time of the worker.
            watches: See each step of training that was handed in.
        """
        self._exchange = exchange
        self._readers = readers
        self._watches = watches
        self._is_deterministic = config.training.deterministic
        self._readings = readings_of(config)
        self._activity = Activity(labels or LabelClock())
        self.spans = Spans(self._activity, lambda position: master.announce(worker_id, position))
        """Counts the time of each stage."""
        self._span = self.spans.span
        self._progress = Progress()
        self._lookahead = Lookahead(config.pipeline_depth + 1)
        self._protocol: LeaseProtocol[PendingPull] = LeaseProtocol(
            max_in_flight=self._lookahead.num_in_flight,
            is_synchronous=config.is_synchronous,
            push_steps=config.training.push_steps,
            exchange_minibatches=config.minibatches_per_exchange,
        )
        self._kept: list[Item] = []  # commit: computed, to be pushed with what follows
        self._landed = threading.Condition(threading.Lock())  # a minibatch is through
        self._telling = Telling(master, worker_id, self._protocol, self._landed)
        self._pulling = Pulling(
            model,
            exchange,
            self._protocol,
            self._span,
            self._activity,
            self._wait,
            # With at most one step in flight, the push of a step can bring back the rows of the
            # next one.
            pulls_with_push=config.pipeline_depth == 0 and exchange.may_pull_with_push,
        )
        self._computation = Computation(
            config,
            model,
            trainer,
            exchange,
            sink,
            self._span,
            self._readings.share,
            readers.get(TaskKind.TRAINING),
        )
        self._feeding = Feeding(
            config,
            model,
            exchange,
            readers,
            has_own_reader,
            self._protocol,
            self.spans,
            self._activity,
            self._landed,
            self._wait,
        )
        self._pushing = Pushing(config, exchange, trainer, self._protocol, self._span)
        self._culprits = Culprits(
            model, trainer, exchange, config.training.minibatch_size, config.training.seed
        )
        self._stop = threading.Event()
        self._fed: Channel[Item] = Channel(capacity=4)
        self._prepared: Channel[Item] = Channel(capacity=2)
        self._computed: Channel[Item] = Channel(capacity=2)
        self._error: BaseException | None = None
        self._committer = self._thread(self._commit)
        self._has_computed = threading.Event()
        self._is_leaving = False

    def run(self) -> None:
        """Work until the master has no more tasks for this worker.

        Raises:
            ElasticdlError: Something failed that is not the fault of one task.
        """
        threads = [self._thread(self._feed), self._thread(self._prepare), self._committer]
        for thread in threads:
            thread.start()
        self._guard(self._compute)
        self._activity.at(Thread.COMPUTE, Label.IDLE)
        self._computed.end()
        self._has_computed.set()
        if self._is_leaving:
            threads = [self._committer]  # the others may be in the user's code
        if self._error is None:
            for thread in threads:
                thread.join()
        self._stop.set()
        if self._error is not None:
            self._telling.tell_kept_at_last()
        if self._is_leaving:
            self._close_watches()
        if self._error is not None:
            raise self._error

    def leave(self) -> None:
        """Take no more work: `run` ends when the computed minibatches have been handed in."""
        self._is_leaving = True
        self._stop.set()
        self._exchange.rest()
        for channel in (self._fed, self._prepared):
            channel.abort()
        with self._landed:
            self._landed.notify_all()

    def give_back(self, timeout_seconds: float) -> None:
        """Give all leases back after `leave`, when the computed minibatches have been handed in.

        Args:
            timeout_seconds: The time for the minibatch that is being computed. A minibatch that
                takes longer is abandoned: nothing of it has left this process.
        """
        if not self._has_computed.wait(timeout_seconds):
            log.warning("the minibatch under way is abandoned: it takes too long")
            self._computed.end()
        self._committer.join()
        for running in self._telling.held():
            if not running.is_over:
                log.info("task %d: given back", running.lease.task.id)
                self._report(running, running.returned())
        self._exchange.settle()
        self._telling.tell_kept()

    def _thread(self, stage: Callable[[], None]) -> threading.Thread:
        return DaemonThread(self._beside, stage.__name__, (stage,))

    def _beside(self, stage: Callable[[], None]) -> None:
        """Run a stage with a lower priority than the thread that computes."""
        run_after_others()
        self._guard(stage)

    def _guard(self, stage: Callable[[], None]) -> None:
        """Run a stage; if it ends with an error, all stages end."""
        try:
            stage()
        except Closed:
            # Another stage has failed and kept its error, or `leave` has closed the channels.
            pass
        except BaseException as error:
            # Only the first error is kept: the errors that follow in other stages are its effects.
            if self._error is None:
                self._error = error
            self._stop.set()
            for channel in (self._fed, self._prepared, self._computed):
                channel.abort()
            with self._landed:
                self._landed.notify_all()

    def progress(self) -> Progress:
        """Return the progress so far; for the heartbeat's thread."""
        return replace(self._progress, stage_seconds=self.spans.seconds())

    def tell_kept(self) -> None:
        """Tell the master which tasks are done, if no request has told it; for the heartbeat."""
        self._guard(self._telling.tell_kept)

    def under_way(self) -> list[Work]:
        """Return which code of the user or of the framework runs now; for the watch's thread."""
        return self.spans.under_way()

    @contextlib.contextmanager
    def looking_up(self, *stages: str) -> Iterator[None]:
        """Stop the clock of stages within the block, while they look up rows."""
        with self.spans.waiting(*stages), self._activity.looking_up():
            yield

    # --- feed ------------------------------------------------------------------------------------

    def _feed(self) -> None:
        for lease in self._leases():
            self._feed_task(Running(lease, self._readings.of(lease)))
        self._fed.end()

    def _feed_task(self, running: Running) -> None:
        self._telling.begins(running)
        try:
            report = self._feeding.feed(running, self._fed.put)
        except Closed:
            raise
        except (Exception, SystemExit) as error:
            failure = self._failure(Stage.FEED, running, error)
            if failure is None:
                return
            report = failure
        self._fed.put(Item(running, report=report))
        if self._is_deterministic:
            # No task is held ahead: each worker takes only as much of an update as it can compute.
            self._wait(lambda: running.is_over)

    def _leases(self) -> Iterator[Lease]:
        is_waiting = False
        while not self._stop.is_set():
            with self._span("no task" if is_waiting else "lease", None):
                answer = self._telling.ask(is_waiting)
            is_waiting = isinstance(answer, Wait)
            self._exchange.out_of_work(is_waiting)
            match answer:
                case Lease():
                    self._activity.at(Thread.FEED, Label.WAIT_FOR_DATA)
                    yield answer
                case Wait(seconds):
                    with self._span("no task", None):
                        self._stop.wait(seconds)
                case Finished():
                    return

    # --- prepare ---------------------------------------------------------------------------------

    def _prepare(self) -> None:
        self._activity.prepare_here()
        for items in self._pulled_together():
            if items[0].minibatch is not None and self._protocol.goes_on(items[0].running):
                try:
                    self._pulling.fetch(items)
                except Closed:
                    raise
                except (Exception, SystemExit) as error:
                    items = [self._all_failed(items, error)]
                self._activity.at(Thread.PREPARE, None)
            for item in items:
                self._prepared.put(item)
        self._prepared.end()

    def _pulled_together(self) -> Iterator[list[Item]]:
        """Yield the minibatches of each pull; the end of a task comes by itself."""
        items: list[Item] = []
        for item in self._fed:
            if items and (item.report is not None or item.running is not items[0].running):
                yield items
                items = []
            items.append(item)
            if item.report is not None or len(items) >= self._protocol.steps_of_pull(item.running):
                yield items
                items = []
        if items:
            yield items

    def _all_failed(self, items: Sequence[Item], error: Exception | SystemExit) -> Item:
        """Turn the minibatches of a pull that failed into the end of their lease."""
        failed = next((item for item in items if not item.ids), items[0])
        end = self._failed(Stage.PREPARE, failed, error)
        for item in items:
            if item is not failed:
                self._let_go(item)
        return end

    # --- compute ---------------------------------------------------------------------------------

    def _compute(self) -> None:
        for item in self._waited(self._prepared):
            self._activity.at(Thread.COMPUTE, LABELS[item.running.lease.task.kind])
            try:
                match self._protocol.arrives(item.running, item.report):
                    case Arrival.STEP:
                        self._step(item)
                    case Arrival.FINISH:
                        assert item.report is not None
                        item.report = self._computation.finish(item.running, item.report)
                    case Arrival.DROP:
                        self._let_go(item)
                        continue
                    case Arrival.PASS:
                        pass
            except (Exception, SystemExit) as error:
                item = self._failed(Stage.COMPUTE, item, error)
            self._activity.at(Thread.COMPUTE, Label.WAIT_FOR_PARAMETERS)  # until it is on its way
            self._computed.put(item)

    def _waited(self, channel: Channel[Item]) -> Iterator[Item]:
        items = iter(channel)
        while True:
            before = self.spans.spent(*_NO_TASK)
            with self._span("compute wait", None) as waited:
                item = next(items, None)
            # While no task was there, the thread waited for the master and not for the pipeline.
            # This time is free for metrics.
            self._computation.idled(min(waited.seconds, self.spans.spent(*_NO_TASK) - before))
            if item is None:
                return
            yield item

    def _step(self, item: Item) -> None:
        self._take_dense(item)
        self._computation.step(item)
        while item.running.is_training and self._protocol.pushes_from_compute(item.running):
            try:
                with self._activity.waiting_for_parameters():
                    item.committed = self._pushing.push(item)
                break
            except Exception as error:
                match self._protocol.failed(Stage.PUSH_FROM_COMPUTE, item.running, error):
                    case Ruling.RECOMPUTE:
                        item.running.recomputed += 1
                        self._renew(item)
                        self._computation.step(item)
                    case Ruling.LOST:
                        self._lost(item.running, error)
                        return
                    case Ruling.COMMIT_DECIDES:
                        item.refusal = error
                        return
                    case _:
                        raise
        self._computation.measure(item)

    def _take_dense(self, item: Item) -> None:
        """Add the newest dense parameters of this worker to the rows of a training step."""
        if item.running.is_training and self._exchange.has_halves:
            assert item.parameters is not None
            step = Step(item.running.lease, item.index)
            with self._activity.waiting_for_parameters():
                item.parameters = self._exchange.take_dense(item.parameters, step)

    def _renew(self, item: Item) -> None:
        """Replace parameters that are not the newest; rows that were pulled ahead stay."""
        if self._exchange.has_halves:
            self._take_dense(item)
            return
        with self._activity.waiting_for_parameters():
            self._pulling.pull(item)

    # --- commit ----------------------------------------------------------------------------------

    def _commit(self) -> None:
        try:
            self._commit_all()
        finally:
            # `give_back` waits for this thread, and a watch may wait for a slow disk.
            if not self._is_leaving:
                self._close_watches()

    def _close_watches(self) -> None:
        watches, self._watches = self._watches, ()
        for watch in watches:
            watch.close()

    def _commit_all(self) -> None:
        for item in self._computed:
            if item.report is not None:
                # Kept minibatches are pushed before the lease is reported: the report says that
                # they are applied.
                self._hand_in_kept()
                self._report(item.running, item.report)
            elif not item.running.is_training:
                self._let_go(item)
            elif item.result is None:
                self._hand_in_kept()
                self._hand_in([item])
            else:
                self._kept.append(item)
                with self._landed:
                    is_to_push = self._protocol.is_to_push(item.running, len(self._kept))
                if is_to_push:
                    self._hand_in_kept()
        self._hand_in_kept()
        self._exchange.settle()
        self._telling.tell_kept()

    def _hand_in_kept(self) -> None:
        """Push the minibatches that wait for others of their push; no others will come."""
        kept, self._kept = self._kept, []
        if kept:
            self._hand_in(kept)

    def _hand_in(self, items: Sequence[Item]) -> None:
        """Push minibatches that follow each other, and free their places in flight."""
        running = items[0].running
        if self._protocol.goes_on(running):
            try:
                self._commit_items(items)
            except Exception as error:
                report = self._failure(Stage.COMMIT, running, error)
                if report is not None:
                    self._report(running, report)
        # Also after a failure: the prepare stage waits for the room that these steps take.
        for item in items:
            self._let_go(item)

    def _commit_items(self, items: Sequence[Item]) -> None:
        refusal = items[0].refusal
        if refusal is not None:
            raise refusal
        for item, done in zip(items, self._pushing.hand_in(items), strict=True):
            assert item.minibatch is not None
            if item.result is not None:
                self._count(item, item.result, done)
                for watch in self._watches:
                    watch.handed_in(item, done)
            else:
                item.running.skipped[item.index] = item.minibatch.num_records

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
            learning_rate=running.learning_rate,
        )

    def _report(self, running: Running, report: TaskReport) -> None:
        if running.is_training:
            report = self._settled(running, report)
            self._exchange.end_task(running.lease)
        with self._landed:
            is_news = self._protocol.ends(running, report)
            self._landed.notify_all()
        if not is_news:
            return
        if not running.is_training:
            self._tell(running, report)
            return
        trained = running.trained(report, self._progress.model_version)

        def tell(is_there: bool) -> None:
            self._tell(running, trained if is_there else running.returned())

        end = report.end_index if report.outcome is Outcome.DONE else 0
        self._exchange.when_settled(running.lease, end, tell)

    def _settled(self, running: Running, report: TaskReport) -> TaskReport:
        """Have the stores hear of all that a report counts; return what is to be reported."""
        if report.outcome is Outcome.DONE and self._protocol.goes_on(running):
            try:
                self._exchange.settle_task(running.lease)
            except Exception as error:
                return self._failure(Stage.COMMIT, running, error) or report
        return report

    def _tell(self, running: Running, report: TaskReport) -> None:
        with self._span("report", None):
            self._telling.tell(running, report)

    def _wait(self, until: Callable[[], bool]) -> None:
        """Wait until the protocol agrees; it is asked with the lock held."""
        with self._landed:
            while not until():
                if self._stop.is_set():
                    raise Closed
                self._landed.wait()

    # --- failures --------------------------------------------------------------------------------

    def _failed(self, stage: Stage, item: Item, error: Exception | SystemExit) -> Item:
        """Turn an item whose stage failed into the end of its lease."""
        report = self._failure(stage, item.running, error, item)
        if item.report is None:
            self._let_go(item)
        return Item(item.running, report=report)

    def _failure(
        self,
        stage: Stage,
        running: Running,
        error: Exception | SystemExit,
        item: Item | None = None,
    ) -> TaskReport | None:
        """Return the report that ends a lease after an error; None if nothing is to be reported.

        An error of the step that computes `item` is told with its record.
        """
        if isinstance(error, SystemExit):
            if error.code == STOPPED_EXIT_CODE:
                raise error  # a signal asks this process to end
            where = f"{stage.value} ({place_of(error)})"
            error = ModelError(
                f"the model file called sys.exit({error.code!r}) in {where}; raise an error instead"
            )
        match self._protocol.failed(stage, running, error):
            case Ruling.FAIL:
                reader = self._readers.get(running.lease.task.kind)
                shard = running.lease.task.shard
                if item is not None and item.minibatch is not None and reader is not None:
                    error = self._culprits.explained(running.lease, item.index, error, reader)
                return running.failure(located(reader, shard, error))
            case Ruling.RETURN:
                log.info("task %d: given back: %s", running.lease.task.id, error)
                return running.returned()
            case Ruling.LOST:
                self._lost(running, error)
                return None
            case _:
                raise error

    def _lost(self, running: Running, error: Exception) -> None:
        log.info("task %d: %s", running.lease.task.id, error)
        self._telling.forget(running)

    def _let_go(self, item: Item) -> None:
        """Free the place of a step, so that the next one can be pulled; no worker waits for it."""
        running = item.running
        is_pulled = running.is_training and item.parameters is not None
        if is_pulled and not self._protocol.goes_on(running):
            self._exchange.end_task(running.lease)
        if item.result is not None:
            self._lookahead.landed(self.spans.spent("compute"), self.spans.spent(*_EXCHANGE))
        with self._landed:
            self._protocol.allow(self._lookahead.num_in_flight)
            self._protocol.landed(running, item.index)
            self._landed.notify_all()

"""Workers and ps replicas of a simulated job: the real protocols, with coroutines for threads."""

import json
from collections import deque
from dataclasses import asdict
from pathlib import Path

import numpy as np

from elasticdl._core import PsClient, Store
from elasticdl.backends.base import Initializer, ModelDescription, OptimizerSpec, TableDescription
from elasticdl.checkpoints.hand_over import write_hand_over
from elasticdl.checkpoints.versions import MANIFEST, parse_manifest
from elasticdl.errors import CheckpointError, ElasticdlError, NotDeclaredError
from elasticdl.job import Finished, Lease, Outcome, PsRoute, Role, TaskReport, Wait
from elasticdl.runtime.process import STOPPED_EXIT_CODE
from elasticdl.worker.protocol import LeaseProtocol, Ruling, Stage
from elasticdl.worker.running import Running
from tests.simulation.clockwork import Call, Died, Node, Sleep, Unanswered

MODEL = json.dumps(
    asdict(
        ModelDescription(
            tables=(
                TableDescription(
                    "counts", 1, Initializer("constant", {"value": 0.0}), OptimizerSpec("sgd")
                ),
            ),
            dense=(),
            state=(),
            optimizer=OptimizerSpec("sgd"),
            seed=0,
        )
    )
)
NOTHING = np.zeros(0, np.float32)
START_SECONDS = 0.5  # of a process
STEP_SECONDS = 0.05
WRITE_SECONDS = 0.05  # of what a replica hands over
TELL_SECONDS = 3.0  # for the master to answer a process that is asked to end
LONGEST_SECONDS = 25.0  # that such a process takes


def part_of(folder: Path, index: int) -> Path:
    """Return what a replica restores of a checkpoint, or of what its predecessor handed over.

    Raises:
        CheckpointError: The checkpoint is not whole.
    """
    if folder.name.startswith("hand-over"):
        return folder
    try:
        parse_manifest((folder / MANIFEST).read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / MANIFEST}: {error}") from error
    return folder / str(index)


class Replica(Node):
    """A ps replica."""

    def __init__(self, job, index: int, ref: str) -> None:
        super().__init__(f"ps replica {index} ({ref})")
        self.job, self.index, self.session = job, index, ref
        self.store: PsClient | None = None
        self.client: PsClient | None = None
        self.is_asked_to_end = False
        self.code: int | None = None

    def main(self):
        """Restore or begin, register, and say that it is alive."""
        yield Sleep(START_SECONDS)
        self.store = self.client = PsClient.in_process((yield from self._begin()))
        yield self.job.ask(
            lambda core, now: core.register_ps(self.index, self.session, 1, self.session, now)
        )
        while True:
            yield Sleep(1.0)
            yield self.job.ask(
                lambda core, now: core.heartbeat(Role.PS, self.index, self.session, None, now)
            )

    def _begin(self):
        """Return the store of the newest sound checkpoint; an empty one if there is none."""
        num_unsound, problem = 0, ""
        while True:
            folder = yield self.job.restore_point(self.index, num_unsound, problem)
            if folder is None:
                return Store()
            try:
                store = self.job.restore(part_of(folder, self.index))
            except CheckpointError as error:
                num_unsound, problem = num_unsound + 1, str(error)
                self.job.unsound.append(f"{self.name}: {error}")
            else:
                self.job.scheduler.tell(f"{self.name} restores {folder.name}")
                return store

    def reached(self) -> PsClient:
        """Return its store's client, if it serves."""
        if self.client is None:
            raise Unanswered
        return self.client

    def depart(self):
        """Hand over and end, as `elasticdl.ps.departure` does."""
        if self.is_asked_to_end:
            return
        self.is_asked_to_end = True
        scheduler = self.job.scheduler
        scheduler.at(LONGEST_SECONDS, lambda: self.job.ends(self, STOPPED_EXIT_CODE))
        if self.client is not None:
            yield from self._hand_over()
        self.job.ends(self, STOPPED_EXIT_CODE)

    def _hand_over(self):
        try:
            folder = yield self.job.leave_ps(self, TELL_SECONDS)
            if folder is None:
                return
            self.client = self.job.client_of_leaving(self.store)
            yield Sleep(WRITE_SECONDS * self.job.scheduler.random.random())
            with self.job.disk.noting():
                version = write_hand_over(folder, lambda at: self.store.checkpoint(at)[0])
            yield Sleep(WRITE_SECONDS * self.job.scheduler.random.random())
            yield self.job.ask(
                lambda core, now: core.handed_over(self.index, self.session, version, now),
                LONGEST_SECONDS,
            )
        except ElasticdlError as error:
            self.job.scheduler.tell(f"{self.name} cannot hand over: {error}")


class Worker(Node):
    """A worker, whose stages follow each other; up to `depth` steps are pulled before a push."""

    def __init__(self, job, index: int, ref: str) -> None:
        super().__init__(f"worker {index} ({ref})")
        self.job, self.index, self.session = job, index, ref
        self.route = PsRoute(-1, ())
        self.protocol = LeaseProtocol(job.depth + 1, is_synchronous=False)
        self.queue: deque = deque()
        self.version = 0
        self.code: int | None = None

    def main(self):
        """Work until the master has nothing more."""
        yield Sleep(START_SECONDS)
        yield self.ask(lambda core, now: core.register_worker(self.index, self.session, 1, now))
        yield from self.follow()
        while not (self.route.addresses and all(self.route.addresses)):
            yield Sleep(0.1)
            yield from self.follow()
        self.job.scheduler.spawn(self, self.beat())
        for replica in range(self.job.num_ps):
            yield self.to(replica, declare)
        request = 0
        while True:
            request += 1
            answer = yield self.ask(
                lambda core, now, number=request: core.lease(self.index, self.session, number, now)
            )
            match answer:
                case Lease():
                    yield from self.work_off(answer)
                case Wait(seconds):
                    while self.queue:
                        yield from self.hand_in(*self.queue.popleft())
                    yield Sleep(seconds)
                case Finished():
                    self.job.ends(self, 0)
                    return

    def ask(self, event):
        """Return a call to the master."""
        return self.job.ask(event)

    def follow(self):
        self.route = yield self.ask(lambda core, now: core.ps_route())

    def beat(self):
        """Say that it is alive, and learn where the replicas are."""
        while True:
            yield Sleep(1.0)
            yield self.ask(
                lambda core, now: core.heartbeat(Role.WORKER, self.index, self.session, None, now)
            )
            yield from self.follow()

    def to(self, replica: int, work):
        """Return a call to a replica, wherever it is then."""
        return Call(
            lambda: self.job.by_address(self.route.addresses[replica]),
            lambda node: work(node.reached()),
        )

    def each(self, work):
        """Do something at each replica, in any order; return what they answered."""
        answers = [None] * self.job.num_ps
        for replica in self.job.any_order():
            while True:
                try:
                    answers[replica] = yield self.to(
                        replica, lambda client, number=replica: work(client, number)
                    )
                    break
                except NotDeclaredError:
                    yield self.to(replica, declare)
        return answers

    def work_off(self, lease: Lease):
        running, task, end = Running(lease), lease.task, 0
        while self.job.is_ahead(lease, self.route):
            yield Sleep(0.1)
        try:
            start = 0
            if self.protocol.asks_where_to_begin(lease):
                begins = yield from self.each(lambda c, _: c.begin_task(task.id, lease.number))
                start = min(begins)
            size = self.job.minibatch_size
            for index, first in enumerate(range(task.shard.start, task.shard.end, size)):
                end = index + 1
                if index < start or not self.protocol.goes_on(running):
                    continue
                while not self.protocol.may_pull(running, index):
                    yield from self.hand_in(*self.queue.popleft())
                records = np.arange(first, min(first + size, task.shard.end))
                pulled = yield from self.each(
                    lambda client, replica, ids=records, number=index: client.pull(
                        [(0, self.job.of(ids, replica))], True, step=(task.id, lease.number, number)
                    )
                )
                yield Sleep(STEP_SECONDS * (0.5 + self.job.scheduler.random.random()))
                self.queue.append((running, index, records, pulled, None))
        except ElasticdlError as error:
            if not self.rules(Stage.FEED, running, error):
                return
        report = TaskReport(
            task.id, lease.number, Outcome.DONE, end_index=end, num_examples=task.shard.num_records
        )
        self.queue.append((running, -1, None, None, report))

    def rules(self, stage: Stage, running: Running, error: Exception) -> bool:
        """Return whether a report that gives the lease back, or says that it failed, is due."""
        match self.protocol.failed(stage, running, error):
            case Ruling.RETURN | Ruling.FAIL:
                return True
            case Ruling.LOST:
                self.job.scheduler.tell(f"{self.name} has lost a lease: {error}")
                return False
            case _:
                self.job.scheduler.tell(f"{self.name} ends: {error}")
                raise Died

    def hand_in(self, running: Running, index: int, records, pulled, report):
        lease = running.lease
        if report is None:
            if self.protocol.goes_on(running):
                try:
                    yield from self.push(lease, index, records, pulled)
                    running.count(len(records), 0.0, 0)
                except ElasticdlError as error:
                    if self.rules(Stage.COMMIT, running, error):
                        yield from self.report(running, running.returned())
            self.protocol.landed(running, index)
            return
        yield from self.report(running, report)

    def push(self, lease, index, records, pulled):
        def work(client, replica):
            grads = np.full((len(self.job.of(records, replica)), 1), -1.0, np.float32)
            task, number, minibatch = self.job.named(lease.task.id, lease.number, index)
            return client.push(
                pulled[replica],
                [grads],
                NOTHING,
                NOTHING,
                1.0,
                task,
                number,
                minibatch,
                len(records),
            )

        (self.version, _), *_ = yield from self.each(work)

    def report(self, running, report):
        if not self.protocol.ends(running, report):
            return
        if report.outcome is Outcome.DONE:
            report = running.trained(report, self.version)
        yield self.ask(lambda core, now: core.report(self.index, self.session, report, now))


def declare(client: PsClient) -> None:
    """Tell a replica what the model is."""
    client.declare(MODEL, NOTHING, NOTHING)

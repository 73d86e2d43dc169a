"""Workers and ps replicas of a simulated job: the real protocols, with coroutines for threads."""

from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import replace

from elasticdl._core import DrivenReplica, PsClient, Store
from elasticdl.checkpoints.hand_over import write_hand_over
from elasticdl.errors import CheckpointError, ElasticdlError, GapError, UnavailableError
from elasticdl.job import Finished, Lease, Outcome, PsRoute, Role, TaskReport, Wait
from elasticdl.master.moves.steps import MoveStep, Settle, Switch, encoded
from elasticdl.runtime.process import STOPPED_EXIT_CODE
from elasticdl.worker.protocol import LeaseProtocol, Ruling, Stage
from elasticdl.worker.running import Running
from tests.simulation.clockwork import Died, Node, Sleep, Unanswered
from tests.simulation.exchanges import Step

START_SECONDS = 0.5  # of a process
STEP_SECONDS = 0.05
WRITE_SECONDS = 0.05  # of what a replica hands over
TELL_SECONDS = 3.0  # for the master to answer a process that is asked to end
LONGEST_SECONDS = 25.0  # that such a process takes


class Replica(Node):
    """A ps replica."""

    def __init__(self, job, index: int, ref: str) -> None:
        super().__init__(f"ps replica {index} ({ref})")
        self.job, self.index, self.session = job, index, ref
        self.driven: DrivenReplica | None = None
        self.layout, self.serves, self.has_place = -1, False, False
        self._client: PsClient | None = None
        self._newest: dict[int, int] = {}  # of each task the newest lease that has begun here
        self.is_asked_to_end = False
        self.code: int | None = None

    def main(self):
        """Restore or begin, register, and say that it is alive."""
        yield Sleep(START_SECONDS)
        store, (count, layout, awaits_move), first_lease = yield from self._begin()
        if awaits_move:
            store = Store(self.index, count)
        elif log := self.job.redo_log_of(self.index, layout):
            num_updates, _ = store.redo(log, self.job.redo_bytes)
            if num_updates:
                self.job.scheduler.tell(f"{self.name} makes {num_updates} updates again")
        self.job.refuses_before(store, first_lease)
        self.driven = self.job.driven(store, layout, awaits_move)
        self.layout, self.serves = layout, True
        self.job.applied_at(self)
        yield self.job.ask(self._register)
        while True:
            yield Sleep(1.0)
            if (store := self.driven.store) is not None:
                store.trim_redo_log()
            yield self.job.ask(
                lambda core, now: core.heartbeat(Role.PS, self.index, self.session, None, now)
            )

    def _register(self, core, now: float) -> float:
        interval = core.register_ps(self.index, self.session, 1, self.session, now)
        self.has_place = True
        return interval

    def _begin(self):
        """Return the store of the newest sound checkpoint, or an empty one; its place; and more.

        The last is the first lease that it may let in.
        """
        num_unsound, problem = 0, ""
        while True:
            answer = yield self.job.restore_point(self.index, num_unsound, problem)
            if problem:  # and the master does not say that another process has the place
                self.job.unsound.append(f"{self.name}: {problem}")
            folder, place, first_lease = answer
            if folder is None:
                return Store(self.index, place[0]), place, first_lease
            try:
                store = self.job.restore(folder, self.index, place[0])
            except CheckpointError as error:
                num_unsound, problem = num_unsound + 1, str(error)
            else:
                self.job.scheduler.tell(f"{self.name} restores {folder.name}")
                return store, place, first_lease

    def driving(self) -> DrivenReplica:
        """Return what waits in no thread, if it serves."""
        if not self.serves:
            raise Unanswered
        return self.driven

    def reached(self) -> PsClient:
        """Return the client of the store that it serves.

        Raises:
            UnavailableError: It serves none: a move has not come to its end here.
        """
        if self.driving().store is None:
            raise UnavailableError(f"{self.name} has no part of the model now")
        if self._client is None:
            self._client = self.driven.client()
        return self._client

    def begin_task(self, connection: int, task: int, number: int, lease: Lease) -> int:
        """Begin a lease here; it is called `number`."""
        begun = self.driving().begin_task(connection, task, number)
        self._newest[task] = max(self._newest.get(task, 0), lease.number)
        return begun

    def move_step(self, step: MoveStep) -> str:
        """Do a step of a move; what it tells may be lost, or the step may come twice."""
        scheduler, number = self.job.scheduler, self.job.scheduler.count("move step")
        self.job.before_move_step(number)
        if not self.is_alive:
            raise Died
        if scheduler.fault("move step is lost", number):
            raise Unanswered
        told = self._do(step)
        if late := scheduler.fault("move step comes again", number):
            scheduler.at(late.seconds, lambda: scheduler.on(self, lambda: self._do_late(step)))
        if scheduler.fault("nobody hears of move step", number):
            raise Unanswered
        return told

    def _do(self, step: MoveStep) -> str:
        if isinstance(step, Settle):  # nobody waits in a thread
            step = replace(step, wait_ms=0)
        told = self.driving().move_step(encoded(step), self.job.others_of(self))
        if isinstance(step, Switch):
            self._client, self.layout = None, max(self.layout, step.number)
        return told

    def _do_late(self, step: MoveStep) -> None:
        with suppress(ElasticdlError, ValueError, RuntimeError, Unanswered):
            self._do(step)

    @contextmanager
    def held_to_its_fence(self, lease: Lease):
        """Nothing that an older lease does in this block may change anything here."""
        task = lease.task.id
        if self._newest.get(task, 0) <= lease.number:
            yield
            self.job.applied_at(self)
            return
        before = self._applied(task)
        try:
            yield
        finally:
            after = self._applied(task)
            words = f"{self.name}: lease {lease.number} of task {task} is over, and was applied"
            assert before == after, words

    def _applied(self, task: int) -> list:
        (audit,) = self.reached().audit()
        return audit[audit[:, 0] == task].tolist()

    def lost(self, connection: int) -> None:
        """A connection is gone."""
        if self.driven is not None and self.is_alive:
            self.driven.lost(connection)

    def depart(self):
        """Hand over and end, as `elasticdl.ps.departure` does."""
        if self.is_asked_to_end:
            return
        self.is_asked_to_end = True
        scheduler = self.job.scheduler
        scheduler.at(LONGEST_SECONDS, lambda: self.job.ends(self, STOPPED_EXIT_CODE))
        if self.serves and self.driven.store is not None:
            yield from self._hand_over()
        self.job.ends(self, STOPPED_EXIT_CODE)

    def _hand_over(self):
        try:
            folder = yield self.job.leave_ps(self, TELL_SECONDS)
            if folder is None:
                return
            self.serves = self.job.serves_while_leaving
            store = self.driven.store
            yield Sleep(WRITE_SECONDS * self.job.scheduler.random.random())
            with self.job.disk.noting():
                version = write_hand_over(folder, store.checkpoint)
            yield Sleep(WRITE_SECONDS * self.job.scheduler.random.random())
            yield self.job.ask(
                lambda core, now: core.parameters.handed_over(
                    self.index, self.session, version, now
                ),
                LONGEST_SECONDS,
            )
        except ElasticdlError as error:
            self.job.scheduler.tell(f"{self.name} cannot hand over: {error}")


class Worker(Node):
    """A worker, whose stages follow each other; up to `depth` steps are pulled before a push.

    It pushes `push_steps` minibatches of a first lease together, or pulls and pushes
    `exchange_minibatches` of any lease in one frame.
    """

    def __init__(self, job, index: int, ref: str) -> None:
        super().__init__(f"worker {index} ({ref})")
        self.job, self.index, self.session = job, index, ref
        self.route = PsRoute(-1, ())
        self.exchange = job.exchange(self)
        self.protocol = LeaseProtocol(
            job.depth + 1,
            self.exchange.is_synchronous,
            push_steps=job.push_steps,
            exchange_minibatches=job.exchange_minibatches,
        )
        self.queue: deque = deque()
        self.kept: list = []  # computed, to be pushed with what follows
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
        yield from self.exchange.declare()
        request = 0
        while True:
            request += 1
            kept = self.protocol.asks()
            answer = yield self.job.lease(self, request, not self.queue, kept)
            self.protocol.answered(answer)
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
        self.route = yield self.ask(lambda core, now: core.parameters.route)
        self.exchange.hear(self.route)

    def beat(self):
        """Say that it is alive, and learn where the replicas are."""
        while True:
            yield Sleep(1.0)
            yield from self.tell_kept()
            yield self.ask(
                lambda core, now: core.heartbeat(Role.WORKER, self.index, self.session, None, now)
            )
            yield from self.follow()

    def work_off(self, lease: Lease):
        running, task, end = Running(lease), lease.task, 0
        while self.job.is_ahead(lease, self.route):
            yield Sleep(0.1)
        while waits := self.job.waits_to_read():
            yield Sleep(waits)
        try:
            start = 0
            if self.protocol.asks_where_to_begin(lease):
                start = yield from self.exchange.begin(lease)
            size, records = self.job.minibatch_size, self.job.records_of(task)
            firsts = range(0, len(records), size)
            steps = [Step(lease, n, records[at : at + size]) for n, at in enumerate(firsts)]
            end, together = len(steps), self.protocol.steps_of_pull(running)
            for at in range(start, end, together):
                if self.protocol.goes_on(running):
                    yield from self.train(running, steps[at : at + together])
        except ElasticdlError as error:
            if self.rules(Stage.FEED, running, error):
                is_gap = isinstance(error, GapError)
                report = running.returned() if is_gap else running.failure(error)
                self.queue.append((running, None, None, report))
            return
        report = TaskReport(
            task.id,
            lease.number,
            Outcome.DONE,
            end_index=end,
            num_examples=len(records),
            num_missing=task.shard.num_records - len(records),
        )
        self.queue.append((running, None, None, report))

    def train(self, running: Running, steps: list[Step]):
        """Pull the parameters of steps together, and compute them one after the other."""
        indices = [step.index for step in steps]
        while not self.protocol.may_pull(running, indices):
            yield from self.hand_in(*self.queue.popleft())
        for step, pulled in zip(steps, (yield from self.exchange.pull_several(steps)), strict=True):
            yield from self.compute(running, step, pulled)

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

    def compute(self, running: Running, step: Step, pulled):
        """Compute; in synchronous training push too, as often as the parameters are too old."""
        while True:
            yield Sleep(STEP_SECONDS * (0.5 + self.job.scheduler.random.random()))
            if not self.protocol.pushes_from_compute(running):
                break
            try:
                self.version = yield from self.exchange.push(step, pulled)
            except ElasticdlError as error:
                match self.protocol.failed(Stage.PUSH_FROM_COMPUTE, running, error):
                    case Ruling.RECOMPUTE:
                        pulled = yield from self.exchange.pull(step)
                        continue
                    case Ruling.LOST:
                        self.job.scheduler.tell(f"{self.name} has lost a lease: {error}")
                    case Ruling.COMMIT_DECIDES:
                        self.queue.append((running, step, pulled, None))
                        return
                    case _:
                        self.job.scheduler.tell(f"{self.name} ends: {error}")
                        raise Died from error
            else:
                pulled = None
            break
        self.queue.append((running, step, pulled, None))

    def hand_in(self, running: Running, step: Step | None, pulled, report):
        if step is None:
            yield from self.hand_in_kept(running)
            yield from self.report(running, report)
            return
        self.kept.append((step, pulled))
        if self.protocol.is_to_push(running, len(self.kept)):
            yield from self.hand_in_kept(running)

    def hand_in_kept(self, running: Running):
        kept, self.kept = self.kept, []
        steps, pulled = [step for step, _ in kept], [mine for _, mine in kept]
        if kept and self.protocol.goes_on(running):
            try:
                if len(kept) > 1:
                    self.version = yield from self.exchange.push_several(steps, pulled)
                elif pulled[0] is not None:
                    self.version = yield from self.exchange.push(steps[0], pulled[0])
                for step in steps:
                    running.count(len(step.records), 0.0, 0)
            except ElasticdlError as error:
                if self.rules(Stage.COMMIT, running, error):
                    yield from self.report(running, running.returned())
        if kept and not self.protocol.goes_on(running):
            yield from self.exchange.end(running.lease)
        for step in steps:
            self.protocol.landed(running, step.index)

    def report(self, running, report):
        if self.job.settles_before_report:
            report = yield from self.settled(running, report)
            yield from self.exchange.end(running.lease)
        if not self.protocol.ends(running, report):
            return
        if report.outcome is Outcome.DONE:
            report = running.trained(report, self.version)
        self.job.before_report()
        if self.job.settles_before_report and self.protocol.keeps(running, report):
            return
        yield from self.tell_kept()
        yield self.tell(report)
        if not self.job.settles_before_report:
            with suppress(ElasticdlError):
                yield from self.exchange.settle(running.lease)

    def tell_kept(self):
        for report in self.protocol.take_kept():
            yield self.tell(report)

    def tell(self, report):
        """Return a call to the master that ends a lease."""
        return self.ask(lambda core, now: core.report(self.index, self.session, report, now))

    def settled(self, running, report):
        """Have the replicas hear of all that a report counts; return what is to be reported."""
        if report.outcome is Outcome.DONE and self.protocol.goes_on(running):
            try:
                yield from self.exchange.settle(running.lease)
            except ElasticdlError as error:
                if self.rules(Stage.COMMIT, running, error):
                    return running.returned()
        return report

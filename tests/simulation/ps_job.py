"""A whole job with ps replicas in one process: real decisions, real stores, simulated surroundings.

Real are the master's core with its journal and snapshots, its interpreter, the proof, the life of a
lease in a worker (`LeaseProtocol`), and the Rust stores of the replicas with their watermarks,
fences, checkpoints and restores. Simulated are processes, time, the network, the launcher, the
folder of checkpoints, and what a worker's threads do one after the other.

The model counts: a row of the table is of one record, and each training of that record adds one.
"""

import json
import os
import random
import shutil
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from elasticdl._core import PsClient, Store
from elasticdl.backends.base import Initializer, ModelDescription, OptimizerSpec, TableDescription
from elasticdl.checkpoints.hand_over import write_hand_over
from elasticdl.config import (
    CheckpointSection,
    ClusterSection,
    DataSection,
    JobConfig,
    ModelSection,
    TrainingSection,
)
from elasticdl.errors import (
    CheckpointError,
    ElasticdlError,
    LaunchError,
    NotDeclaredError,
    StateError,
    UnavailableError,
)
from elasticdl.job import (
    Finished,
    Lease,
    Outcome,
    PsRoute,
    Role,
    Shard,
    Strategy,
    TaskReport,
    Wait,
)
from elasticdl.launchers.base import Exited, ExitReason, ProcessHandle, Started
from elasticdl.master import actions
from elasticdl.master.durable import JobData, open_job
from elasticdl.master.effects import audits
from elasticdl.master.interpreter import Interpreter
from elasticdl.master.lacks import Applied
from elasticdl.master.parameters.answers import CheckpointFailed, CheckpointWritten
from elasticdl.master.parameters.hand_overs import HandedOver
from elasticdl.master.status import picture
from elasticdl.state.memory import MemoryState
from elasticdl.worker.protocol import LeaseProtocol, Ruling, Stage
from elasticdl.worker.running import Running
from tests.simulation.clockwork import Call, Died, Fault, Node, Scheduler, Sleep

MODEL = ModelDescription(
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
NOTHING = np.zeros(0, np.float32)
START_SECONDS = 0.5  # of a process
NOTICE_SECONDS = 0.05  # until the launcher knows that one has ended
STEP_SECONDS = 0.05
MASTER_START_SECONDS = 1.0
SILENCE_SECONDS = 5.0  # then a process is taken as lost
JOB_SECONDS = 2.5  # that the job takes if nothing goes wrong
PATIENCE_SECONDS = 900.0  # of simulated time; then the job hangs


PROCESS_FAULTS = [
    "kill worker",
    "kill ps",
    "kill master",
    "pause worker",
    "pause ps",
    "cut off worker",
    "cut off ps",
]


class Journal(MemoryState):
    """A journal whose writer may be killed before or after what it writes is durable."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler

    def append(self, facts):
        """Write facts down, if nothing happens to the master."""
        number = self._scheduler.count("append")
        if self._scheduler.fault("kill the master before append", number):
            raise Died
        if self._scheduler.fault("journal fails at append", number):
            raise StateError("the disk is broken")
        super().append(facts)
        if self._scheduler.fault("kill the master after append", number):
            raise Died


class Replica(Node):
    """A ps replica."""

    def __init__(self, job: "PsJob", index: int, ref: str) -> None:
        super().__init__(f"ps replica {index} ({ref})")
        self.job, self.index, self.session = job, index, ref
        self.client: PsClient | None = None

    def main(self):
        """Restore or begin, register, and say that it is alive."""
        yield Sleep(START_SECONDS)
        store, num_unsound = None, 0
        while store is None:
            point = yield self.job.ask(
                lambda core, now, unsound=num_unsound: core.restore_point(
                    self.index, unsound, "gone"
                )
            )
            folder = self.job.folder_of(point, self.index)
            if point is None:
                store = Store()
            elif folder is None:
                num_unsound += 1
            else:
                self.job.scheduler.tell(f"{self.name} restores {folder.parent.name}")
                store = self.job.restore(folder)
        self.client = PsClient.in_process(store)
        yield self.job.ask(
            lambda core, now: core.register_ps(self.index, self.session, 1, self.session, now)
        )
        while True:
            yield Sleep(1.0)
            yield self.job.ask(
                lambda core, now: core.heartbeat(Role.PS, self.index, self.session, None, now)
            )

    def reached(self) -> PsClient:
        """Return its store's client, if it serves."""
        assert self.client is not None
        return self.client


class Worker(Node):
    """A worker, whose stages follow each other; up to `depth` steps are pulled before a push."""

    def __init__(self, job: "PsJob", index: int, ref: str) -> None:
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
        for replica in self.job.scheduler.random.sample(range(self.job.num_ps), self.job.num_ps):
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
                yield Sleep(STEP_SECONDS * self.job.scheduler.random.uniform(0.5, 1.5))
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
    client.declare(json.dumps(asdict(MODEL)), NOTHING, NOTHING)


class Master(Node):
    """One master process after the other, on one journal."""

    is_centre = True

    def __init__(self, job: "PsJob") -> None:
        super().__init__(f"master {job.scheduler.count('master')}")
        self.world = job
        began = job.scheduler.now
        shard = Shard("records", 0, job.num_records)
        self.job, is_new = open_job(
            job.journal,
            job.config,
            lambda: JobData((shard,)),
            clock=lambda: job.scheduler.now - began,
        )
        self.core = self.job.core
        self.interpreter = _Interpreter(
            self.core,
            self,
            self,
            job.folder,
            self.job.id,
            tell=lambda note: job.scheduler.tell(f"{self.name}: {note.text}"),
            event=lambda event: self.do(lambda core, now: event(now)),
            run=self._run,
        )
        self.interpreter.master = self
        self._lines: dict[object, float] = {}
        self._is_new = is_new

    def main(self):
        """Take the job up, and look for silent processes."""
        is_begun = not self._is_new and any(self.core.members)  # as `Master` asks
        self.do(lambda core, now: core.resume(now) if is_begun else core.begin(now))
        while True:
            yield Sleep(self.core.members.tick_seconds)
            self.do(lambda core, now: core.tick(now))

    def do(self, event):
        """Have an event happen; it is written down before anybody hears of it."""
        try:
            answer, wanted = self.job.handle(lambda: event(self.core, self.job.now()))
        except StateError as error:
            self.world.scheduler.tell(f"{self.name}: {error}")
            raise Died from error
        for action in wanted:
            self.interpreter.carry_out(action)
        return answer

    def _run(self, effect, line):
        """Run an effect a little later, those of one line one after the other."""
        scheduler = self.world.scheduler
        begin = max(self._lines.get(line, 0.0), scheduler.now) + 0.01
        self._lines[line] = begin + 0.005

        def run():
            if waits := self.world.seconds_cut_off():  # its calls wait for who does not answer
                scheduler.at(waits, lambda: scheduler.on(self, run))
                return
            then = effect()
            scheduler.at(0.005, lambda: scheduler.on(self, then))

        scheduler.at(begin - scheduler.now, lambda: scheduler.on(self, run))

    # --- `JobProcesses` --------------------------------------------------------------------------

    def start(self, role, index):
        return self.world.start(role, index)

    def adopt(self, handle):
        if not self.world.watch(handle):
            raise LaunchError("it is gone")

    def stop(self, handle):
        self.world.stop(handle)

    def exited(self, exited):
        self.do(lambda core, now: core.process_exited(exited, now))

    # --- `ParameterAccess` -----------------------------------------------------------------------

    def clients(self):
        found = [self.world.by_address(address) for address in self.core.ps_route().addresses]
        if not all(found):
            raise UnavailableError("a ps replica is gone")
        return [node.reached() for node in found]

    def audit(self, first=0):
        return audits([client.audit(first)[0] for client in self.clients()])

    def tally(self):
        tallies = [json.loads(client.stats())[0]["watermarks"] for client in self.clients()]
        return {name: sum(tally[name] for tally in tallies) for name in tallies[0]}

    def expire(self, now_seconds=None):
        self.clients()
        return ""

    def applied_by(self, address, role):
        node = self.world.by_address(address)
        if node is None:
            raise UnavailableError("it is gone")
        (applied,) = node.reached().audit()
        return Applied(applied[:, 0], applied[:, 1])


class _Interpreter(Interpreter):
    """Has checkpoints written to the simulated folder, one replica after the other."""

    master: Master

    def carry_out(self, action):
        world = self.master.world
        match action:
            case actions.WriteCheckpoint(version):
                world.scheduler.spawn(self.master, self._checkpoint(world, version))
            case actions.DeleteCheckpoints(kept):
                world.forget(kept)
            case actions.DeleteHandOvers():
                pass
            case _:
                super().carry_out(action)

    def _checkpoint(self, world, version):
        folder = world.folder / f"{version}-{world.scheduler.count('checkpoint')}"
        answer = CheckpointWritten(version)
        try:
            for index in range(world.num_ps):
                yield Sleep(0.05)
                while waits := world.seconds_cut_off():
                    yield Sleep(waits)
                if world.scheduler.fault("write fails", world.scheduler.count("write")):
                    raise CheckpointError("the disk is full")
                store = self.master.clients()[index]
                write_hand_over(folder / str(index), lambda at, c=store: c.checkpoint(at)[0])
        except ElasticdlError as error:
            answer = CheckpointFailed(version, str(error), isinstance(error, UnavailableError))
        else:
            world.checkpoints[version] = folder
        self.master.do(lambda core, now: core.answered(answer, now))


class PsJob:
    """A job, what surrounds it, and what goes wrong."""

    num_ps, num_workers, minibatch_size, depth = 2, 2, 4, 1
    num_records, num_epochs = 96, 2

    def __init__(self, seed: int, faults: list[Fault], folder: Path) -> None:
        self.config, self.folder = self._config(folder), folder
        self.scheduler = Scheduler(seed, faults)
        self.journal = Journal(self.scheduler)
        self.checkpoints: dict[int, Path] = {}
        self.processes: dict[str, Replica | Worker] = {}
        self.handles: dict[str, ProcessHandle] = {}
        self.watched: set[str] = set()
        self.master: Master | None = None
        self.start_master()
        for fault in faults:
            if isinstance(fault.at, float):
                self.scheduler.at(fault.at, lambda fault=fault: self.strike(fault))

    def _config(self, folder: Path) -> JobConfig:
        return JobConfig(
            command="train",
            model=ModelSection(model_def="zoo.counting.forward"),
            data=DataSection(training_data="records"),
            training=TrainingSection(
                distribution_strategy=Strategy.PARAMETER_SERVER,
                minibatch_size=self.minibatch_size,
                num_minibatches_per_task=3,
                num_epochs=self.num_epochs,
                use_async=True,
            ),
            checkpoint=CheckpointSection(recovery_seconds=0.5),
            cluster=ClusterSection(
                num_workers=self.num_workers,
                num_ps_pods=self.num_ps,
                job_dir=folder,
                heartbeat_timeout_seconds=SILENCE_SECONDS,
                max_relaunches=100,
            ),
        )

    # --- how it goes -----------------------------------------------------------------------------

    def run(self) -> None:
        """Let the job run to its end, and hold it to its promises."""
        in_time = self.scheduler.run(self.has_ended, PATIENCE_SECONDS)
        assert in_time, "the job does not end"
        core = self.master.core
        assert str(core.phase) == "finished", core.message
        assert self.counts() == [self.num_epochs] * self.num_records
        for line in picture(core, self.master.job.now()).ledger:
            assert (line.trained_once, line.repeated, line.lost) == (line.records, 0, 0)

    def has_ended(self) -> bool:
        """Whether the job is over, or has done what it must not; asked after each event."""
        return self.master is not None and self.master.is_alive and self.master.core.has_ended

    def counts(self) -> list[int]:
        """Return how often each record has been trained, as the tables say."""
        counts = np.zeros(self.num_records, np.int64)
        for node in map(self.by_address, self.master.core.ps_route().addresses):
            for keys, rows in node.reached().scan(0):
                counts[keys] += rows[:, 0].astype(np.int64)
        return counts.tolist()

    def of(self, records, replica: int):
        """Return the records whose rows a replica has."""
        return records[records % self.num_ps == replica]

    # --- what a sabotage takes away --------------------------------------------------------------

    def restore(self, folder: Path) -> Store:
        """Return what a replica begins with that takes the place of another."""
        return Store.restore(str(folder))

    def is_ahead(self, lease: Lease, route: PsRoute) -> bool:
        """Whether a lease speaks of replicas that its worker has not heard of."""
        return lease.generation > route.generation

    def named(self, task: int, lease: int, index: int) -> tuple[int, int, int]:
        """Return what tells a push from others."""
        return task, lease, index

    # --- the master ------------------------------------------------------------------------------

    def start_master(self) -> None:
        def again() -> None:
            self.scheduler.at(MASTER_START_SECONDS, self.start_master)

        try:
            master = Master(self)
        except (Died, StateError):
            again()
            return
        self.master = master
        master.when_dead.append(again)
        self.scheduler.spawn(master, master.main())

    def ask(self, event) -> Call:
        """Return a call to the master, whichever is there then."""
        return Call(lambda: self.master, lambda node: node.do(event))

    # --- the launcher ----------------------------------------------------------------------------

    def start(self, role: Role, index: int) -> ProcessHandle:
        ref = f"p{self.scheduler.count('process')}"
        node = (Worker if role is Role.WORKER else Replica)(self, index, ref)
        handle = ProcessHandle(role, index, ref)
        self.processes[ref], self.handles[ref] = node, handle
        self.watched.add(ref)
        node.code = None
        node.when_dead.append(lambda: self.ended(ref))
        self.scheduler.spawn(node, node.main())
        self.tell_master(lambda core, now: core.process_runs(Started(handle), now))
        return handle

    def watch(self, handle: ProcessHandle) -> bool:
        node = self.processes.get(handle.ref)
        if node is not None and node.is_alive:
            self.watched.add(handle.ref)
            return True
        return False

    def stop(self, handle: ProcessHandle) -> None:
        """End a process; one that is cut off is told when it is back, and works on until then."""
        node = self.processes.get(handle.ref)
        if node is not None:
            left = max(0.0, node.away_until - self.scheduler.now)
            self.scheduler.at(
                left + self.scheduler.random.uniform(0.1, 2.0), lambda: self.scheduler.kill(node)
            )

    def ends(self, node: Worker, code: int) -> None:
        """A process ends by itself."""
        node.code = code
        self.scheduler.kill(node)

    def ended(self, ref: str) -> None:
        code = self.processes[ref].code
        reason = ExitReason.KILLED if code is None else ExitReason.FINISHED
        exited = Exited(self.handles[ref], reason, -9 if code is None else code)

        def notice() -> None:
            if ref in self.watched:
                self.watched.discard(ref)
                self.tell_master(lambda core, now: core.process_exited(exited, now))

        self.scheduler.at(NOTICE_SECONDS, notice)

    def tell_master(self, event) -> None:
        """Tell the master that is there now; one that is not hears it when it adopts processes."""
        master = self.master
        if master is not None and master.is_alive:
            self.scheduler.at(0.0, lambda: self.scheduler.on(master, lambda: master.do(event)))

    def by_address(self, address: str) -> Replica | None:
        node = self.processes.get(address)
        return node if node is not None and node.is_alive and node.client is not None else None

    def seconds_cut_off(self) -> float:
        """Return for how long a ps replica does not answer from now on."""
        living = [node for node in self.processes.values() if node.is_alive]
        until = max((n.away_until for n in living if isinstance(n, Replica)), default=0.0)
        return max(0.0, until - self.scheduler.now)

    # --- the folder of checkpoints ---------------------------------------------------------------

    def folder_of(self, point, index: int) -> Path | None:
        if point is None or isinstance(point, HandedOver):
            return None
        folder = self.checkpoints.get(point.version)
        return None if folder is None else folder / str(index)

    def forget(self, kept) -> None:
        for version in [v for v in self.checkpoints if v < max(kept, default=0) and v not in kept]:
            shutil.rmtree(self.checkpoints.pop(version))

    # --- what goes wrong -------------------------------------------------------------------------

    def living(self, kind: str) -> list[Node]:
        if "master" in kind:
            return [self.master] if self.master is not None and self.master.is_alive else []
        role = Worker if "worker" in kind else Replica
        return [node for node in self.processes.values() if type(node) is role and node.is_alive]

    def strike(self, fault: Fault) -> None:
        living = self.living(fault.kind)
        if not living:
            return
        node = living[fault.which % len(living)]
        self.scheduler.tell(f"{fault.kind}: {node.name}")
        if fault.kind.startswith("kill"):
            self.scheduler.kill(node)
        elif fault.kind.startswith("cut off"):
            node.cut_off_until = self.scheduler.now + fault.seconds
        else:
            self.scheduler.pause(node, fault.seconds)


def drawn(seed: int, process_faults: Sequence[str] = PROCESS_FAULTS) -> list[Fault]:
    """Draw what goes wrong in a job."""
    return list(_drawn(random.Random(seed), process_faults))


def _drawn(rng: random.Random, process_faults: Sequence[str]) -> Iterator[Fault]:
    for _ in range(rng.randrange(1, 6)):
        kind = rng.choice(process_faults)
        # Some come back while others have their tasks, before or after they were given up.
        lasts = rng.choice([0.5, SILENCE_SECONDS - 0.1, SILENCE_SECONDS + rng.uniform(0.0, 3.0)])
        seconds = 0.0 if kind.startswith("kill") else lasts
        yield Fault(kind, rng.uniform(0.0, JOB_SECONDS), seconds, rng.randrange(4))
    for _ in range(rng.randrange(0, 3)):
        when = rng.choice(["kill the master before append", "kill the master after append"])
        yield Fault(when, rng.randrange(200))
    if rng.random() < 0.2:
        yield Fault("journal fails at append", rng.randrange(200))
    for _ in range(rng.randrange(0, 3)):
        yield Fault("write fails", rng.randrange(12))
    for _ in range(rng.randrange(0, 8)):
        kind = rng.choice(["drop message", "delay message", "deliver message twice"])
        seconds = 0.0 if kind.startswith("drop") else rng.choice([0.01, 0.5, 5.0])
        yield Fault(kind, rng.randrange(1500), seconds)


def folder_in_memory() -> tempfile.TemporaryDirectory:
    """Return a folder that is synced in no time, where the machine has one."""
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return tempfile.TemporaryDirectory(dir=in_memory)


class Many:
    """Jobs of one kind by their seeds, each in a folder of its own that goes with it."""

    def __init__(
        self,
        folder: Path,
        kind: type[PsJob] = PsJob,
        process_faults: Sequence[str] = PROCESS_FAULTS,
    ) -> None:
        self._folder, self._kind, self._faults = folder, kind, process_faults

    def run(self, seed: int, faults: list[Fault] | None = None) -> tuple[str | None, PsJob]:
        """Run a job; return what was wrong with it, None if nothing was, and the job."""
        folder = self._folder / "job"
        folder.mkdir()
        wanted = drawn(seed, self._faults) if faults is None else faults
        job = self._kind(seed, wanted, folder)
        try:
            job.run()
        except AssertionError as error:
            return str(error), job
        finally:
            shutil.rmtree(folder)
        return None, job

    def first_of(self, seeds: Iterable[int]) -> str | None:
        """Return the story of the first job that goes wrong; None if none does."""
        for seed in seeds:
            if self.run(seed)[0] is not None:
                return self.story(seed)
        return None

    def story(self, seed: int) -> str:
        """Return what goes wrong with as few of its faults as can be, as lines to be read."""
        faults, is_smaller = drawn(seed, self._faults), True
        while is_smaller:
            is_smaller = False
            for fault in faults:
                rest = [other for other in faults if other is not fault]
                if self.run(seed, rest)[0] is not None:
                    faults, is_smaller = rest, True
                    break
        wrong, job = self.run(seed, faults)
        return "\n".join([f"seed {seed}: {wrong}", *map(str, faults), *job.scheduler.story])

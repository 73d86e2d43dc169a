"""A whole job with ps replicas in one process: real decisions, real stores, simulated surroundings.

Real are the master's core with its journal and snapshots, its interpreter, the proof, the life of a
lease in a worker (`LeaseProtocol`), the Rust stores of the replicas with their watermarks, fences,
checkpoints and restores, and what writes and deletes the files of checkpoints and hand-overs.
Simulated are processes, time, the network, the launcher, the disk's memory, and what a worker's
threads do one after the other.

The model counts: a row of the table is of one record, and each training of that record adds one.
"""

import math
import random
import shutil
from collections import Counter
from collections.abc import Generator, Iterable
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar

import numpy as np

from elasticdl._core import DrivenReplica, PsClient, Store
from elasticdl.config import (
    CheckpointSection,
    ClusterSection,
    DataSection,
    JobConfig,
    ModelSection,
    TrainingSection,
)
from elasticdl.errors import CheckpointError, ElasticdlError, StateError
from elasticdl.job import Lease, PsRoute, Role, Shard, Strategy, Task, Wait
from elasticdl.launchers.base import Exited, ExitReason, ProcessHandle, Started
from elasticdl.master.status import picture
from elasticdl.runtime.process import STOPPED_EXIT_CODE
from tests.simulation.clockwork import Call, Died, Fault, Kept, Node, Scheduler
from tests.simulation.disk import Disk, full
from tests.simulation.exchanges import Asynchronous, Bounded, Computed, Rounds
from tests.simulation.master import Journal, Master
from tests.simulation.processes import Replica, Worker

NOTICE_SECONDS = 0.05  # until the launcher knows that a process has ended
MASTER_START_SECONDS = 1.0
LEASE_SECONDS = 5.0  # that a request is kept
POWER_SECONDS = 3.0  # until the job is started again
SILENCE_SECONDS = 5.0  # then a process is taken as lost
PATIENCE_SECONDS = 900.0  # of simulated time; then the job hangs
_REASONS = {
    None: ExitReason.KILLED,
    0: ExitReason.FINISHED,
    STOPPED_EXIT_CODE: ExitReason.PREEMPTED,
}


class Config(JobConfig):
    """Settings of many jobs; they are shown at each start of a master."""

    @cached_property
    def as_shown(self) -> dict:
        return super().shown()

    def shown(self) -> dict:
        return self.as_shown


_CONFIGS: dict[tuple, Config] = {}  # by what they depend on


class PsJob:
    """A job, what surrounds it, and what goes wrong."""

    minibatch_size, num_records, num_epochs = 4, 96, 2
    training_data = "records"
    synchrony: ClassVar[dict] = {"use_async": True}
    waits: ClassVar[dict] = {}  # what a replica waits for
    adds_up = True  # gradients of several minibatches, in some of the jobs

    def __init__(self, seed: int, faults: list[Fault], folder: Path) -> None:
        shape = random.Random(seed)
        self.num_ps, self.num_workers = shape.choice([1, 2, 2, 3]), shape.choice([1, 2, 2, 3])
        self.depth = shape.choice([0, 1, 1, 2])  # steps that are pulled before a push
        self.recovery_seconds = shape.choice([0.5, 1.0, 2.0, 3.0])
        self.redo_bytes = shape.choice([0, 0, 1_500, 1 << 20])  # of each replica's log; 0: none
        self.push_steps = shape.choice([1, 1, 2, 3]) if self.adds_up else 1
        joins = self.adds_up and self.push_steps == 1
        self.exchange_minibatches = shape.choice([1, 2, 3, 4]) if joins else 1
        self.most_owed = shape.choice([0, 1, 2, 16, 16])  # minibatches that a replica hears of late
        self.config, self.folder = self._config(folder), folder
        self.scheduler = Scheduler(seed, faults)
        self.journal = Journal(self.scheduler)
        self.disk = Disk(folder / "trash", self.before_file_operation)
        self.unsound: list[str] = []  # checkpoints that could not be restored
        self.processes: dict[str, Replica | Worker] = {}
        self.handles: dict[str, ProcessHandle] = {}
        self.watched: set[str] = set()
        self.master: Master | None = None
        self.num_power_failures = 0
        self.start_master()
        for fault in faults:
            if isinstance(fault.at, float):
                self.scheduler.at(fault.at, lambda fault=fault: self.strike(fault))

    def _config(self, folder: Path) -> JobConfig:
        drawn = self.training_data, self.num_workers, self.num_ps, self.recovery_seconds
        key = type(self), drawn, folder
        if key not in _CONFIGS:
            _CONFIGS[key] = self._new_config(folder)
        return _CONFIGS[key]

    def _new_config(self, folder: Path) -> JobConfig:
        return Config(
            command="train",
            model=ModelSection(model_def="zoo.counting.forward"),
            data=DataSection(training_data=self.training_data),
            training=TrainingSection(
                distribution_strategy=Strategy.PARAMETER_SERVER,
                minibatch_size=self.minibatch_size,
                num_minibatches_per_task=3,
                num_epochs=self.num_epochs,
                **self.synchrony,
            ),
            checkpoint=CheckpointSection(recovery_seconds=self.recovery_seconds),
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
        in_time = self.scheduler.run(PATIENCE_SECONDS)
        assert in_time, "the job does not end"
        core = self.master.core
        assert str(core.phase) == "finished", core.message
        assert not self.unsound, self.unsound[0]
        self.check_counts()
        for line in picture(core, self.master.job.now()).ledger:
            told = line.trained_once, line.repeated, line.lost
            assert told == (line.records, 0, 0), f"the ledger says {told} of {line.records} records"

    def check_counts(self) -> None:
        """Hold the tables to what was to be trained."""
        found = Counter(self.counts())
        expected = {self.num_epochs: self.num_records}
        assert found == expected, f"expected records by times trained {expected}, found {found}"

    def counts(self) -> list[int]:
        """Return how often each record has been trained, as the tables say."""
        counts = np.zeros(self.num_records, np.int64)
        for client in self.last_stores():
            for keys, rows in client.scan(0):
                counts[keys] += rows[:, 0].astype(np.int64)
        return counts.tolist()

    def last_stores(self) -> Iterable[PsClient]:
        """Return what the last replica at each place had; it may be lost after the proof."""
        replicas = [node for node in self.processes.values() if isinstance(node, Replica)]
        last = {of.index: of.driven for of in replicas if of.has_place and of.driven.store}
        number = self.master.core.parameters.replicas.number
        return [last[index].client() for index in range(number)]

    def shards(self) -> tuple[Shard, ...]:
        """Return what a new job trains on."""
        return (Shard("records", 0, self.num_records),)

    def records_of(self, task: Task) -> np.ndarray:
        """Return the records of a task, as its worker reads them."""
        return np.arange(task.shard.start, task.shard.end)

    def waits_to_read(self) -> float:
        """Return for how long a worker cannot read."""
        return 0.0

    def follow(self, master: Master) -> Generator:
        """What a master does beside its ticks."""
        yield from ()

    def exchange(self, worker: Worker) -> Asynchronous:
        """Return how a worker pulls and pushes."""
        return Asynchronous(worker)

    def driven(self, store: Store, layout: int, awaits_move: bool) -> DrivenReplica:
        """Return a replica, given what it begins with."""
        return DrivenReplica(store, layout=layout, awaits_move=awaits_move, **self.waits)

    def any_order(self, replicas: Iterable[int]) -> Iterable[int]:
        """Return replicas in an order of any kind."""
        order = list(replicas)
        if len(order) > 1:
            self.scheduler.random.shuffle(order)
        return order

    # --- what a sabotage takes away --------------------------------------------------------------

    serves_while_leaving = False
    """Whether a replica answers while it writes what it hands over."""

    checks_layouts = True
    """Whether a replica answers the master only for the layout that it serves."""

    def restore(self, folder: Path, replica: int, num_replicas: int) -> Store:
        """Return what a replica begins with that takes the place of another."""
        return Store.restore(str(folder), replica, num_replicas)

    def entrance(self, node: Replica, layout: int, updates) -> tuple[bool, str | None]:
        """Return whether a replica lets a request in, or where everything is now."""
        return node.driving().entrance(layout, updates)

    def refuses_before(self, store: Store, first_lease: int) -> None:
        """Have a replica that begins refuse the leases of before."""
        store.refuse_leases_before(first_lease)

    def is_ahead(self, lease: Lease, route: PsRoute) -> bool:
        """Whether a lease speaks of replicas that its worker has not heard of."""
        return lease.generation > route.generation

    def fence(self, lease: Lease) -> int:
        """Return the number under which a lease is begun at the replicas."""
        return lease.fence

    def named(self, task: int, lease: int, index: int) -> tuple[int, int, int]:
        """Return what tells a push from others."""
        return task, lease, index

    settles_before_report = True
    """Whether replicas hear of all minibatches before the master does."""

    def is_without(self, keys: list[np.ndarray]) -> bool:
        """Whether a replica has no key of minibatches, given those of each."""
        return not any(map(len, keys))

    def owed(self, computed: list[Computed]) -> list[Computed]:
        """Return what a replica is to hear of with a later frame."""
        return computed

    def frame(self, owed: list[Computed], computed: list[Computed]) -> list[Computed]:
        """Return what a replica is pushed, given what it was owed."""
        return owed + computed

    def pushed_each(self, client: PsClient, steps, task: int, lease: int, index: int):
        """Push gradients in one frame; return the version and staleness of the last one."""
        return client.push_each(steps, [1.0] * len(steps), task, lease, index)[-1]

    # --- the master ------------------------------------------------------------------------------

    def start_master_after(self, seconds: float) -> None:
        """Start the next master, unless all is dark then."""
        before = self.num_power_failures

        def start() -> None:
            if self.num_power_failures == before:
                self.start_master()

        self.scheduler.at(seconds, start)

    def start_master(self) -> None:
        def again() -> None:
            self.start_master_after(MASTER_START_SECONDS)

        try:
            master = Master(self)
        except (Died, StateError):
            again()
            return
        self.master = master
        master.when_dead.append(again)
        self.scheduler.spawn(master, master.main())
        self.scheduler.spawn(master, self.follow(master))

    def ask(self, event, within: float = math.inf) -> Call:
        """Return a call to the master, whichever is there then."""
        return Call(lambda: self.master, lambda node: node.do(event), within)

    def restore_point(self, index: int, num_unsound: int, problem: str) -> Call:
        """Return a call that asks for the folder that a replica is to begin with, or None."""

        def work(master):
            point = master.do(
                lambda core, now: core.parameters.restore_point(index, num_unsound, problem)
            )
            replicas = master.core.parameters.replicas_with(index)
            folder = None if point is None else master.interpreter.folder_of(point)
            return folder, replicas.place_of(index), replicas.first_lease(index)

        return Call(lambda: self.master, work)

    def lease(self, worker: Worker, request: int, is_patient: bool, reports: list) -> Call:
        """Return a call that ends leases and asks for a task, as the servicer does.

        A patient one is kept.
        """
        index, session = worker.index, worker.session

        def work(master):
            core, deadline = master.core, master.job.now() + LEASE_SECONDS

            def attempt(goes_on):
                return master.do(
                    lambda core, now: core.lease(index, session, request, now, goes_on)
                )

            def look():
                now = master.job.now()
                if not core.leasing.awaits(index, session, request):
                    return Wait(0.0)
                if now >= deadline:
                    return attempt(goes_on=True)
                if not core.leasing.has_word_for(index, session, now):
                    return None
                answer = attempt(goes_on=True)
                return None if isinstance(answer, Wait) else answer

            def begin(core, now):
                for report in reports:
                    core.report(index, session, report, now)
                return core.lease(index, session, request, now)

            answer = master.do(begin)
            return Kept(look) if is_patient and isinstance(answer, Wait) else answer

        return Call(lambda: self.master, work)

    def leave_ps(self, replica: Replica, within: float) -> Call:
        """Return a call that says so; answered with the folder to write to, or None."""
        index, session = replica.index, replica.session

        def work(master):
            leaving = master.do(lambda core, now: core.leave(Role.PS, index, session, now))
            folder = master.interpreter.hand_over_folder(Role.PS, index, session)
            return folder if leaving.hands_over else None

        return Call(lambda: self.master, work, within)

    # --- the launcher ----------------------------------------------------------------------------

    def start(self, role: Role, index: int) -> ProcessHandle:
        ref = f"p{self.scheduler.count('process')}"
        node = (Worker if role is Role.WORKER else Replica)(self, index, ref)
        handle = ProcessHandle(role, index, ref)
        self.processes[ref], self.handles[ref] = node, handle
        self.watched.add(ref)
        node.when_dead.append(lambda: self.ended(ref))
        if role is Role.WORKER:
            node.when_dead.append(lambda: self.connection_lost(node.exchange.connection))
        self.scheduler.spawn(node, node.main())
        self.tell_master(lambda core, now: core.processes.runs(Started(handle), now))
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

    def ends(self, node: Worker | Replica, code: int) -> None:
        """A process ends by itself."""
        if node.is_alive:
            node.code = code
            self.scheduler.kill(node)

    def ended(self, ref: str) -> None:
        code = self.processes[ref].code
        reason = _REASONS[code]
        exited = Exited(self.handles[ref], reason, -9 if code is None else code)

        def notice() -> None:
            if ref in self.watched:
                self.watched.discard(ref)
                self.tell_master(lambda core, now: core.process_exited(exited, now))

        self.scheduler.at(NOTICE_SECONDS, notice)

    def connection_lost(self, connection: int) -> None:
        """Replicas notice that a worker is gone."""

        def notice() -> None:
            for node in list(self.processes.values()):
                if isinstance(node, Replica):
                    self.scheduler.on(node, partial(node.lost, connection))

        self.scheduler.at(NOTICE_SECONDS, notice)

    def tell_master(self, event) -> None:
        """Tell the master that is there now; one that is not hears it when it adopts processes."""
        master = self.master
        if master is not None and master.is_alive:
            self.scheduler.at(0.0, lambda: self.scheduler.on(master, lambda: master.do(event)))

    def by_address(self, address: str) -> Replica | None:
        node = self.processes.get(address)
        return node if node is not None and node.is_alive and node.serves else None

    def others_of(self, replica: Replica) -> dict[str, DrivenReplica]:
        """Return the replicas that one reaches, by address."""
        nodes = self.living("ps")
        now = self.scheduler.now
        return {
            node.session: node.driven
            for node in nodes
            if node is not replica and node.serves and node.paused_until <= now
        }

    def applied_at(self, replica: Replica) -> None:
        """A replica has applied something, or was restored."""

    def seconds_cut_off(self) -> float:
        """Return for how long a ps replica does not answer from now on."""
        living = [node for node in self.processes.values() if node.is_alive]
        until = max((n.away_until for n in living if isinstance(n, Replica)), default=0.0)
        return max(0.0, until - self.scheduler.now)

    # --- files -----------------------------------------------------------------------------------

    def before_file_operation(self, words: str) -> None:
        number = self.scheduler.count("file operation")
        if fault := self.scheduler.fault("ask ps to end at file operation", number):
            asked = replace(fault, kind="ask ps to end")
            self.scheduler.at(0.0, lambda: self.strike(asked))
        if self.scheduler.fault("kill who writes at file operation", number):
            raise Died(words)
        if self.scheduler.fault("the disk is full at file operation", number):
            raise full(words)

    def write_part(self, replica: Replica, folder: Path) -> str:
        """Have a replica write its part of a checkpoint; return its manifest entry.

        Raises:
            CheckpointError: It cannot be written.
        """
        if self.scheduler.fault("write fails", self.scheduler.count("write")):
            raise CheckpointError("the disk is full")
        (entry,) = replica.reached().checkpoint(str(folder))
        return entry

    def redo_log_of(self, replica: int, layout: int) -> Path | None:
        """Return the folder of a replica's redo log, if the job keeps any."""
        return self.folder / f"redo-{layout}-{replica}" if self.redo_bytes else None

    def remove_redo_logs(self, but: int) -> None:
        """Remove those of layouts but one."""
        for folder in self.folder.glob("redo-*"):
            if not folder.name.startswith(f"redo-{but}-"):
                shutil.rmtree(folder)

    def lose_redo_logs(self) -> None:
        """The system starts anew: what it has kept of redo logs may be ahead of the journal."""
        for folder in self.folder.glob("redo-*"):
            (folder / "boot").write_text("before the power failed")

    def power_fails(self) -> None:
        """All processes are gone, and what was not synced; then somebody starts the job again."""
        self.num_power_failures += 1
        self.watched.clear()
        for node in [*self.processes.values(), self.master]:
            if node is not None:
                node.is_alive = False
        self.disk.lose_power(self.scheduler.random)
        self.lose_redo_logs()
        self.journal.lose_power()
        self.start_master_after(POWER_SECONDS)

    # --- what goes wrong -------------------------------------------------------------------------

    def source_is_away(self, seconds: float) -> None:
        """The source of a stream does not answer."""

    def scale(self, count: int) -> None:
        """Ask for so many ps replicas, as `elasticdl scale` does."""
        for master in self.living("master"):
            try:
                master.do(lambda core, now: core.set_num_ps(count, now))
            except ElasticdlError as error:
                self.scheduler.tell(f"not {count} ps replicas: {error}")
            except Died:
                self.scheduler.kill(master)
            else:
                self.scheduler.tell(f"there are to be {count} ps replicas")

    def before_move_step(self, number: int) -> None:
        """Something happens in mid-move, before a replica does a step of it."""
        if self.scheduler.fault("kill the master before move step", number):
            self.scheduler.kill(self.master)
        if self.scheduler.fault("kill ps before move step", number):
            raise Died
        if fault := self.scheduler.fault("kill a worker before move step", number):
            for node in self.living("worker")[: fault.which]:
                self.scheduler.kill(node)
        for kind in ("ask ps to end", "pause ps", "cut off ps", "power fails"):
            if fault := self.scheduler.fault(f"{kind} before move step", number):
                self.strike(replace(fault, kind=kind))

    def before_report(self) -> None:
        """Something happens when a worker is about to say what became of its task."""
        number = self.scheduler.count("report")
        if fault := self.scheduler.fault("scale ps with report", number):
            self.scale(1 + fault.which)

    def living(self, kind: str) -> list[Node]:
        if "master" in kind:
            return [self.master] if self.master is not None and self.master.is_alive else []
        role = Worker if "worker" in kind else Replica
        return [node for node in self.processes.values() if type(node) is role and node.is_alive]

    def strike(self, fault: Fault) -> None:
        if fault.kind == "power fails":
            self.scheduler.tell(fault.kind)
            self.power_fails()
            return
        if fault.kind == "scale ps":
            self.scale(1 + fault.which)
            return
        if fault.kind == "source is away":
            self.source_is_away(fault.seconds)
            return
        living = self.living(fault.kind)
        if not living:
            return
        node = living[fault.which % len(living)]
        self.scheduler.tell(f"{fault.kind}: {node.name}")
        if fault.kind.startswith("kill"):
            self.scheduler.kill(node)
        elif "clock" in fault.kind:
            node.seconds_ahead += fault.seconds
        elif fault.kind.startswith("ask"):
            self.scheduler.spawn(node, node.depart())
        elif fault.kind.startswith("cut off"):
            node.cut_off_until = self.scheduler.now + fault.seconds
        else:
            self.scheduler.pause(node, fault.seconds)


class BoundedJob(PsJob):
    """No gradient comes later than a bound."""

    adds_up = False
    max_staleness = 2
    waits: ClassVar[dict] = {"max_staleness": max_staleness}
    synchrony: ClassVar[dict] = {"use_async": True, **waits}
    staleness = 0

    def exchange(self, worker: Worker) -> Asynchronous:
        return Bounded(worker)

    def run(self) -> None:
        super().run()
        words = f"a gradient came {self.staleness} updates late, expected {self.max_staleness}"
        assert self.staleness <= self.max_staleness, words


class SynchronousJob(PsJob):
    """Gradients are averaged and applied together: a record counts 1, 1/2 or 1/3 in its round."""

    adds_up = False
    grads_to_wait = 2
    num_epochs = 1
    waits: ClassVar[dict] = {"grads_to_wait": grads_to_wait}
    synchrony: ClassVar[dict] = {"use_async": False, **waits}

    def __init__(self, seed: int, faults: list[Fault], folder: Path) -> None:
        super().__init__(seed, faults, folder)
        self.depth = 0

    def exchange(self, worker: Worker) -> Asynchronous:
        return Rounds(worker)

    def counts(self) -> list[float]:
        counts = np.zeros(self.num_records)
        for client in self.last_stores():
            for keys, rows in client.scan(0):
                counts[keys] += rows[:, 0]
        return counts.round(4).tolist()

    def check_counts(self) -> None:
        found = Counter(self.counts())
        assert set(found) <= {1.0, 0.5, 0.3333}, f"expected weights in one round, found {found}"

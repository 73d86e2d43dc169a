"""Simulates a job minibatch by minibatch: four threads a worker, ps replicas, master, storage."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from elasticdl.master.heartbeats import interval_seconds
from elasticdl.packages.simulate.cluster import Cluster
from elasticdl.packages.simulate.costs import Costs
from elasticdl.packages.simulate.machine import Actor, Agenda, Coroutine, Effect, Machine, Resume
from elasticdl.packages.simulate.network import Link, Neighbours, OwnMachines, Queue, Replicas
from elasticdl.settings.cluster import ClusterSection

_FED, _PREPARED, _COMPUTED = 4, 2, 2  # capacities of the channels in `worker/loop.py`
_BESIDE = 110 / 1024  # the weight in Linux of threads at priority +10, as three of a worker are
_HEARTBEAT_SECONDS = ClusterSection().heartbeat_seconds
_LEAST_LEFT = 0.01  # of the master's core, whatever heartbeats take
_JITTER = 0.05  # of a minibatch, so that workers do not march in step


@dataclass(frozen=True)
class Death:
    """Kills a worker when this many minibatches are trained; another one takes its place."""

    minibatches: int
    worker: int


@dataclass
class Trace:
    """The events of a run.

    trained: The time when each minibatch was trained, in order, in seconds.
    fed: The minibatches that were given out.
    computed: The minibatches that were computed.
    lost: The minibatches of dead workers, which other workers took.
    """

    trained: list[float] = field(default_factory=list)
    fed: int = 0
    computed: int = 0
    lost: int = 0

    def rate(self, warm_up: float = 0.4) -> float:
        """Return minibatches a second, without the first part of them."""
        first = int(len(self.trained) * warm_up)
        return (len(self.trained) - 1 - first) / (self.trained[-1] - self.trained[first])


class _Channel:
    """Passes items on, in order; a writer waits if it is full."""

    def __init__(self, agenda: Agenda, capacity: int) -> None:
        self._agenda, self._left = agenda, capacity
        self._takers: deque[Resume] = deque()
        self._givers: deque[Resume] = deque()
        self._held = 0

    def put(self, actor: Actor, resume: Resume) -> None:
        """Continue when the item is in."""
        if self._left:
            self._enter(resume)
        else:
            self._givers.append(resume)

    def take(self, actor: Actor, resume: Resume) -> None:
        """Continue when an item was taken."""
        if not self._held:
            self._takers.append(resume)
            return
        self._held -= 1
        self._left += 1
        self._agenda.at(self._agenda.now, resume)
        if self._givers:
            self._enter(self._givers.popleft())

    def _enter(self, resume: Resume) -> None:
        self._left -= 1
        self._held += 1
        self._agenda.at(self._agenda.now, resume)
        if self._takers:
            self.take(_NOBODY, self._takers.popleft())


_NOBODY = Actor("nobody")


class _InFlight:
    """The minibatches of a worker between their pull and their push: see `worker/protocol.py`."""

    def __init__(self, agenda: Agenda, most: int, together: int) -> None:
        self._agenda, self._together, self._most = agenda, together, most + together - 1
        self._num = 0
        self._waiting: Resume | None = None

    def enter(self, actor: Actor, resume: Resume) -> None:
        """Continue when the minibatches of the next pull have room."""
        self._waiting = resume
        self._let_in()

    def is_to_push(self, kept: int) -> bool:
        """Whether commit pushes what it keeps: the next pull has room then, or no more comes."""
        lets_pull = self._waiting is not None and self._has_room(kept)
        return lets_pull or kept in (self._together, self._num)

    def leave(self, num: int) -> None:
        """Free the room of minibatches that were pushed."""
        self._num -= num
        self._let_in()

    def _has_room(self, kept: int) -> bool:
        return self._num - kept + self._together <= self._most

    def _let_in(self) -> None:
        if self._waiting is not None and self._has_room(0):
            self._agenda.at(self._agenda.now, self._waiting)
            self._num, self._waiting = self._num + self._together, None


class _Worker:
    """One worker process: four coroutines, like the threads of `worker/loop.py`."""

    def __init__(self, job: _Job, number: int, slowness: float) -> None:
        self.life = Actor(("worker", number))
        self._job, self._number = job, number
        agenda, cluster, costs = job.agenda, job.cluster, job.costs
        is_shared = job.machine is not None
        speed = cluster.processor_speed / slowness
        self.machine = job.machine or Machine(agenda, cluster.worker_cores, speed)
        self._slowness = slowness if is_shared else 1.0
        # Four threads on four cores never wait for one.
        self._is_roomy = not is_shared and cluster.worker_cores >= 4
        self._speed = speed
        self._link = Link(cluster.worker_network)
        self._fed = _Channel(agenda, _FED)
        self._prepared, self._computed = _Channel(agenda, _PREPARED), _Channel(agenda, _COMPUTED)
        self._in_flight = _InFlight(agenda, cluster.in_flight, costs.exchange_minibatches)
        self.taken = 0
        # The work of a thread that comes once for each exchange.
        self._send = costs.worker_frame * cluster.ps
        self._random = random.Random(job.seed * 1_000_003 + number)
        # In an endless job workers are at random places in their tasks; else all would ask the
        # master at once.
        begun = self._random.random() if job.is_endless else 0.0
        self._left_of_first = begun * costs.minibatches_per_task

    def start(self, is_first: bool) -> None:
        """Start the process: at once, or after the cost of a start."""
        if is_first:
            self._begin()
        else:
            self._job.agenda.start(self.life, self._come_up())

    def _come_up(self) -> Coroutine:
        yield self._work(self._job.costs.start, 1.0)
        self._begin()

    def _begin(self) -> None:
        for thread in (self._feeds(), self._prepares(), self._computes(), self._commits()):
            self._job.agenda.start(self.life, thread)

    def _work(self, seconds: float, weight: float = _BESIDE) -> Effect:
        if self._is_roomy:
            return self._job.agenda.sleep_until(self._job.agenda.now + seconds / self._speed)
        return self.machine.work(seconds * self._slowness, weight)

    def _feeds(self) -> Coroutine:
        job, costs = self._job, self._job.costs
        read = costs.minibatch_size * costs.record_bytes
        left = self._left_of_first
        while job.take():
            self.taken += 1
            if left <= 0:
                yield from job.ask_master()
                left += costs.minibatches_per_task
            left -= 1
            if read:
                stored = job.storage.serve(job.agenda.now, read / job.cluster.input_bandwidth)
                came = self._link.back.serve(job.agenda.now, read / self._link.bandwidth)
                yield job.agenda.sleep_until(max(stored, came))
            yield self._work(costs.feed)
            yield self._fed.put

    def _prepares(self) -> Coroutine:
        costs, num_ps = self._job.costs, self._job.cluster.ps
        together = costs.exchange_minibatches
        keys = together * costs.keys_together
        seconds, returned = costs.of_replica(num_ps, keys), costs.bytes_pulled * keys
        while True:
            for _ in range(together):
                yield self._fed.take
                yield self._work(max(0.0, costs.prepare - costs.worker_frame))
            # The room in flight is taken before the pull, as in the real worker.
            yield self._in_flight.enter
            yield self._work(self._send)
            yield self._job.replicas.exchange(self._link, seconds, 0.0, returned)
            for _ in range(together):
                yield self._prepared.put

    def _computes(self) -> Coroutine:
        job, costs = self._job, self._job.costs
        while True:
            yield self._prepared.take
            yield self._work(costs.compute * (1 + _JITTER * (2 * self._random.random() - 1)), 1.0)
            job.trace.computed += 1
            yield self._computed.put

    def _commits(self) -> Coroutine:
        job, costs = self._job, self._job.costs
        kept = 0
        while True:
            yield self._computed.take
            yield self._work(max(0.0, costs.commit - costs.worker_frame))
            kept += 1
            if not self._in_flight.is_to_push(kept):
                continue
            yield self._work(self._send)
            seconds = costs.of_replica(job.cluster.ps, kept)
            yield job.replicas.exchange(self._link, seconds, costs.bytes_pushed * kept, 0.0)
            self.taken -= kept
            for _ in range(kept):
                job.trained()
            self._in_flight.leave(kept)
            kept = 0


class _Job:
    def __init__(
        self,
        costs: Costs,
        cluster: Cluster,
        minibatches: int,
        deaths: Sequence[Death],
        seed: int,
        is_endless: bool,
    ) -> None:
        self.costs, self.cluster, self.seed, self.is_endless = costs, cluster, seed, is_endless
        self.agenda, self.trace = Agenda(), Trace()
        self._goal = minibatches
        self.todo = sys.maxsize if is_endless else minibatches
        self._deaths = deque(sorted(deaths, key=lambda death: death.minibatches))
        self.storage, self._master = Queue(), Queue()
        cores = cluster.shared_cores
        self.machine = (
            None if cores is None else Machine(self.agenda, cores, cluster.processor_speed)
        )
        self.replicas: Replicas = (
            OwnMachines(self.agenda, costs, cluster)
            if self.machine is None
            else Neighbours(self.agenda, self.machine, costs, cluster)
        )
        slow = round(cluster.workers * cluster.straggler_share)
        self._slowness = [cluster.straggler_factor] * slow + [1.0] * (cluster.workers - slow)
        self._workers = [_Worker(self, n, slow) for n, slow in enumerate(self._slowness)]
        self._begun = len(self._workers)
        num = cluster.workers + cluster.ps
        beats = costs.heartbeat * num / interval_seconds(num, _HEARTBEAT_SECONDS)
        self._master_left = max(cluster.master_speed - beats, _LEAST_LEFT)

    def run(self) -> Trace:
        for worker in self._workers:
            worker.start(is_first=True)
        self.agenda.run(lambda: len(self.trace.trained) >= self._goal)
        return self.trace

    def take(self) -> bool:
        """Give a minibatch out; False if there is none."""
        if not self.todo:
            return False
        self.todo -= 1
        self.trace.fed += 1
        return True

    def trained(self) -> None:
        self.trace.trained.append(self.agenda.now)
        while self._deaths and self._deaths[0].minibatches <= len(self.trace.trained):
            self._kill(self._deaths.popleft().worker)

    def ask_master(self) -> Coroutine:
        """Ask for a task, and report the one before in the same call."""
        seconds = self.costs.master / self._master_left
        if self.machine is not None:
            done = self.machine.work(seconds)
            yield lambda actor, resume: done(_MASTER, resume)
            return
        came = self.agenda.now + self.cluster.latency
        yield self.agenda.sleep_until(self._master.serve(came, seconds) + self.cluster.latency)

    def _kill(self, place: int) -> None:
        old = self._workers[place]
        old.life.over = True
        old.machine.end(old.life)
        # Other workers train the minibatches that the worker had taken and not pushed.
        self.todo += old.taken
        self.trace.lost += old.taken
        self._workers[place] = _Worker(self, self._begun, self._slowness[place])
        self._begun += 1
        self._workers[place].start(is_first=False)


_MASTER = Actor("master")


def run(
    costs: Costs,
    cluster: Cluster,
    minibatches: int,
    deaths: Sequence[Death] = (),
    seed: int = 0,
    is_endless: bool = False,
) -> Trace:
    """Run a job of some minibatches.

    Args:
        costs: The costs of a minibatch.
        cluster: The cluster.
        minibatches: The minibatches to train, of all workers together.
        deaths: The deaths of workers.
        seed: The seed for small differences between minibatches.
        is_endless: Whether the job began long ago, so that workers are in the middle of their
            tasks.
    """
    return _Job(costs, cluster, minibatches, deaths, seed, is_endless).run()


_LEAST, _MOST = 800, 30_000
_TASKS_A_WORKER = 2.5


def records_per_second(costs: Costs, cluster: Cluster, seed: int = 0) -> float:
    """Return the steady speed of a job: records/s of all workers together."""
    # Enough for each worker to end some tasks; more would only take longer.
    most = _MOST * max(1, costs.exchange_minibatches // 4)
    minibatches = min(
        max(_LEAST, round(_TASKS_A_WORKER * costs.minibatches_per_task * cluster.workers)), most
    )
    trace = run(costs, cluster, minibatches, seed=seed, is_endless=True)
    return trace.rate() * costs.minibatch_size

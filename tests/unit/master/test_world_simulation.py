"""The decisions of all-reduce together, over thousands of losses: no process, no socket, no clock.

Real are the rendezvous, the marks and the order of events in a round. Simulated are workers, whose
parameters are the history of what they have applied, the ledger, and which ranks finish a reduction
before one of them is lost.
"""

import copy
import random
from collections import Counter, deque

import pytest

from elasticdl.collective.rounds import Marks, Minibatch, Offer, Verdict
from elasticdl.job import Attendance
from elasticdl.master.journal import Journal
from elasticdl.master.parameters.rendezvous import Rendezvous

NUM_TASKS, MINIBATCHES = 40, 4


class Parameters:
    """What a worker has applied, update by update."""

    def __init__(self):
        self.history = []  # of each update: its minibatches
        self.marks = Marks()

    @property
    def version(self):
        return len(self.history)

    def apply(self, minibatches):
        for minibatch in minibatches:
            self.marks.count(minibatch)
        self.history.append(tuple((m.task_id, m.index) for m in minibatches))


class Worker:
    def __init__(self, worker_id):
        self.worker_id, self.session = worker_id, f"s{worker_id}"
        self.parameters = None
        self.synced = self.told = 0
        self.task = None  # (task, lease)
        self.index = 0
        self.is_done = False  # the last minibatch of its task counted; not settled yet

    def said(self, missed=()):
        version = -1 if self.parameters is None else self.parameters.version
        return Attendance(
            self.session, self.session, version, self.synced, self.told, tuple(missed)
        )


class Job:
    """The master's side and all workers; `step` has one thing happen."""

    def __init__(self, seed, loss):
        self.random = random.Random(seed)
        self.loss = loss
        self.rendezvous = Rendezvous(Journal())
        self.todo = deque(range(NUM_TASKS))
        self.leases = Counter()
        self.done = set()
        self.workers = {}
        self.checkpoint = Parameters()
        self.now = 0.0
        self.num_losses = self.num_rollbacks = self.num_torn = 0
        for _ in range(3):
            self.start()

    def start(self):
        worker = Worker(len(self.leases) + 1000 + self.num_losses + len(self.workers))
        while worker.session in self.workers:
            worker = Worker(worker.worker_id + 1)
        self.workers[worker.session] = worker

    @property
    def here(self):
        return {session: worker.worker_id for session, worker in self.workers.items()}

    def lose(self, worker):
        del self.workers[worker.session]
        self.rendezvous.lost(worker.session)
        if worker.task is not None:
            self.todo.appendleft(worker.task[0])
        self.num_losses += 1
        self.start()

    def meet(self):
        """All workers come to the rendezvous, until a world closes."""
        order = list(self.workers.values())
        self.random.shuffle(order)
        before = self.rendezvous.world.id
        for worker in order:
            seat = self.rendezvous.seat_of(worker.session, worker.told, generation=0)
            if seat is not None:  # it hears of a world that cannot be formed any more
                worker.told = seat.world_id
            self.rendezvous.attend(worker.worker_id, worker.session, worker.said(), self.now)
            self.rendezvous.advance(self.here, 0, self.now)
            if self.rendezvous.world.id != before:
                return
        restorer = self.workers.get(self.rendezvous.restorer)
        if restorer is not None:
            self.restore(restorer)
            self.rendezvous.restored(restorer.session)
            self.rendezvous.attend(restorer.worker_id, restorer.session, restorer.said(), self.now)
            self.rendezvous.advance(self.here, 0, self.now)

    def restore(self, worker):
        """Parameters and ledger go back together."""
        self.num_rollbacks += 1
        worker.parameters = copy.deepcopy(self.checkpoint)
        lacking = [
            task
            for task in sorted(self.done)
            if worker.parameters.marks.next_index(task) < MINIBATCHES
        ]
        self.done -= set(lacking)
        self.todo.extendleft(lacking)

    def members(self):
        members = self.rendezvous.world.members
        return [self.workers.get(member.session) for member in members]

    def run_world(self):
        """Sync and go round after round, until somebody is lost or has come."""
        world, members = self.rendezvous.world, self.members()
        if None in members or any(worker.told >= world.id for worker in members):
            return  # one was lost, or has left it: nobody comes back to a world
        first = members[0]
        for worker, member in zip(members, world.members, strict=True):
            worker.told = world.id
            if self.random.random() < self.loss:  # while parameters are given
                self.lose(self.random.choice(members))
                return
            if member.is_behind:
                worker.parameters = copy.deepcopy(first.parameters)
        for worker in members:
            worker.synced = world.id
        while self.round(members):
            assert len({tuple(worker.parameters.history) for worker in members}) == 1
            if len(self.done) == NUM_TASKS:
                return

    def round(self, members):
        for worker in members:
            self.lease(worker)
        if self.random.random() < self.loss:
            self.lose(self.random.choice(members))
            return False
        offers = [self.offer(worker) for worker in members]
        for worker in members:  # all have come: what was counted before is settled
            if worker.is_done:
                self.done.add(worker.task[0])
                worker.task, worker.is_done = None, False
        sessions = {member.session for member in self.rendezvous.world.members}
        if not self.workers.keys() <= sessions:
            return False  # somebody has come
        verdicts = members[0].parameters.marks.judge(offers)
        counted = [
            offer.minibatch
            for offer, verdict in zip(offers, verdicts, strict=True)
            if verdict is Verdict.COUNTED
        ]
        is_torn = bool(counted) and self.random.random() < self.loss
        for worker, verdict in zip(members, verdicts, strict=True):
            if is_torn and self.random.random() < 0.5:
                continue  # the others have finished this reduction, it has not
            if counted:
                worker.parameters.apply(counted)
            self.hear(worker, verdict)
        if is_torn:
            self.num_torn += 1
            self.lose(self.random.choice(members))
            return False
        if self.random.random() < 0.1:
            self.checkpoint = copy.deepcopy(members[0].parameters)
        return True

    def lease(self, worker):
        if worker.task is None and self.todo:
            task = self.todo.popleft()
            self.leases[task] += 1
            worker.task = (task, self.leases[task])
            worker.index = worker.parameters.marks.next_index(task)
            worker.is_done = worker.index == MINIBATCHES

    def offer(self, worker):
        version = worker.parameters.version
        if worker.task is None or worker.is_done:
            return Offer(version)
        return Offer(version, Minibatch(*worker.task, worker.index, 16))

    def hear(self, worker, verdict):
        if verdict in (Verdict.COUNTED, Verdict.DONE):
            worker.index += 1
            worker.is_done = worker.index == MINIBATCHES
        elif verdict is Verdict.GAP:
            self.todo.appendleft(worker.task[0])
            worker.task = None
        elif verdict is Verdict.STALE:
            worker.task = None


@pytest.mark.parametrize("loss", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("seed", range(12))
def test_each_minibatch_counts_once_whoever_is_lost_and_when(seed, loss):
    job = Job(seed, loss)
    for _ in range(5_000):
        if len(job.done) == NUM_TASKS:
            break
        job.now += 1.0
        job.meet()
        job.run_world()
    else:
        pytest.fail("the job did not come to an end")
    members = [worker for worker in job.members() if worker is not None]
    assert members
    for worker in members:
        counted = Counter(part for update in worker.parameters.history for part in update)
        assert counted == Counter(
            (task, index) for task in range(NUM_TASKS) for index in range(MINIBATCHES)
        )


def test_the_simulation_meets_what_it_is_about():
    jobs = [Job(seed, 0.3) for seed in range(20)]
    for job in jobs:
        while len(job.done) < NUM_TASKS:
            job.now += 1.0
            job.meet()
            job.run_world()
    assert sum(job.num_losses for job in jobs) > 500
    assert sum(job.num_torn for job in jobs) > 100
    assert sum(job.num_rollbacks for job in jobs) > len(jobs)  # beside the first start of each

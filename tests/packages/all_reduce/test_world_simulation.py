"""The decisions of all-reduce together, over thousands of losses: no process, no socket, no clock.

Real are the rendezvous, what a round decides, what is pending for an update, and which tasks make
which update. Simulated are workers, whose parameters are the history of what they have applied,
the ledger, and which ranks finish a reduction before one of them is lost.

An update is made of a round, of a global batch, or (deterministic jobs) of given tasks. Joiners are
given the parameters at once, or while some rounds go on.
"""

import copy
import random
from collections import Counter, deque
from functools import partial

import pytest

from elasticdl.data.updates import UpdateOrder
from elasticdl.errors import ElasticdlError
from elasticdl.job import Attendance
from elasticdl.master.journal import Journal
from elasticdl.packages.all_reduce.collective.pending import PendingSums
from elasticdl.packages.all_reduce.collective.rounds import Marks, OfferedMinibatch, OfferOutcome
from elasticdl.packages.all_reduce.collective.transfer import (
    AT_ONCE_BYTES,
    TransferWay,
    way_of_giving,
)
from elasticdl.packages.all_reduce.rendezvous import Rendezvous
from elasticdl.packages.all_reduce.round_protocol import NextStep, Proposal, RoundProtocol

NUM_TASKS, MINIBATCHES, RECORDS = 40, 4, 16
BATCH = 5 * RECORDS  # no number of whole tasks
UPDATES = UpdateOrder(per_epoch=NUM_TASKS // 2, tasks_per_update=3, seed=7, shuffle=True)
WAYS = ["a round", "a global batch", "given tasks"]


class Parameters:
    """What a worker has applied, update by update, and what is pending."""

    def __init__(self, way):
        self.way = way
        self.history = []  # of each update: its minibatches
        self.marks = Marks()
        self.pending = PendingSums()
        self.position = self.next_update = 0

    def __deepcopy__(self, memo):
        """Copy what differs; all else is never changed."""
        other = Parameters(self.way)
        other.history = list(self.history)
        other.marks = copy.deepcopy(self.marks, memo)
        other.pending = PendingSums(list(self.pending.minibatches))
        other.position, other.next_update = self.position, self.next_update
        return other

    def is_due(self, task):
        return self.way != "given tasks" or UPDATES.update_of(task) <= self.next_update

    def count(self, minibatches):
        for minibatch in minibatches:
            self.marks.count(minibatch)
        self.position += 1
        self.pending.minibatches += minibatches
        match self.way:
            case "a round":
                self.flush()
            case "a global batch" if self.pending.num_records >= BATCH:
                self.flush()
            case "given tasks" if self.pending.has_tasks(UPDATES.tasks_of(self.next_update)):
                self.next_update += 1
                self.flush()

    def flush(self):
        self.history.append(tuple((m.task_id, m.index) for m in self.pending.minibatches))
        self.pending = PendingSums()

    def saved(self):
        """Return what a checkpoint has of it: whole updates alone."""
        saved = Parameters(self.way)
        saved.history, saved.position = list(self.history), len(self.history)
        ends = Counter(task for update in self.history for task, _ in update)
        saved.marks = Marks.of([task, 0, end] for task, end in ends.items())
        made = (UPDATES.update_of(task) for task in ends)
        saved.next_update = 1 + max(made, default=-1)
        return saved


class Worker:
    """One worker; to its protocol it says how far its parameters have come, as a `Replica` does."""

    lineage = 0

    def __init__(self, worker_id, way):
        self.worker_id, self.session = worker_id, f"s{worker_id}"
        self.parameters = None
        self.protocol = RoundProtocol(self)
        self.updates = UPDATES if way == "given tasks" else None
        self.global_batch_size = BATCH if way == "a global batch" else None
        self.told = 0
        self.task = None  # (task, lease)
        self.index = 0
        self.counted = []  # tasks of which it has had all counted; not settled yet
        self.staging = 0  # rounds until it has the parameters, which it is being given
        self.has_trained = False

    @property
    def position(self):
        return self.parameters.position

    version = position

    @property
    def marks(self):
        return self.parameters.marks

    @property
    def pending(self):
        return self.parameters.pending

    @property
    def is_staging(self):
        return self.staging > 0

    def is_due(self, task):
        return self.parameters.is_due(task)

    def has(self, task, end):
        is_pending = any(minibatch.task_id == task for minibatch in self.pending.minibatches)
        return not is_pending and self.marks.next_index(task) >= end

    def said(self, missed=()):
        has_none = self.parameters is None or self.staging
        version = -1 if has_none else self.parameters.position
        synced = self.protocol.synced_world
        return Attendance(self.session, self.session, version, synced, self.told, tuple(missed))


class Job:
    """The master's side and all workers; `step` has one thing happen."""

    def __init__(self, seed, loss, way, num_numbers=1):
        self.way, self.num_numbers = way, num_numbers
        self.num_admitted = self.num_dropped = (
            0  # of those that were given parameters beside rounds
        )
        self.random = random.Random(seed)
        self.loss = loss
        self.rendezvous = Rendezvous(Journal())
        self.todo = deque(range(NUM_TASKS))
        self.put_back()
        self.leases = Counter()
        self.done = set()
        self.workers = {}
        self.checkpoint = Parameters(way)
        self.now = 0.0
        self.num_losses = self.num_rollbacks = self.num_torn = self.num_standstills = 0
        for _ in range(3):
            self.start()

    def start(self):
        worker = Worker(len(self.leases) + 1000 + self.num_losses + len(self.workers), self.way)
        while worker.session in self.workers:
            worker = Worker(worker.worker_id + 1, self.way)
        self.workers[worker.session] = worker

    @property
    def here(self):
        return {session: worker.worker_id for session, worker in self.workers.items()}

    def lose(self, worker):
        del self.workers[worker.session]
        self.rendezvous.lost(worker.session)
        self.put_back(*worker.counted, *([worker.task[0]] if worker.task is not None else []))
        self.num_losses += 1
        self.start()

    def put_back(self, *tasks):
        """Have tasks leased again: first, or in the order of the updates."""
        self.todo.extendleft(tasks)
        if self.way == "given tasks":
            self.todo = deque(sorted(self.todo, key=UPDATES.place_of))

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
        self.put_back(*lacking)

    def members(self):
        members = self.rendezvous.world.members
        return [self.workers.get(member.session) for member in members]

    def run_world(self):
        """Sync and go round after round, until somebody is lost or has come."""
        world, members = self.rendezvous.world, self.members()
        if None in members or any(worker.told >= world.id for worker in members):
            return  # one was lost, or has left it: nobody comes back to a world
        first = members[0]
        given = way_of_giving(
            [member.is_behind for member in world.members],
            [worker.said().version for worker in members],
            self.num_numbers,
            has_trained=first.has_trained,
            is_deterministic=self.way == "given tasks",
        )
        for worker, member in zip(members, world.members, strict=True):
            worker.told = world.id
            if self.random.random() < self.loss:  # while parameters are given
                self.lose(self.random.choice(members))
                break
            if member.is_behind:
                worker.parameters = copy.deepcopy(first.parameters)
                worker.staging = self.random.randint(1, 12) if given is TransferWay.BESIDE else 0
        else:
            self.run_rounds(world, members)
        for worker in members:
            if worker.staging:
                worker.parameters, worker.staging = None, 0
                self.num_dropped += 1

    def run_rounds(self, world, members):
        for worker in members:
            worker.protocol.begin_world()
            if not worker.staging:
                worker.protocol.got_parameters(world.id, 1)
        while self.round(world, members):
            assert len({tuple(worker.parameters.history) for worker in members}) == 1
            for worker in members:
                if worker.staging == 1:
                    worker.protocol.got_parameters(world.id, 1)
                    self.num_admitted += 1
                    self.begin(worker)
                worker.staging = max(0, worker.staging - 1)
            if len(self.done) == NUM_TASKS:
                return

    def round(self, world, members):
        for worker in members:
            worker.has_trained = True
            self.lease(worker)
        if self.random.random() < self.loss:
            self.lose(self.random.choice(members))
            return False
        sessions = {member.session for member in world.members}
        if not self.workers.keys() <= sessions:  # somebody has come
            members[0].protocol.world_ends(world.id)
        handed = [self.hand_in(worker) for worker in members]
        offers = [
            worker.protocol.offer(worker.protocol.offered(), world.id, (0, False))
            for worker in members
        ]
        decided = [worker.protocol.begin_round(offers, world.id) for worker in members]
        assert all(made == decided[0] for made in decided)
        for worker in members:
            worker.protocol.take_back()
            self.settle(worker)
        if (made := decided[0]) is None:
            return False
        counted = [offer.minibatch for offer in made.counted]
        is_torn = bool(counted) and self.random.random() < self.loss
        for rank, worker in enumerate(members):
            if is_torn and self.random.random() < 0.5:
                continue  # the others have finished this reduction, it has not
            if counted:
                worker.parameters.count(counted)
            worker.protocol.end_round(made, handed[rank], rank)
            self.hear(worker, handed[rank])
            self.settle(worker)  # whoever tells the ledger does so at any moment
        if made.next_step is not NextStep.NOTHING:
            self.stand_still(members, made.next_step)
        if is_torn:
            self.num_torn += 1
            self.lose(self.random.choice(members))
            return False
        if self.random.random() < 0.1:
            self.checkpoint = members[0].parameters.saved()
        return True

    def settle(self, worker):
        """Tell the ledger of tasks that are settled."""
        while worker.protocol.is_call_due(is_out=False):
            tell, has_it = worker.protocol.next_call()
            tell(has_it)
            worker.protocol.end_call()

    def stand_still(self, members, rest):
        """Nobody has had anything for long: tasks are given back, or what is pending is applied."""
        self.num_standstills += 1
        for worker in members:
            if rest is NextStep.STANDSTILL and worker.task is not None:
                self.put_back(worker.task[0])
                worker.task = None
            elif rest is NextStep.FLUSH:
                worker.parameters.position += 1
                worker.parameters.flush()

    def lease(self, worker):
        if worker.task is None and self.todo:
            task = self.todo.popleft()
            self.leases[task] += 1
            worker.task = (task, self.leases[task])
            if not worker.staging:
                self.begin(worker)
        worker.protocol.out_of_work(worker.task is None)

    def begin(self, worker):
        """Go on where the parameters stand; a worker that has none yet does so when it has."""
        if worker.task is not None:
            worker.index = worker.parameters.marks.next_index(worker.task[0])
            self.end(worker)

    def end(self, worker):
        if worker.index == MINIBATCHES:
            task, _ = worker.task
            worker.counted.append(task)
            worker.protocol.when_settled(task, MINIBATCHES, partial(self.told, worker, task))
            worker.task = None

    def told(self, worker, task, has_it):
        """A worker says that all of a task is in the parameters of all, or that it is not."""
        if task in worker.counted:
            worker.counted.remove(task)
            self.done.add(task) if has_it else self.put_back(task)

    def hand_in(self, worker):
        """Have a worker's next minibatch in hand, if it has one."""
        if worker.staging or worker.task is None:
            return None
        ends_task = worker.index == MINIBATCHES - 1
        minibatch = OfferedMinibatch(*worker.task, worker.index, RECORDS, ends_task=ends_task)
        proposal = Proposal(minibatch, 0.1, None, worker.lineage, worker.version)
        worker.protocol.hand_in(proposal)
        return proposal

    def hear(self, worker, proposal):
        if proposal is None or worker.task is None:
            return
        if proposal.verdict in (OfferOutcome.COUNTED, OfferOutcome.DONE):
            worker.index += 1
            self.end(worker)
        elif proposal.verdict is OfferOutcome.GAP:
            self.put_back(worker.task[0])
            worker.task = None
        elif proposal.verdict is OfferOutcome.STALE:
            worker.task = None


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("loss", "seeds"),
    [
        (0.02, range(12)),
        (0.1, range(12)),
        (0.3, range(3)),
        pytest.param(0.3, range(3, 12), marks=pytest.mark.long),
    ],
    ids=str,
)
def test_each_minibatch_counts_once_whoever_is_lost_and_when(seeds, loss, way):
    for seed in seeds:
        check(Job(seed, loss, way), way)


@pytest.mark.parametrize("way", WAYS[:2])
@pytest.mark.parametrize("loss", [0.02, 0.1])
def test_it_does_while_joiners_are_given_a_large_model_beside_rounds(loss, way):
    for seed in range(6):
        check(Job(seed, loss, way, num_numbers=AT_ONCE_BYTES), way)


def check(job, way, most_rounds=5_000):
    for _ in range(most_rounds):
        if len(job.done) == NUM_TASKS:
            break
        job.now += 1.0
        job.meet()
        job.run_world()
    else:
        pytest.fail("the job did not come to an end")
    members = [worker for worker in job.members() if worker is not None and worker.parameters]
    assert members
    for worker in members:
        counted = Counter(part for update in worker.parameters.history for part in update)
        assert counted == Counter(
            (task, index) for task in range(NUM_TASKS) for index in range(MINIBATCHES)
        )
        check_updates(worker.parameters, way)


def check_updates(parameters, way):
    """Each update has the minibatches, or as many, as it would have without any loss."""
    found = parameters.history
    if way == "given tasks":
        assert [sorted(update) for update in found] == [
            sorted((task, index) for task in UPDATES.tasks_of(u) for index in range(MINIBATCHES))
            for u in range(len(found))
        ]
    elif way == "a global batch":
        assert all(len(update) == BATCH // RECORDS for update in found)


def run_to_end(job):
    while len(job.done) < NUM_TASKS:
        job.now += 1.0
        job.meet()
        job.run_world()
    return job


@pytest.mark.parametrize("way", WAYS)
def test_the_simulation_meets_what_it_is_about(way):
    jobs = [run_to_end(Job(seed, 0.3, way)) for seed in range(2)]
    assert sum(job.num_losses for job in jobs) > 50
    assert sum(job.num_torn for job in jobs) > 10
    assert sum(job.num_rollbacks for job in jobs) > 2  # beside the first start of each


@pytest.mark.parametrize("way", WAYS[:2])
def test_the_simulation_has_joiners_that_get_a_large_model_and_some_that_do_not(way):
    jobs = [run_to_end(Job(seed, 0.1, way, num_numbers=AT_ONCE_BYTES)) for seed in range(2)]
    assert sum(job.num_admitted for job in jobs) > 2
    assert sum(job.num_dropped for job in jobs) > 2


def counts_again(marks, minibatch, newest, counted):
    """As `Marks._judge`, without a look at what was counted before."""
    if minibatch is None:
        return OfferOutcome.NONE
    is_stale = minibatch.lease < newest[minibatch.task_id]
    return OfferOutcome.STALE if is_stale else OfferOutcome.COUNTED


def close_as_if_all_had_it(rendezvous, guests):
    """As `Rendezvous._close`, without a look at who lacks the update that was torn."""
    lacks = {guest.session: guest.session not in rendezvous.holders for guest in guests}
    members = [
        [g.worker_id, g.session, g.said.ring, g.said.store, lacks[g.session]]
        for g in sorted(guests, key=lambda g: (lacks[g.session], g.worker_id))
    ]
    rendezvous._journal.record("world", rendezvous.world.id + 1, members)


SABOTAGES = {
    "a reduction that some have finished is not made good by the others": (
        Rendezvous,
        "_close",
        close_as_if_all_had_it,
    ),
    "the ledger hears of a task before it is settled": (
        RoundProtocol,
        "is_call_due",
        lambda protocol, is_out: protocol.has_calls,
    ),
    "what was counted counts again": (Marks, "_judge", counts_again),
    "the task of a lost worker is not given out again": (
        Job,
        "put_back",
        lambda job, *tasks: None,
    ),
}


@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_the_simulation_finds_what_was_broken_on_purpose(sabotage, monkeypatch):
    jobs = [(Job(seed, 0.1, way), way) for seed in range(20) for way in WAYS]
    monkeypatch.setattr(*SABOTAGES[sabotage])
    with pytest.raises((AssertionError, ElasticdlError, pytest.fail.Exception)):
        all(check(job, way, most_rounds=500) is None for job, way in jobs)

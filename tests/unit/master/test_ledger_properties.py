"""Any history of leases, reports, losses and restarts trains each minibatch exactly once.

On every ps replica: those are lost as well, and come back as they were at any earlier time.
"""

import copy
import json
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from elasticdl.job import Outcome, Shard, TaskAudit
from elasticdl.master.journal import Journal
from elasticdl.master.ledger import Ledger, Settled
from elasticdl.master.parameters.proof import prove
from elasticdl.master.tasks import JobTasks, TaskTable

MINIBATCH, PER_TASK, MAX_RETRIES = 10, 30, 2


class Replica:
    """A ps replica's watermarks: it fences off old leases, and applies each index once."""

    def __init__(self):
        self.leases = {}
        self.watermarks = Counter()
        self.applied = Counter()
        self.checkpoint = None

    def begin(self, task_id, lease):
        if lease < self.leases.get(task_id, 0):
            return None
        self.leases[task_id] = lease
        return self.watermarks[task_id]

    def push(self, task_id, lease, index):
        """Return "stale", "gap" or "" as a store would."""
        if lease < self.leases.get(task_id, 0):
            return "stale"
        self.leases[task_id] = lease
        if index > self.watermarks[task_id]:
            return "gap"
        if index == self.watermarks[task_id]:
            self.watermarks[task_id] += 1
            self.applied[task_id, index] += 1
        return ""

    def write_checkpoint(self):
        self.checkpoint = copy.deepcopy((self.leases, self.watermarks, self.applied))

    def restored(self):
        """Return its successor."""
        successor = Replica()
        if self.checkpoint is not None:
            state = copy.deepcopy(self.checkpoint)
            successor.leases, successor.watermarks, successor.applied = state
        successor.checkpoint = self.checkpoint
        return successor


class Jobs(RuleBasedStateMachine):
    """Workers with any number of leases each, two replicas, and a master that restarts."""

    @initialize(
        records=st.lists(st.integers(0, 100), min_size=1, max_size=4),
        num_epochs=st.integers(1, 3),
        shuffle=st.booleans(),
        factors=st.lists(st.sampled_from([0, 0.5, 1, 1, 2.2]), min_size=1, max_size=3),
    )
    def begin(self, records, num_epochs, shuffle, factors):
        self.factors = factors
        shards = [Shard(str(n), 5, 5 + count) for n, count in enumerate(records)]
        self.tasks = JobTasks(
            TaskTable(shards, PER_TASK),
            TaskTable([Shard("v", 0, 50)], PER_TASK),
            TaskTable([], PER_TASK),
            num_epochs,
        )
        self.shuffle = shuffle
        self.replicas = [Replica(), Replica()]
        self.held = []  # (worker, task, lease number, next index): also of workers thought lost
        self.ended = Counter()
        self.evaluations = 0
        self.snapshot, self.facts = None, []
        self.ledger, self.journal = self.make_ledger()

    def make_ledger(self):
        journal = Journal()
        return Ledger(self.tasks, journal, 3, self.shuffle, MAX_RETRIES, MINIBATCH), journal

    def write(self):
        self.facts += json.loads(json.dumps(self.journal.take()))

    def examples(self, task_id):
        """Return how many examples `feed` makes: it leaves records out, or makes several of one."""
        return int(
            self.tasks.task(task_id).shard.num_records * self.factors[task_id % len(self.factors)]
        )

    def steps(self, task_id):
        return -(-self.examples(task_id) // MINIBATCH)

    def made(self, task_id):
        """Return what a worker reports of a task that it has done."""
        if task_id >= self.tasks.num_training:
            return {}
        return {"end_index": self.steps(task_id), "num_examples": self.examples(task_id)}

    @rule(worker=st.integers(0, 3))
    def lease(self, worker):
        if self.ledger.next_id(worker) is None:
            return
        lease = self.ledger.lease(worker, 0)
        start = 0
        if lease.task.id < self.tasks.num_training and lease.number > 1:
            start = min(r.begin(lease.task.id, lease.number) for r in self.replicas)
        if lease.task.id >= self.tasks.num_training:
            self.everything_done_is_everywhere()
        self.held.append([worker, lease.task.id, lease.number, start])

    @rule(data=st.data(), reached=st.sampled_from([(0,), (1,), (0, 1), (0, 1), (0, 1)]))
    def push(self, data, reached):
        if not self.held:
            return
        held = data.draw(st.sampled_from(self.held))
        worker, task_id, number, index = held
        if index < self.steps(task_id) and task_id < self.tasks.num_training:
            found = {self.replicas[r].push(task_id, number, index) for r in reached}
            if "stale" in found:
                self.held.remove(held)
            elif "gap" in found:
                self.held.remove(held)
                self.ledger.report(worker, task_id, number, Outcome.RETURNED)
            elif len(reached) == len(self.replicas):
                held[3] += 1

    @rule(replica=st.integers(0, 1))
    def checkpoint(self, replica):
        self.replicas[replica].write_checkpoint()

    @rule(replica=st.integers(0, 1))
    def replica_lost(self, replica):
        """It comes back at once: what workers do meanwhile waits for it."""
        successor = self.replicas[replica] = self.replicas[replica].restored()
        lacks = self.ledger.lacks(successor.watermarks)
        for lack in lacks:
            assert lack.have + lack.minibatches == self.steps(lack.task_id)
            self.ended[lack.task_id] -= 1
        self.ledger.replay(lack.task_id for lack in lacks)

    @rule(data=st.data(), outcome=st.sampled_from(Outcome))
    def report(self, data, outcome):
        if not self.held:
            return
        held = data.draw(st.sampled_from(self.held))
        worker, task_id, number, index = held
        is_training = task_id < self.tasks.num_training
        if outcome is Outcome.DONE and is_training and index < self.steps(task_id):
            return  # a worker says so only when every push was acknowledged
        self.held.remove(held)
        made = self.made(task_id)
        settled = self.ledger.report(worker, task_id, number, outcome, "boom", **made)
        if settled in (Settled.DONE, Settled.QUARANTINED):
            self.ended[task_id] += 1

    @rule(
        worker=st.integers(0, 3),
        still_speaks=st.booleans(),
        may_have_died_of_a_task=st.booleans(),
        blamed=st.integers(0, 3),
    )
    def worker_lost(self, worker, still_speaks, may_have_died_of_a_task, blamed):
        held = sorted(self.ledger.held_by(worker))
        is_certain = may_have_died_of_a_task and blamed < len(held)
        if is_certain and self.ledger.blame(held[blamed], "crashed") is Settled.QUARANTINED:
            self.ended[held[blamed]] += 1
        self.ledger.worker_lost(worker, may_have_died_of_a_task and not is_certain)
        if not still_speaks:
            self.held = [held for held in self.held if held[0] != worker]

    @rule()
    def evaluate(self):
        self.ledger.queue(self.tasks.evaluation_ids(self.evaluations))
        self.evaluations += 1

    @rule(compact=st.booleans())
    def master_restarts(self, compact):
        self.write()
        before = self.ledger.snapshot()
        self.ledger, self.journal = self.make_ledger()
        if self.snapshot is not None:
            self.ledger.restore(json.loads(json.dumps(self.snapshot)))
        for fact in self.facts:
            self.journal.replay(fact)
        assert self.ledger.snapshot() == before
        if compact:
            self.snapshot, self.facts = before, []

    @invariant()
    def no_minibatch_is_trained_twice(self):
        for replica in getattr(self, "replicas", []):
            assert all(count == 1 for count in replica.applied.values())

    @invariant()
    def what_a_replica_lacks_is_still_to_do(self):
        for replica in getattr(self, "replicas", []):
            assert not self.ledger.lacks(replica.watermarks)

    @invariant()
    def a_suspect_is_held_beside_no_other_task(self):
        for worker in range(4 if hasattr(self, "ledger") else 0):
            held = self.ledger.held_by(worker)
            assert len(held) < 2 or not any(map(self.ledger.is_suspect, held))

    @invariant()
    def no_task_ends_twice(self):
        assert all(count <= 1 for count in getattr(self, "ended", {}).values())

    def teardown(self):
        if not hasattr(self, "ledger"):
            return
        for worker in range(4):
            self.ledger.worker_lost(worker)
        while self.ledger.next_id(9) is not None:
            lease = self.ledger.lease(9, 0)
            task_id = lease.task.id
            if task_id < self.tasks.num_training:
                start = min(r.begin(task_id, lease.number) for r in self.replicas)
                for index in range(start, self.steps(task_id)):
                    assert not any(r.push(task_id, lease.number, index) for r in self.replicas)
            else:
                self.everything_done_is_everywhere()
            made = self.made(task_id)
            settled = self.ledger.report(9, task_id, lease.number, Outcome.DONE, **made)
            assert settled is Settled.DONE
            self.ended[task_id] += 1
        self.everything_is_accounted_for()

    def everything_done_is_everywhere(self):
        """What is evaluated is the whole of what was done."""
        assert self.ledger.is_whole

    def everything_is_accounted_for(self):
        assert self.ledger.is_trained
        assert self.ledger.is_idle
        training = range(self.tasks.num_training)
        evaluated = [id for e in range(self.evaluations) for id in self.tasks.evaluation_ids(e)]
        assert self.ended == Counter([*training, *evaluated])
        set_aside = self.ledger.aside.quarantined
        expected = {
            (id, index) for id in training if id not in set_aside for index in range(self.steps(id))
        }
        for replica in self.replicas:
            assert {key for key in replica.applied if key[0] not in set_aside} == expected
        done = sum(self.tasks.task(id).shard.num_records for id in training if id not in set_aside)
        assert self.ledger.training_records_done == done
        self.each_record_is_proved(set_aside)

    def each_record_is_proved(self, set_aside):
        applied = [
            [
                TaskAudit(task_id, steps, min(steps * MINIBATCH, self.examples(task_id)))
                for task_id, steps in replica.watermarks.items()
            ]
            for replica in self.replicas
        ]
        proof = prove(
            self.tasks, MINIBATCH, applied, {}, None, self.ledger.uneven.by_task, set_aside.keys()
        )
        assert "more than once" not in proof.problem
        if not set_aside:
            assert proof.problem == proof.note == ""
            for line in proof.ledger:
                assert line.trained_once == line.records
                made = sum(self.examples(id) for id in self.tasks.epoch_ids(line.epoch))
                assert line.examples == made


TestJobs = Jobs.TestCase
TestJobs.settings = settings(max_examples=25, stateful_step_count=60, deadline=None)


@pytest.mark.long
class TestManyJobs(Jobs.TestCase):
    settings = settings(max_examples=600, stateful_step_count=60, deadline=None)

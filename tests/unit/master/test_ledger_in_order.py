"""The ledger of a deterministic job leases what comes first in the order, whatever it waits for."""

import pytest

from elasticdl.data.updates import UpdateOrder
from elasticdl.job import Outcome, Shard
from elasticdl.master.journal import Journal
from elasticdl.master.ledger import Ledger, Settled
from elasticdl.master.tasks import JobTasks, TaskTable

NUM_TASKS = 8
ORDER = UpdateOrder(NUM_TASKS, tasks_per_update=2, seed=3, shuffle=True)
IN_ORDER = [task for update in range(NUM_TASKS) for task in ORDER.tasks_of(update)]  # two epochs


@pytest.fixture
def ledger():
    shards = [
        TaskTable([Shard(name, 0, 10 * count)], 10)
        for name, count in zip("tv", (8, 2), strict=True)
    ]
    tasks = JobTasks(*shards, TaskTable([], 10), 2)
    return Ledger(
        tasks,
        Journal(),
        seed=3,
        shuffle=True,
        max_retries=3,
        minibatch_size=10,
        updates=ORDER,
    )


def lease(ledger, worker_id, count=1):
    return [ledger.lease(worker_id, request).task.id for request in range(count)]


def test_tasks_are_leased_in_the_order_of_their_updates(ledger):
    assert lease(ledger, 0, 16) == IN_ORDER


def test_what_comes_back_is_leased_before_what_comes_later(ledger):
    lease(ledger, 0, 5)
    # The last one first, as a worker gives back what is not its turn yet.
    for task in (IN_ORDER[4], IN_ORDER[1], IN_ORDER[3]):
        assert ledger.report(0, task, 1, Outcome.RETURNED) is Settled.REQUEUED
    assert lease(ledger, 1, 4) == [IN_ORDER[1], IN_ORDER[3], IN_ORDER[4], IN_ORDER[5]]


def test_a_suspect_waits_for_its_turn_and_goes_to_a_worker_that_holds_what_is_computed(ledger):
    lease(ledger, 0, 1)
    lease(ledger, 1, 2)
    ledger.worker_lost(1, are_suspects=True)
    assert lease(ledger, 0, 3) == IN_ORDER[1:4]


def test_what_is_done_again_comes_in_its_order_and_before_all_else(ledger):
    lease(ledger, 0, 6)
    for task in IN_ORDER[:6]:
        ledger.report(0, task, 1, Outcome.DONE)
    ledger.replay(sorted(IN_ORDER[2:6]))
    assert lease(ledger, 0, 2) == IN_ORDER[2:4]
    # All is lost again, and further back.
    ledger.worker_lost(0)
    ledger.replay(sorted(IN_ORDER[:2]))
    assert lease(ledger, 1, 7) == IN_ORDER[:7]


def test_what_is_done_again_survives_the_master(ledger):
    lease(ledger, 0, 6)
    for task in IN_ORDER[:6]:
        ledger.report(0, task, 1, Outcome.DONE)
    ledger.replay(sorted(IN_ORDER[2:6]))
    snapshot = ledger.snapshot()
    ledger.restore(snapshot)
    assert lease(ledger, 0, 5) == IN_ORDER[2:7]


def test_other_tasks_come_first_but_for_what_is_done_again(ledger):
    lease(ledger, 0, 2)
    for task in IN_ORDER[:2]:
        ledger.report(0, task, 1, Outcome.DONE)
    evaluation = ledger._tasks.evaluation_ids(0)
    ledger.queue(evaluation)
    ledger.replay([IN_ORDER[0]])
    assert lease(ledger, 0) == [IN_ORDER[0]]
    ledger.report(0, IN_ORDER[0], 2, Outcome.DONE)
    assert lease(ledger, 0) == [evaluation[0]]

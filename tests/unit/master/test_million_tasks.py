"""With a million tasks no event walks all of them: counted in lines of Python, not in seconds."""

import sys

import numpy as np
import pytest

from elasticdl.job import Outcome, Shard
from elasticdl.master.journal import Journal
from elasticdl.master.ledger import Ledger
from elasticdl.master.missing_tasks import Applied
from elasticdl.master.order import TaskCursor
from elasticdl.master.tasks import JobTasks, TaskTable

NUM_TASKS = 1_000_000
MANY = 2_000
"""Lines that no event may need: it would have to look at more than a thousandth of the tasks."""


@pytest.fixture
def ledger():
    # A thousand shards, of which each one ends with a smaller task.
    shards = [Shard(f"part-{n}", 0, 30 * NUM_TASKS // 1000 - 5) for n in range(1000)]
    tasks = JobTasks(TaskTable(shards, 30), TaskTable([], 30), TaskTable([], 30), num_epochs=2)
    assert tasks.per_epoch == NUM_TASKS
    return Ledger(tasks, Journal(), seed=1, shuffle=True, max_retries=3, minibatch_size=10)


def lines_of(call):
    """Return how many lines of Python, and turns of comprehensions, a call takes."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def hand_out(ledger, count):
    """Have so many tasks done, as a master knows that took them over from a journal."""
    ledger._waiting.handed = TaskCursor(NUM_TASKS, 1, shuffle=True)
    ledger._waiting.handed.restore(count)
    ledger.num_done = count


def cycle(ledger, worker_id=0):
    lease = ledger.lease(worker_id, 0)
    ledger.report(worker_id, lease.task.id, lease.number, Outcome.DONE)


def test_the_counter_notices_a_walk():
    assert lines_of(lambda: [number for number in range(MANY)]) >= 1
    assert lines_of(lambda: any(number < 0 for number in range(MANY))) > MANY


def test_the_first_lease_and_the_change_of_an_epoch_take_as_long_as_any_other(ledger):
    assert lines_of(lambda: cycle(ledger)) < MANY
    hand_out(ledger, NUM_TASKS - 1)
    for _ in range(3):
        assert lines_of(lambda: cycle(ledger)) < MANY
    assert ledger._waiting.handed.epoch == 1


@pytest.mark.parametrize("share", [0.3, 1.0, 1.6])
def test_a_replica_that_comes_back_empty_costs_no_walk(ledger, share):
    hand_out(ledger, int(share * NUM_TASKS))
    ids = np.arange(0, int(share * NUM_TASKS), 2)  # of which it has all
    applied = Applied(ids, np.full(len(ids), 3))
    found = []
    assert lines_of(lambda: found.append(ledger.lacks(applied))) < MANY
    (lacks,) = found
    assert 0 < len(lacks) < NUM_TASKS
    ranges = []
    whole = lacks.task_ids
    ledger.epochs.settled = [NUM_TASKS, NUM_TASKS]
    assert lines_of(lambda: ledger.replay(whole)) < MANY
    assert len(ledger._waiting.replays) == len(whole)
    assert lines_of(lambda: ranges.append(ledger.snapshot())) < MANY
    assert lines_of(lambda: cycle(ledger)) < MANY


def test_what_was_begun_is_told_without_a_walk(ledger):
    hand_out(ledger, NUM_TASKS + NUM_TASKS // 3)
    tells = []
    assert lines_of(lambda: tells.append(ledger.begun())) < MANY
    begun = sum(tells[0](id) for id in range(NUM_TASKS, 2 * NUM_TASKS))
    assert begun == NUM_TASKS // 3
    assert tells[0](NUM_TASKS - 1)

"""An update of a global batch has all its records, as long as there may be more to come."""

import pytest

from tests.packages.all_reduce.ring_workers import Meeting, RingWorker, finish

pytestmark = pytest.mark.timeout(120)
NUM_NUMBERS = 1_000


@pytest.fixture
def workers():
    """Two that have counted something of an update, and have nothing in hand any more."""
    meeting = Meeting()
    workers = [
        RingWorker(meeting, number, NUM_NUMBERS, global_batch_size=10**6) for number in (0, 1)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.until(lambda worker=worker: worker.num_counted > 3)
        worker.stop()
    yield workers
    assert len(set(finish(workers))) == 1


def go_on(worker, num_rounds=40):
    """Wait for some rounds in which nobody has anything."""
    enough = worker.member.num_rounds + num_rounds
    worker.until(lambda: worker.member.num_rounds >= enough)


def test_an_update_waits_until_the_master_has_no_task_for_anybody(workers):
    go_on(workers[0])
    assert [worker.replica.version for worker in workers] == [0, 0]
    workers[0].member.out_of_work(True)
    workers[1].member.out_of_work(False)  # it may get a task
    go_on(workers[0])
    assert [worker.replica.version for worker in workers] == [0, 0]
    workers[1].member.out_of_work(True)
    for worker in workers:
        worker.until(lambda worker=worker: worker.replica.version == 1)
    assert workers[0].replica.pending.minibatches == []


def test_who_leaves_before_the_update_is_made_gives_back_what_it_lacks(workers):
    told = []
    leaver = workers[0]
    leaver.member.when_settled(leaver.worker_id, leaver.num_counted, told.append)
    leaver.until(lambda: told)
    assert told == [False]
    assert leaver.replica.version == 0

"""A joiner is given the parameters beside the steps of the others; real rings in one process."""

from contextlib import contextmanager

import pytest

from elasticdl.collective import giving
from elasticdl.worker.replica import Replica
from tests.unit.worker.ring_workers import Meeting, RingWorker, finish

NUM_NUMBERS = 1_000
PIECE_BYTES = 1_000  # of some 15,000, so that they take many rounds


@pytest.fixture(autouse=True)
def slow_transfer(monkeypatch):
    monkeypatch.setattr(giving, "AT_ONCE_BYTES", 0)
    monkeypatch.setattr("elasticdl.worker.giving.piece_bytes", lambda num_numbers: PIECE_BYTES)


@contextmanager
def stages_of(monkeypatch):
    """Note at which position of its parameters a joiner begins and ends."""
    noted = []
    begin, end = Replica.begin_stage, Replica.end_stage

    def begin_and_note(replica, outline):
        stage = begin(replica, outline)
        noted.append(("begin", replica.position))
        return stage

    def end_and_note(replica):
        has_ended = end(replica)
        if has_ended:
            noted.append(("end", replica.position))
        return has_ended

    with monkeypatch.context() as patch:
        patch.setattr(Replica, "begin_stage", begin_and_note)
        patch.setattr(Replica, "end_stage", end_and_note)
        yield noted


def two_at_work(**settings):
    meeting = Meeting()
    workers = [RingWorker(meeting, worker_id, NUM_NUMBERS, **settings) for worker_id in range(2)]
    for worker in workers:
        worker.start()
    workers[1].until(lambda: workers[1].replica.position > 3)
    return meeting, workers


@pytest.mark.timeout(120)
@pytest.mark.parametrize("settings", [{}, {"global_batch_size": 40}])
def test_steps_go_on_while_a_joiner_is_given_the_parameters(monkeypatch, settings):
    meeting, workers = two_at_work(**settings)
    with stages_of(monkeypatch) as noted:
        joiner = RingWorker(meeting, 2, NUM_NUMBERS, **settings)
        joiner.start()
        joiner.until(lambda: joiner.num_counted > 3)
        hashes = finish([*workers, joiner])
    (first, began), (last, ended) = noted
    assert (first, last) == ("begin", "end")
    assert ended - began >= 10
    assert len(set(hashes)) == 1

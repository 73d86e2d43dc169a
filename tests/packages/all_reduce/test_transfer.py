"""A joiner is given the parameters beside the steps of the others; real rings in one process."""

import threading
from contextlib import contextmanager

import pytest

from elasticdl.errors import RingError
from elasticdl.packages.all_reduce.collective import transfer
from elasticdl.packages.all_reduce.collective.group import Group
from elasticdl.packages.all_reduce.replica import Replica
from elasticdl.packages.all_reduce.staging import Giver, StagedParameters
from tests.packages.all_reduce.ring_workers import Meeting, RingWorker, finish

NUM_NUMBERS = 1_000
PIECE_BYTES = 1_000  # of some 15,000, so that they take many rounds


@pytest.fixture(autouse=True)
def slow_transfer(monkeypatch):
    monkeypatch.setattr(transfer, "AT_ONCE_BYTES", 0)
    monkeypatch.setattr(
        "elasticdl.packages.all_reduce.transfer.piece_bytes", lambda num_numbers: PIECE_BYTES
    )


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


def join_and_finish(meeting, workers, **settings):
    """Have one more join; all go on until it has trained; return the hash of what each holds."""
    joiner = RingWorker(meeting, len(workers), NUM_NUMBERS, **settings)
    joiner.start()
    joiner.until(lambda: joiner.num_counted > 3)
    return finish([*workers, joiner])


@pytest.mark.timeout(120)
@pytest.mark.parametrize("settings", [{}, {"global_batch_size": 40}])
def test_steps_go_on_while_a_joiner_is_given_the_parameters(monkeypatch, settings):
    meeting, workers = two_at_work(**settings)
    with stages_of(monkeypatch) as noted:
        hashes = join_and_finish(meeting, workers, **settings)
    (first, began), (last, ended) = noted[-2:]
    assert (first, last) == ("begin", "end")
    assert ended - began >= 10
    assert len(set(hashes)) == 1


@pytest.mark.timeout(120)
@pytest.mark.parametrize("breaker", ["giver", "joiner", "bystander"])
def test_a_ring_that_breaks_while_a_piece_is_given_loses_nothing(monkeypatch, breaker):
    meeting, workers = two_at_work()
    joiner = RingWorker(meeting, 2, NUM_NUMBERS)
    give, num_pieces = Group.give_piece, [0]

    def give_or_break(group, values, length, out):
        is_it = {
            "giver": values is not None,
            "joiner": out is not None,
            "bystander": values is None and out is None,
        }[breaker]
        num_pieces[0] += is_it
        if is_it and num_pieces[0] == 5:
            raise RingError("a fault: this rank lost the ring")
        return give(group, values, length, out)

    with monkeypatch.context() as patch, stages_of(monkeypatch) as noted:
        patch.setattr(Group, "give_piece", give_or_break)
        joiner.start()
        joiner.until(lambda: joiner.num_counted > 3)
        hashes = finish([*workers, joiner])
    assert num_pieces[0] > 5
    whats = [what for what, _ in noted]
    assert whats[:2] == ["begin", "begin"]
    assert whats[-1] == "end"
    assert len(set(hashes)) == 1


@pytest.mark.timeout(120)
def test_an_update_that_lacks_records_waits_for_a_joiner(monkeypatch):
    is_staging, has_rested, rested = threading.Event(), threading.Event(), []
    take, give = StagedParameters.take, Giver.next_piece

    def take_and_tell(stage, num_bytes, is_last):
        take(stage, num_bytes, is_last)
        is_staging.set()

    def give_when_all_rest(giver, most_bytes):
        if is_staging.is_set() and not has_rested.is_set():
            return 0, False  # nothing in this round
        return give(giver, most_bytes)

    monkeypatch.setattr(StagedParameters, "take", take_and_tell)
    monkeypatch.setattr(Giver, "next_piece", give_when_all_rest)
    meeting, workers = two_at_work(global_batch_size=10**6)
    with stages_of(monkeypatch) as noted:
        joiner = RingWorker(meeting, 2, NUM_NUMBERS, global_batch_size=10**6)
        joiner.start()
        assert is_staging.wait(60)
        for worker in workers:
            worker.stop()  # nobody has anything more, but the joiner may
        member = workers[1].member
        enough = member.num_rounds + 30
        workers[1].until(lambda: member.num_rounds >= enough)
        rested.append(workers[1].replica.position)
        has_rested.set()
        joiner.until(lambda: joiner.num_counted > 3)
    assert noted[-1] == ("end", *rested)
    assert joiner.replica.version == 0
    assert len(set(finish([*workers, joiner]))) == 1


@pytest.mark.timeout(120)
def test_two_joiners_are_given_the_same_pieces():
    meeting, workers = two_at_work()
    joiners = [RingWorker(meeting, worker_id, NUM_NUMBERS) for worker_id in (2, 3)]
    for joiner in joiners:
        joiner.start()
    for joiner in joiners:
        joiner.until(lambda joiner=joiner: joiner.num_counted > 3)
    assert len(set(finish([*workers, *joiners]))) == 1


@pytest.mark.timeout(120)
def test_the_giver_leaves_and_another_gives(monkeypatch):
    meeting, workers = two_at_work()
    given = threading.Event()
    take = StagedParameters.take

    def take_and_tell(stage, num_bytes, is_last):
        take(stage, num_bytes, is_last)
        given.set()

    monkeypatch.setattr(StagedParameters, "take", take_and_tell)
    joiner = RingWorker(meeting, 2, NUM_NUMBERS)
    joiner.start()
    assert given.wait(60)
    (first,) = [worker for worker in workers if worker.member.place()[0] == 0]
    first.stop()
    first.member.leave()
    meeting.lose(first)
    joiner.until(lambda: joiner.num_counted > 3)
    (other,) = [worker for worker in workers if worker is not first]
    assert len(set(finish([other, joiner]))) == 1
    first.leave()

"""Who reduces together: when a world closes, who gets rank 0, and who is not waited for."""

import pytest

from elasticdl.job import Attendance
from elasticdl.master.journal import Journal
from elasticdl.packages.all_reduce.rendezvous import Rendezvous


class Workers:
    """Workers of a job at a rendezvous; by default all that were named are there and stay."""

    def __init__(self):
        self.journal = Journal()
        self.rendezvous = Rendezvous(self.journal)
        self.here = {}
        self.told = {}

    def come(self, worker_id, version=-1, synced=None, missed=(), now=0.0, num_to_come=0):
        session = f"s{worker_id}"
        self.here[session] = worker_id
        told = self.told.get(session, 0)
        synced = told if synced is None and version >= 0 else synced or 0
        said = Attendance(f"ring{worker_id}", f"store{worker_id}", version, synced, told, missed)
        self.rendezvous.attend(worker_id, session, said, now)
        return self.advance(now, num_to_come)

    def restored(self, worker_id):
        """The restorer has parameters, and says so."""
        self.rendezvous.restored(f"s{worker_id}")
        return self.come(worker_id, version=0, synced=0)

    def advance(self, now=0.0, num_to_come=0):
        has_closed = self.rendezvous.advance(self.here, num_to_come, now)
        return self.members() if has_closed else None

    def hear(self):
        """All members of the world hear of it."""
        for member in self.rendezvous.world.members:
            self.told[member.session] = self.rendezvous.world.id

    def lose(self, worker_id):
        self.here.pop(f"s{worker_id}", None)
        self.rendezvous.lost(f"s{worker_id}")
        return self.advance()

    def members(self):
        return [(m.worker_id, m.is_behind) for m in self.rendezvous.world.members]

    def ended_for(self, worker_id):
        return self.rendezvous.ended_world(f"s{worker_id}", self.here)


@pytest.fixture
def trio():
    """Three workers in their first world, which all have heard of."""
    workers = Workers()
    for num_to_come, worker_id in ((2, 2), (1, 0), (0, 1)):
        workers.come(worker_id, num_to_come=num_to_come)
    assert workers.rendezvous.restorer == "s0"
    assert workers.restored(0) == [(0, False), (1, True), (2, True)]
    workers.hear()
    return workers


def test_the_first_world_waits_for_all_that_are_being_started():
    workers = Workers()
    workers.come(0, num_to_come=1)
    assert workers.rendezvous.restorer == ""
    workers.come(1)
    assert workers.rendezvous.restorer == "s0"
    assert workers.restored(0) == [(0, False), (1, True)]


def test_a_world_without_the_lost_one_closes_once_all_others_are_there(trio):
    assert trio.lose(2) is None
    assert trio.come(0, version=5) is None
    assert trio.come(1, version=5) == [(0, False), (1, False)]


def test_survivors_that_meet_before_the_loss_is_known_wait_until_it_is(trio):
    assert trio.come(0, version=5) is None
    assert trio.come(1, version=5) is None
    assert trio.lose(2) == [(0, False), (1, False)]


def test_the_furthest_rank_wins_and_others_are_behind(trio):
    trio.lose(0)
    trio.come(1, version=5)
    assert trio.come(2, version=6) == [(2, False), (1, True)]


def test_a_joiner_is_announced_and_admitted_when_all_members_have_come(trio):
    assert trio.ended_for(0) == 0
    assert trio.come(3) is None
    assert [trio.ended_for(worker) for worker in (0, 1, 2)] == [1, 1, 1]
    trio.come(0, version=9)
    trio.come(1, version=9)
    assert trio.come(2, version=9) == [(0, False), (1, False), (2, False), (3, True)]


def test_survivors_do_not_wait_for_one_that_is_being_started(trio):
    trio.lose(2)
    trio.come(0, version=5, num_to_come=1)
    assert trio.come(1, version=5, num_to_come=1) == [(0, False), (1, False)]


def test_a_member_that_others_miss_is_not_waited_for_without_end(trio):
    trio.come(0, version=5, missed=(2,), now=10.0)
    assert trio.come(1, version=5, missed=(2,), now=10.1) is None
    assert trio.advance(now=11.0) is None
    assert trio.advance(now=12.5) == [(0, False), (1, False)]


def test_one_that_was_left_out_holds_nothing_and_is_given_the_parameters(trio):
    trio.come(0, version=5, missed=(2,), now=10.0)
    trio.come(1, version=5, now=10.0)
    trio.advance(now=13.0)
    trio.hear()
    assert trio.come(2, version=6) is None  # of a course of its own, whatever its number
    trio.come(0, version=6)
    assert trio.come(1, version=6) == [(0, False), (1, False), (2, True)]


def test_one_that_was_never_given_the_parameters_does_not_win(trio):
    trio.come(3)
    for worker in (0, 1, 2):
        trio.come(worker, version=9)
    trio.hear()
    trio.lose(0)
    trio.come(3, version=-1, synced=0)
    trio.come(1, version=9, synced=1)
    assert trio.come(2, version=9, synced=1) == [(1, False), (2, False), (3, True)]


def test_a_behind_one_goes_on_when_the_furthest_is_lost_before_it_gave_anything(trio):
    trio.lose(0)
    trio.come(1, version=5)
    trio.come(2, version=6)
    trio.hear()
    trio.lose(2)
    assert trio.come(1, version=5, synced=1) == [(1, False)]


def test_when_all_holders_are_lost_one_that_came_is_asked_to_restore(trio):
    for worker in (0, 1, 2):
        trio.lose(worker)
    trio.come(3, num_to_come=1)
    assert trio.rendezvous.restorer == ""
    trio.come(4)
    assert trio.rendezvous.restorer == "s3"
    assert trio.restored(3) == [(3, False), (4, True)]
    assert trio.rendezvous.world.id == 2


def test_another_one_restores_when_the_restorer_is_lost():
    workers = Workers()
    workers.come(0)
    workers.come(1)
    workers.lose(0)
    assert workers.rendezvous.restorer == "s1"


def test_an_answer_that_was_lost_is_given_again(trio):
    trio.told["s1"] = 0
    assert trio.come(1) is None
    seat = trio.rendezvous.seat_of("s1", told_world=0, generation=0)
    assert (seat.world_id, seat.rank, seat.workers) == (1, 1, (0, 1, 2))
    assert seat.are_behind == (False, True, True)


def test_another_master_knows_the_world_and_its_holders(trio):
    trio.come(1, version=3)
    after = Rendezvous(Journal())
    after.restore(trio.rendezvous.snapshot())
    assert after.world == trio.rendezvous.world
    assert after.holders == {"s0", "s1"}
    assert not after.advance(trio.here, 0, now=0.0)

"""What rounds decide, in any order of events: without threads, a clock or a ring."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.errors import ElasticdlError
from elasticdl.packages.all_reduce.collective.pending import PendingSums
from elasticdl.packages.all_reduce.collective.rounds import (
    Marks,
    Offer,
    OfferedMinibatch,
    OfferOutcome,
)
from elasticdl.packages.all_reduce.round_protocol import NextStep, Proposal, RoundProtocol

WORLD = 3


@dataclass
class Parameters:
    """As a `Replica` counts, with no numbers in it."""

    lineage: int = 0
    position: int = 0
    version: int = 0
    marks: Marks = field(default_factory=Marks)
    pending: PendingSums = field(default_factory=PendingSums)
    updates: object = None
    global_batch_size: int | None = None
    is_staging: bool = False
    due: set | None = None

    def is_due(self, task_id):
        return self.due is None or task_id in self.due

    def has(self, task_id, end):
        return self.marks.next_index(task_id) >= end

    def count(self, made):
        for offer in made.counted:
            self.marks.count(offer.minibatch)
        self.position += bool(made.counted)
        self.version += bool(made.counted)


class Rank:
    def __init__(self, **parameters):
        self.parameters = Parameters(**parameters)
        self.protocol = RoundProtocol(self.parameters)
        self.protocol.begin_world()
        self.protocol.got_parameters(WORLD, 1)

    def hand_in(self, task_id=1, lease=1, index=0):
        at = self.parameters
        minibatch = OfferedMinibatch(task_id, lease, index, 8)
        proposal = Proposal(minibatch, 0.1, (), at.lineage, at.version)
        self.protocol.hand_in(proposal)
        return proposal

    def offer(self):
        return self.protocol.offer(self.protocol.offered(), WORLD, (0, False))


def a_round(*ranks):
    """Go through one round; return what each rank has decided."""
    handed = [rank.protocol.offered() for rank in ranks]
    offers = [rank.offer() for rank in ranks]
    made = [rank.protocol.begin_round(offers, WORLD) for rank in ranks]
    for number, rank in enumerate(ranks):
        if made[number] is not None:
            rank.parameters.count(made[number])
            rank.protocol.end_round(made[number], handed[number], number)
    return made


def test_a_call_is_due_when_the_round_after_the_update_has_begun():
    rank, heard = Rank(), []
    rank.protocol.begin_lease(1, 1)
    proposal = rank.hand_in()
    a_round(rank)
    assert proposal.verdict is OfferOutcome.COUNTED
    rank.protocol.take_back()
    rank.protocol.when_settled(1, 1, heard.append)
    assert not rank.protocol.is_call_due(is_out=False)
    a_round(rank)
    assert rank.protocol.is_call_due(is_out=False)
    tell, has_it = rank.protocol.next_call()
    tell(has_it)
    rank.protocol.end_call()
    assert heard == [True]
    assert not rank.protocol.has_calls


def test_a_call_waits_for_the_whole_update_and_of_a_rank_that_rests_for_idle_rounds():
    rank = Rank(global_batch_size=32)
    rank.parameters.pending.minibatches.append(OfferedMinibatch(1, 1, 0, 8))
    rank.protocol.when_settled(1, 1, print)
    a_round(rank)
    assert not rank.protocol.is_call_due(is_out=False)
    rank.protocol.rest()
    for _ in range(10):
        a_round(rank)
    assert rank.protocol.is_call_due(is_out=False)


def test_a_worker_that_is_out_is_told_at_once():
    rank = Rank()
    assert not rank.protocol.is_call_due(is_out=True)
    rank.protocol.when_settled(1, 1, print)
    assert rank.protocol.is_call_due(is_out=True)
    assert rank.protocol.next_call()[1] is False


@pytest.mark.parametrize(("name", "value"), [("version", 1), ("lineage", 1)])
def test_a_gradient_of_other_parameters_is_outdated_and_not_offered(name, value):
    rank = Rank()
    proposal = rank.hand_in()
    assert rank.protocol.offered() is proposal
    setattr(rank.parameters, name, value)
    assert rank.protocol.is_outdated(proposal)
    assert rank.protocol.offered() is None


def test_others_wait_only_for_a_lease_of_a_task_that_is_due():
    rank = Rank(due={2})
    rank.protocol.begin_lease(1, 1)
    assert not rank.protocol.is_busy
    rank.protocol.begin_lease(2, 1)
    assert rank.protocol.is_busy
    rank.protocol.end_lease(2, 1)
    assert not rank.protocol.is_busy
    rank.protocol.rest()
    rank.protocol.begin_lease(2, 2)
    assert not rank.protocol.is_busy


@pytest.mark.parametrize(
    ("updates", "is_out_of_work", "rest"),
    [
        (None, (True, True), NextStep.FLUSH),
        (None, (True, False), NextStep.NOTHING),
        (object(), (True, True), NextStep.STANDSTILL),
    ],
)
def test_ten_rounds_without_a_minibatch(updates, is_out_of_work, rest):
    ranks = [Rank(global_batch_size=32, updates=updates) for _ in range(2)]
    for rank, is_out in zip(ranks, is_out_of_work, strict=True):
        rank.parameters.pending.minibatches.append(OfferedMinibatch(1, 1, 0, 8))
        rank.protocol.out_of_work(is_out)
    for _ in range(9):
        assert {made.next_step for made in a_round(*ranks)} == {NextStep.NOTHING}
    assert {made.next_step for made in a_round(*ranks)} == {rest}


def test_one_who_leaves_ends_the_world_before_anything_counts():
    ranks = [Rank(), Rank()]
    proposal = ranks[0].hand_in()
    ranks[1].protocol.world_ends(WORLD)
    assert a_round(*ranks) == [None, None]
    assert proposal.verdict is None


def test_ranks_that_are_not_as_far_are_a_defect():
    with pytest.raises(ElasticdlError, match="have 0, 1 rounds, expected as many"):
        Rank().protocol.begin_round([Offer(0), Offer(1)], WORLD)


HANDED_IN = st.dictionaries(st.integers(0, 2), st.tuples(st.integers(0, 2), st.integers(1, 3)))


@given(st.lists(HANDED_IN, max_size=20))
def test_a_minibatch_counts_once_whoever_has_its_task_and_all_ranks_agree(rounds):
    """Leases move between ranks at any moment; one who lost a lease goes on until it is told."""
    ranks = [Rank() for _ in range(3)]
    counted = []
    for handed_in in rounds:
        for number, (task_id, lease) in handed_in.items():
            rank = ranks[number]
            rank.hand_in(task_id, lease, rank.protocol.begin_lease(task_id, lease))
        made = a_round(*ranks)
        assert made[0] == made[1] == made[2]
        counted += [(o.minibatch.task_id, o.minibatch.index) for o in made[0].counted]
        for rank in ranks:
            rank.protocol.take_back()
    assert len(counted) == len(set(counted))
    assert len(counted) == sum(end for _, _, end in ranks[0].parameters.marks.rows())

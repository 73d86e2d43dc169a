"""Which minibatches make the next update: all ranks decide alike, and count each once."""

import pytest

from elasticdl.packages.all_reduce.collective.rounds import (
    OFFER_BYTES,
    Marks,
    Offer,
    OfferedMinibatch,
    OfferOutcome,
    admit,
    pack,
    unpack,
)


def offer(task, lease, index, num_records=16):
    return Offer(0, OfferedMinibatch(task, lease, index, num_records), learning_rate=0.1)


NOTHING = Offer(0)


def test_minibatches_that_are_next_in_their_tasks_count_together():
    marks = Marks.of([[7, 1, 3]])
    assert marks.judge([offer(7, 1, 3), NOTHING, offer(8, 1, 0)]) == [
        OfferOutcome.COUNTED,
        OfferOutcome.NONE,
        OfferOutcome.COUNTED,
    ]


def test_a_minibatch_that_was_counted_is_done():
    marks = Marks()
    marks.count(OfferedMinibatch(7, 1, 0, 16))
    assert marks.judge([offer(7, 1, 0)]) == [OfferOutcome.DONE]
    assert marks.judge([offer(7, 2, 0)]) == [OfferOutcome.DONE]
    assert marks.judge([offer(7, 1, 1)]) == [OfferOutcome.COUNTED]


def test_an_older_lease_is_refused_beside_a_newer_one_and_after_it():
    marks = Marks()
    assert marks.judge([offer(7, 1, 0), offer(7, 2, 0)]) == [
        OfferOutcome.STALE,
        OfferOutcome.COUNTED,
    ]
    marks.count(OfferedMinibatch(7, 2, 0, 16))
    assert marks.judge([offer(7, 1, 1)]) == [OfferOutcome.STALE]


def test_a_gap_is_refused():
    assert Marks().judge([offer(7, 1, 1)]) == [OfferOutcome.GAP]


def test_of_two_offers_of_one_minibatch_one_counts():
    assert Marks().judge([offer(7, 1, 0), offer(7, 1, 0)]) == [
        OfferOutcome.COUNTED,
        OfferOutcome.DONE,
    ]


def test_judging_changes_nothing():
    marks = Marks()
    marks.judge([offer(7, 1, 0)])
    assert marks.rows() == []


@pytest.mark.parametrize(
    "said",
    [
        Offer(3),
        Offer(2**40, is_last=True),
        Offer(5, OfferedMinibatch(2**33, 4, 5, 6), 0.25),
        Offer(5, OfferedMinibatch(1, 2, 3, 0, is_skipped=True), 0.0, is_last=True),
        Offer(5, lacks_parameters=True),
        Offer(5, is_out_of_work=True),
    ],
    ids=["nothing", "last", "minibatch", "skipped", "staging", "out of work"],
)
def test_an_offer_comes_out_as_it_went_in(said):
    assert len(pack(said)) == OFFER_BYTES
    assert unpack(pack(said)) == said


@pytest.mark.parametrize(
    ("before", "wanted", "counted"),
    [
        (0, None, [True, True, True]),
        (0, 48, [True, True, True]),
        (0, 32, [True, True, False]),
        (16, 32, [True, False, False]),
        (20, 32, [True, False, False]),  # a short minibatch before: at least as many as wanted
    ],
)
def test_an_update_takes_minibatches_in_the_order_of_ranks_until_it_has_enough(
    before, wanted, counted
):
    offers = [offer(task, 1, 0) for task in range(3)]
    verdicts = admit(offers, Marks().judge(offers), before, wanted)
    assert [verdict is OfferOutcome.COUNTED for verdict in verdicts] == counted
    assert all(verdict in (OfferOutcome.COUNTED, OfferOutcome.LATER) for verdict in verdicts)


def test_a_skipped_minibatch_needs_no_room():
    offers = [offer(1, 1, 0), Offer(0, OfferedMinibatch(2, 1, 0, 0, is_skipped=True))]
    assert admit(offers, Marks().judge(offers), 0, 16) == [OfferOutcome.COUNTED] * 2

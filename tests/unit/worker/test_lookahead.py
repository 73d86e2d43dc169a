"""How far ahead parameters are pulled, by how long a step computes and exchanges."""

import pytest

from elasticdl.worker.lookahead import WINDOW_MINIBATCHES, Lookahead


def after(lookahead, *windows):
    """Land windows of minibatches, each of which computes and exchanges for so many seconds."""
    computing = exchanging = 0.0
    for compute, exchange in windows:
        for _ in range(WINDOW_MINIBATCHES):
            computing += compute
            exchanging += exchange
            lookahead.landed(computing, exchanging)
    return lookahead.num_in_flight


@pytest.mark.parametrize(
    ("compute", "exchange", "num_in_flight"),
    [
        (0.050, 0.0005, 1),
        (0.050, 0.005, 2),
        (0.005, 0.003, 3),
        (0.0, 0.003, 3),
    ],
)
def test_only_as_much_is_in_flight_as_hides_the_exchange(compute, exchange, num_in_flight):
    assert after(Lookahead(3), *[(compute, exchange)] * 2) == num_in_flight


def test_no_more_than_is_allowed_is_in_flight():
    assert after(Lookahead(2), *[(0.001, 0.003)] * 3) == 2
    assert after(Lookahead(1), *[(0.001, 0.003)] * 3) == 1


def test_the_first_minibatches_say_nothing_for_they_compile():
    assert after(Lookahead(3), (5.0, 0.001)) == 3


def test_it_follows_what_changes():
    assert after(Lookahead(3), (1.0, 0.1), (0.050, 0.0005), (0.005, 0.004)) == 3
    assert after(Lookahead(3), (1.0, 0.1), (0.005, 0.004), (0.050, 0.0005)) == 1

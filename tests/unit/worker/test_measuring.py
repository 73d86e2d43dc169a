"""How many trained minibatches are measured."""

from elasticdl.worker.measuring import MeasuringBudget


def measured(step, cost, num_steps=10_000, share=0.01):
    """Return how many steps are measured, and the share of the time that it took."""
    budget = MeasuringBudget(share)
    count = 0
    for _ in range(num_steps):
        budget.computed(step)
        if budget.allows:
            budget.measured(cost)
            count += 1
    return count, count * cost / (num_steps * step)


def test_dear_metrics_take_no_more_than_their_share():
    count, share = measured(step=0.005, cost=0.001)
    assert 450 <= count <= 550
    assert share < 0.0105


def test_cheap_metrics_are_of_all_minibatches():
    assert measured(step=0.1, cost=0.0005)[0] == 10_000


def test_compiling_does_not_count():
    budget = MeasuringBudget(0.01)
    budget.computed(0.015)
    for seconds in (3.0, 2.0, 1.0, 0.0001):  # each of the first compiles for a new size
        assert budget.allows
        budget.measured(seconds)
    budget.measured(2.0)  # so does this one, and counts as four of the fastest
    assert not budget.allows
    budget.computed(0.05)
    assert budget.allows

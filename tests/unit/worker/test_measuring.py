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


def spent_up():
    """Return a budget of which nothing is left."""
    budget = MeasuringBudget(0.05)
    budget.computed(10.0)
    for _ in range(20):
        budget.measured(0.1)
    assert not budget.allows
    return budget


def test_time_in_which_there_was_nothing_to_do_goes_half_into_measuring():
    budget = spent_up()  # 1.7 s, of 0.5 s that are allowed
    budget.idled(2.3)
    assert not budget.allows
    budget.idled(0.2)
    assert budget.allows


def test_a_second_of_idle_time_is_saved_up_at_most():
    budget = spent_up()
    budget.idled(3600.0)
    for _ in range(10):
        assert budget.allows
        budget.measured(0.1)
    budget.measured(0.1)
    assert not budget.allows
    budget.idled(0.0)
    assert not budget.allows


def test_the_first_minibatch_of_a_window_is_measured_on_credit_up_to_a_second():
    budget = MeasuringBudget(0.05)
    budget.computed(10.0)
    for _ in range(17):
        assert budget.lends
        budget.measured(0.1)
    for _ in range(2):
        budget.measured(0.1)
    assert not budget.lends


def epochs_measured(num_epochs, cost, step=0.0005, steps_of_epoch=30, size=64):
    """Return how many records of each epoch are measured."""
    budget, counts = MeasuringBudget(num_epochs=num_epochs), []
    for epoch in range(num_epochs):
        counts.append(0)
        for _ in range(steps_of_epoch):
            budget.computed(step)
            if budget.allows or budget.lends_to(epoch):
                budget.takes(size)
                budget.measured(cost)
                counts[-1] += size
    return counts


def test_each_epoch_has_some_records_that_are_measured_on_credit():
    assert epochs_measured(num_epochs=6, cost=0.005) == [30 * 64] * 6
    assert epochs_measured(3, cost=0.001, step=1e-9, steps_of_epoch=200)[1:] == [4096, 4096]


def test_the_last_epoch_has_credit_even_if_all_others_took_theirs():
    *_, before, last = epochs_measured(num_epochs=100, cost=0.05)
    assert before == 0
    assert last >= 20 * 64


def test_what_a_users_metric_takes_for_each_minibatch_counts_as_often():
    budget = MeasuringBudget(0.01)
    budget.computed(10.0)
    for _ in range(4):
        budget.measured(0.01)  # of one minibatch
    assert budget.allows
    budget.measured(0.32, num_minibatches=32)
    assert not budget.allows

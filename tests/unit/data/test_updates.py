"""Which tasks make which update: each one of one update, in the order in which they are leased."""

import itertools

import pytest

from elasticdl.config import TrainingSection
from elasticdl.data.order import Order
from elasticdl.data.updates import UpdateOrder


@pytest.mark.parametrize("n", [1, 2, 3, 10, 97, 1000])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_number_is_at_the_place_that_it_was_drawn_for(n, shuffle):
    order = Order(n, seed=4, epoch=2, shuffle=shuffle)
    assert [order.place_of(order.at(place)) for place in range(n)] == list(range(n))


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_task_is_of_one_update_and_none_has_tasks_of_two_epochs(shuffle):
    updates = UpdateOrder(per_epoch=10, tasks_per_update=4, seed=1, shuffle=shuffle)
    found = [updates.tasks_of(update) for update in range(6)]
    assert [len(tasks) for tasks in found] == [4, 4, 2] * 2
    assert sorted(itertools.chain(*found[:3])) == list(range(10))
    assert sorted(itertools.chain(*found[3:])) == list(range(10, 20))
    for update, tasks in enumerate(found):
        assert [updates.update_of(task) for task in tasks] == [update] * len(tasks)
    assert [updates.place_of(task) for tasks in found for task in tasks] == list(range(20))


def test_a_global_batch_is_a_number_of_whole_tasks():
    settings = {"minibatch_size": 8, "num_minibatches_per_task": 2, "global_batch_size": 64}
    assert TrainingSection(**settings).tasks_per_update == 4
    assert TrainingSection(**settings | {"global_batch_size": 72}).tasks_per_update is None
    assert UpdateOrder.of(TrainingSection(**settings), 10) is None
    assert UpdateOrder.of(TrainingSection(**settings, deterministic=True), 10) is not None

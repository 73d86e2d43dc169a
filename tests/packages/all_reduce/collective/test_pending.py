"""What rounds have brought for an update: means over all records, and parts by task."""

import numpy as np

from elasticdl.packages.all_reduce.collective.pending import PendingSums, TaskPart, parts_of
from elasticdl.packages.all_reduce.collective.rounds import OfferedMinibatch


def arrays(*values):
    return tuple(np.array([value], np.float32) for value in values)


def test_the_mean_is_over_the_records_of_all_rounds():
    pending = PendingSums()
    pending.add([OfferedMinibatch(1, 1, 0, 10), OfferedMinibatch(2, 1, 0, 20)], arrays(1.0, 3.0))
    pending.add([OfferedMinibatch(1, 1, 1, 30)], arrays(2.0, 5.0))
    assert pending.num_records == 60
    assert [mean.tolist() for mean in pending.means()] == [[1.5], [4.0]]


def test_skipped_minibatches_bring_nothing_but_are_there():
    pending = PendingSums()
    pending.add([OfferedMinibatch(1, 1, 0, 0, is_skipped=True)], arrays(np.nan, np.nan))
    assert pending.means() == ()
    pending.add([OfferedMinibatch(1, 1, 1, 10)], arrays(1.0, 2.0))
    assert [mean.tolist() for mean in pending.means()] == [[1.0], [2.0]]
    assert len(pending.minibatches) == 2


def test_sums_of_tasks_are_added_up_in_the_order_asked_for_whenever_they_came():
    found = []
    for arrival in ([1, 2, 3], [3, 1, 2]):
        pending = PendingSums()
        for task in arrival:
            values = {1: 1.0, 2: 1e8, 3: -1e8}[task]  # a float32 sum that depends on the order
            pending.add(
                [OfferedMinibatch(task, 1, 0, 1, ends_task=True)], arrays(values, 0.0), key=task
            )
        found.append(pending.means([1, 2, 3])[0].tolist())
    assert found[0] == found[1] == [0.0]


def test_an_update_of_tasks_is_whole_when_all_have_ended():
    pending = PendingSums()
    pending.add([OfferedMinibatch(5, 1, 0, 16)], arrays(1.0, 0.0), key=5)
    pending.add([OfferedMinibatch(6, 1, 0, 16, ends_task=True)], arrays(1.0, 0.0), key=6)
    assert not pending.has_tasks([5, 6])
    pending.add([OfferedMinibatch(5, 1, 1, 0, is_skipped=True, ends_task=True)], (), key=5)
    assert pending.has_tasks([5, 6])


def test_minibatches_of_a_task_are_put_together_under_the_newest_lease():
    found = parts_of(
        [
            OfferedMinibatch(1, 1, 4, 16),
            OfferedMinibatch(2, 1, 0, 16),
            OfferedMinibatch(1, 1, 5, 0, is_skipped=True),
            OfferedMinibatch(1, 2, 6, 7),
        ]
    )
    assert found == [TaskPart(1, 2, 4, 3, 23), TaskPart(2, 1, 0, 1, 16)]

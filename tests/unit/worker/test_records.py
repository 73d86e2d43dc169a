"""Minibatches of a task that say which is the last."""

import numpy as np
import pytest

from elasticdl.backends.base import Minibatch
from elasticdl.errors import ModelError
from elasticdl.worker.records import with_ends


@pytest.mark.parametrize("count", [1, 2, 5])
def test_only_the_last_minibatch_is_the_last(count):
    made = [Minibatch(np.zeros(1), None, number) for number in range(count)]
    found = [(minibatch.num_records, is_last) for minibatch, is_last in with_ends(iter(made))]
    assert found == [(number, number == count - 1) for number in range(count)]


def test_a_task_without_minibatches_is_refused():
    with pytest.raises(ModelError, match="--deterministic"):
        list(with_ends(iter(())))

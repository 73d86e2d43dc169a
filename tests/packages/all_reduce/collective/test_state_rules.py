"""What becomes of the state when several minibatches make one update: each variable by its rule."""

import numpy as np
import pytest

from elasticdl.packages.all_reduce.collective.pending import PendingSums
from elasticdl.packages.all_reduce.collective.rounds import OfferedMinibatch
from elasticdl.packages.all_reduce.collective.state_rules import NO_RULES, StateRules

# A count, a mean of two numbers, a last value, and a variable that training leaves as it is.
RULES = StateRules.of([(range(0, 1), 1.0), (range(1, 3), 0.9), (range(3, 4), 0.0)])


def array(*values):
    return np.array(values, np.float32)


def of_ranks(changes, last):
    """Do what a round does: a mean of all, and sums of what is exact."""
    records = [32, 16, 0]
    mean = sum(n * change for n, change in zip(records, changes, strict=True)) / 48
    exact = [
        RULES.exact(change if n else None, rank == last)
        for rank, (n, change) in enumerate(zip(records, changes, strict=True))
    ]
    out = mean.astype(np.float32)
    RULES.put(sum(exact), out)
    return out.tolist()


@pytest.mark.parametrize("last", [0, 1])
def test_in_a_round_counts_add_up_averages_are_averaged_and_one_last_value_stays(last):
    changes = [array(32, 3, 6, 7, 0), array(16, 0, 3, 9, 0), array(5, 5, 5, 5, 5)]
    assert of_ranks(changes, last) == [48.0, 2.0, 5.0, [7.0, 9.0][last], 0.0]


def test_a_value_that_is_not_the_last_leaves_no_trace_even_if_it_is_not_finite():
    changes = [array(1, 0, 0, np.nan, 0), array(1, 0, 0, 9, 0), array(0, 0, 0, 0, 0)]
    exact = [RULES.exact(change, rank == 1) for rank, change in enumerate(changes)]
    assert sum(exact).tolist() == [2.0, 9.0]


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_rounds_of_an_update_make_of_the_state_what_one_round_does(is_deterministic):
    pending = PendingSums(rules=RULES)
    for task, num_records, state in [
        (1, 32, array(32, 3, 6, 7, 0)),
        (2, 13, array(13, 0, 3, 9, 0)),
        (3, 3, array(3, 0, 3, 8, 0)),
    ]:
        key = {"key": task} if is_deterministic else {}
        pending.add([OfferedMinibatch(task, 1, 0, num_records)], (array(1.0), state), **key)
    dense, state = pending.means([1, 2, 3] if is_deterministic else [0])
    assert dense == 1.0
    np.testing.assert_allclose(state, [48.0, 2.0, 5.0, 8.0, 0.0], rtol=1e-6)
    assert state[[0, 3]].tolist() == [48.0, 8.0]


def test_a_model_without_such_state_needs_no_second_reduction():
    assert RULES.has_exact
    assert not NO_RULES.has_exact
    assert not StateRules.of([(range(4), 0.99)]).has_exact

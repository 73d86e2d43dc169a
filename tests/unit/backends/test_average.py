import math

import numpy as np
import pytest

from elasticdl.backends.average import Average, EvaluationLoss, mean
from elasticdl.errors import ModelError


def test_states_of_two_workers_add_to_the_mean_of_all_their_values():
    one, other = Average("m"), Average("m")
    one.add(np.array([1.0, 2.0, 3.0]), num_records=3)
    other.add(np.array([6.0]), num_records=1)
    assert mean([one.state()[0] + other.state()[0]]) == 3.0


def test_one_number_counts_for_all_records_of_its_minibatch():
    average = Average("m")
    average.add(np.array(4.0), num_records=3)
    average.add(np.array(8.0), num_records=1)
    assert mean(average.state()) == 5.0


def test_weights_multiply_and_are_those_of_the_first_axes():
    average = Average("m")
    values = np.array([[1.0, 2.0], [3.0, 4.0]])
    mask, weights = np.array([[1, 0], [1, 1]]), np.array([2.0, 1.0])
    average.add(values, 2, {"a mask": mask, "sample weights": weights})
    assert mean(average.state()) == (2 * 1.0 + 3.0 + 4.0) / (2 + 1 + 1)


def test_of_nothing_there_is_no_mean():
    average = Average("m")
    average.add(np.zeros(0), num_records=0)
    assert math.isnan(mean(average.state()))
    assert mean(average.state(), empty=0.0) == 0.0


def test_what_is_no_number_and_weights_that_do_not_fit_are_refused_by_name():
    with pytest.raises(ModelError, match=r"'m' must return numbers, found values of type <U4"):
        Average("m").add(np.array("good"), num_records=1)
    with pytest.raises(ModelError, match=r"a mask of shape \(3,\) cannot be applied"):
        Average("m").add(np.ones(2), 2, {"a mask": np.ones(3)})


def test_the_loss_of_an_evaluation_is_left_out_where_a_minibatch_has_none_unless_it_is_watched():
    def fails():
        raise ModelError("labels are None")

    loss = EvaluationLoss()
    assert loss.states() == {}
    loss.add(lambda: np.array([1.0, 3.0]), 3)
    loss.add(lambda: 6.0, 1)
    assert EvaluationLoss.beside({"auc": 0.5}, loss.states()) == {"auc": 0.5, "loss": 3.0}
    loss.add(fails, 2)
    assert EvaluationLoss.beside({"auc": 0.5}, loss.states()) == {"auc": 0.5}
    with pytest.raises(ModelError, match="labels are None"):
        EvaluationLoss(is_needed=True).add(fails, 2)

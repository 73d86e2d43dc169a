"""What is told of a model at the start and in the summary, where it applies."""

import numpy as np
import pytest

from elasticdl.backends.base import (
    Initializer,
    OptimizerSpec,
    TableDescription,
    VariableDescription,
)
from elasticdl.packages.frameworks.model_notes import of_endless, of_frozen, of_moved, of_schedule

SGD, ADAM = OptimizerSpec("sgd"), OptimizerSpec("adam")
RANDOM = Initializer("uniform", {"low": -1.0, "high": 2.0})
ZEROS = Initializer("constant", {"value": 0.0})


def test_an_optimizer_that_is_another_one_of_moved_layers_is_told():
    (text,) = of_moved(["a", "b"], ADAM, "Adam")
    assert "Embedding a, b is moved" in text
    assert "there Adam changes the rows of a minibatch alone" in text
    (text,) = of_moved(["a"], SGD, "SGD")
    assert "SGD" not in text
    decayed = OptimizerSpec("sgd", {"weight_decay": 0.1})
    assert "there SGD changes" in next(of_moved(["a"], decayed, "SGD"))
    assert not [*of_moved([], ADAM, "Adam")]


@pytest.mark.parametrize(
    ("settings", "is_told"),
    [
        ({"trainable": False}, True),
        ({"trainable": True}, False),
        ({"trainable": False, "given_rows": True}, False),
        ({"trainable": False, "initializer": ZEROS}, False),
    ],
)
def test_what_ids_read_as_that_a_frozen_random_table_does_not_know_is_told(settings, is_told):
    table = TableDescription("t", 2, **{"initializer": RANDOM, "optimizer": SGD, **settings})
    told = [*of_frozen([table])]
    assert len(told) == is_told
    assert all("read as 0.5, the centre of its initializer" in text for text in told)


def test_state_that_begins_with_inf_is_told():
    state = [
        VariableDescription("low", (2,), 0, momentum=0.0),
        VariableDescription("count", (), 2),
        VariableDescription("last", (), 3, momentum=0.0),
    ]
    (text,) = of_endless(state, np.array([np.inf, 1.0, np.inf, 0.0], np.float32))
    assert "state 'low' begins with inf" in text


@pytest.mark.parametrize(
    ("schedule", "is_told"), [(lambda epoch: 1.0, True), (lambda version: 1.0, False)]
)
def test_a_schedule_of_epochs_is_told_that_it_is_given_updates(schedule, is_told):
    assert len([*of_schedule(schedule)]) == is_told

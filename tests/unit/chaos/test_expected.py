"""Expected minibatches are those that a worker makes; the models add up what is expected."""

import numpy as np
import pytest

from elasticdl.backends.numpy import NumpyTrainer
from elasticdl.data.base import Metadata, Records
from elasticdl.job import Mode
from elasticdl.model_spec import ModelSpec
from elasticdl.worker.records import task_seed
from model_zoo.counting import model as counting
from model_zoo.counting import visits
from scripts.chaos.expected import minibatches, sums
from scripts.chaos.job import JOB_SEED, MINIBATCH_SIZE

IDS = np.random.default_rng(0).integers(100, size=(450, 4))


def trainer(module):
    spec = ModelSpec(module.forward, None, module.optimizer, module.feed, None, None, None, None)
    return NumpyTrainer(spec, module.forward(), Metadata(), seed=0)


def fed(task, ids):
    """Return the minibatches that a worker makes of a task."""
    records = Records(0, [" ".join(map(str, record)).encode() for record in ids.tolist()])
    seed = task_seed(JOB_SEED, task)
    return trainer(counting).minibatches(iter([records]), Mode.TRAINING, MINIBATCH_SIZE, seed)


def test_expected_minibatches_are_those_of_a_worker():
    made = [
        minibatch.features
        for task, ids in enumerate((IDS[:400], IDS[400:], IDS[:400], IDS[400:]))
        for minibatch in fed(task, ids)
    ]
    expected = minibatches([IDS], num_epochs=2)
    assert len(made) == len(expected)
    for ids, minibatch in zip(made, expected, strict=True):
        np.testing.assert_array_equal(ids, minibatch.ids)


@pytest.mark.parametrize("module", [counting, visits])
def test_signatures_are_those_of_the_model(module):
    for minibatch in minibatches([IDS], num_epochs=1):
        assert minibatch.signature(module.NUM_SIGNATURES) == module.signature(minibatch.ids)


def test_gradients_of_the_counting_model_add_up_to_the_sums():
    model, rows = counting.forward(), np.zeros((100, 2))
    dense = {name: np.zeros_like(value) for name, value in model.dense.items()}
    state = {name: np.zeros_like(value) for name, value in model.state.items()}
    trained = minibatches([IDS], num_epochs=1)
    for minibatch in trained:
        _, (grads,), dense_grads, changes = model.gradients(
            model.dense, [rows[minibatch.ids]], minibatch.ids, None
        )
        np.subtract.at(rows, minibatch.ids, grads)
        for name in dense:
            dense[name] -= dense_grads[name]
            state[name] += changes[name]
    expected = sums(trained, 100, counting.NUM_SIGNATURES)
    np.testing.assert_array_equal(rows, expected.rows)
    for values in (*dense.values(), *state.values()):
        np.testing.assert_array_equal(values, np.tile(expected.vector, (counting.COPIES, 1)))


def test_each_visit_has_columns_of_its_own():
    model, rows = visits.forward(), np.zeros((8, 4 * 3), np.float32)
    for number, weight in enumerate((1.0, 0.5, 0.25)):
        dense = {"rounds": np.full(1, 7.0 + number), "signatures": np.zeros(1)}
        ids = np.array([[0, 1, 2, 3]])
        _, (grads,), _, _ = model.gradients(dense, [rows[ids]], ids, None)
        rows[ids[0]] -= np.float32(weight) * grads[0]
    signature = visits.signature(np.array([[0, 1, 2, 3]]))
    for key in range(4):
        np.testing.assert_allclose(
            rows[key].reshape(4, 3),
            [
                [1, 7, signature],
                [0.5, 0.5 * 8, 0.5 * signature],
                [0.25, 0.25 * 9, 0.25 * signature],
                [0, 0, 0],
            ],
        )

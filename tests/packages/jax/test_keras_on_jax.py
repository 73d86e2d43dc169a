"""What a Keras model on JAX cannot do is said before training starts, with what to write instead.

Keras has one backend in a process, so the cases are tried in one that has JAX.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.keras,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        importlib.util.find_spec("jax") is None,
        reason="JAX is not installed; pip install 'jax>=0.10,<0.11'",
    ),
]
CASES = Path(__file__).with_name("jax_cases.py")
SAID = {
    "tf_in_the_model": "write them with keras.ops",
    "tf_in_the_loss": "write them with keras.ops",
    "strings": "feed gives strings (features words), and JAX has none",
    "ragged": "feed gives a tf.RaggedTensor (features words)",
    "keep_names": "has keep_names, which is not supported with Keras on JAX",
    "ids_of_rows": "its ids depend on a parameter, or on rows",
    "float16": "use the policy mixed_bfloat16 or float32",
    "large_numbers": "features ids has the number 1099511627776, and JAX computes with int32",
    "own_rule": "one of your own, whose rule is read from a graph of TensorFlow",
    "run_eagerly": "look into them by jax.debug.print",
    "counted_in_python": "which only Python has, and the step depends on it",
    "not_in_tensorflow": "cannot run what JAX compiles of it",
    "of_one_size": "JAX cannot trace it for any number of records",
    "no_class": "a label is 4, and the model's output has 4 classes, 0 to 3",
    "sums_that_do_not_add": "in a way that does not add up over workers",
}


@pytest.fixture(scope="module")
def said():
    done = subprocess.run(
        [sys.executable, str(CASES)],
        capture_output=True,
        text=True,
        timeout=250,
        env={**os.environ, "KERAS_BACKEND": "jax"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", SAID)
def test_what_cannot_work_is_refused_with_what_to_write(said, case):
    assert SAID[case] in said[case]


def test_what_is_not_trained_and_what_moves_is_described(said):
    described = said["described"]
    assert described["without_gradient"] == ["unused"]
    assert described["momenta"] == {"moving_mean": 0.99, "moving_variance": 0.99}
    assert described["same_draws"], "a minibatch drops out the same units each time"
    assert described["other_draws"], "another one drops out others"


def test_a_trainer_has_no_method_for_what_jax_cannot(said):
    assert said["described"]["abilities"] == ["ChecksData", "ChecksExport"]


def test_losses_of_keras_for_two_outputs_are_weighed_and_added(said):
    assert said["two_outputs"] == pytest.approx(0.5 * 1 + 2.0 * 3)


def test_a_model_is_exported_whose_features_have_any_lengths(said):
    assert said["any_length"] == [[1 + 2 + 3 + 4 + 5 + 6]]


def test_large_ids_are_taken_in_minibatches_of_every_width(said):
    assert said["another_width"] == (1 - 3) ** 2


def test_a_feed_that_pads_to_many_widths_is_told_to_give_one(said):
    (line,) = said["many_widths"]
    assert "minibatches have 8 different shapes so far" in line
    assert "to_tensor(shape=...)" in line

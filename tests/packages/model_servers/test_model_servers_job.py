"""Towers of Keras on model servers: counted once whoever is killed, trained as in the worker."""

import numpy as np
import pytest
import tensorflow as tf

from tests.elastic.running_job import run
from tests.packages.model_servers.towers_job import (
    IDS,
    NUM_IDS,
    STRATEGIES,
    check_counts_of_a_struck_job,
    comparable,
    rows_of,
    words,
    write,
)

pytestmark = [pytest.mark.keras, pytest.mark.timeout(600)]  # seven processes load TensorFlow


@pytest.mark.long
def test_what_is_in_a_tower_is_counted_once_whoever_is_killed(tmp_path):
    expected = check_counts_of_a_struck_job(tmp_path, "towers_keras", STRATEGIES[1], num_epochs=3)
    loaded = tf.saved_model.load(tmp_path / "model")
    (within,) = loaded.used_variables
    np.testing.assert_array_equal(within.numpy(), expected)


@pytest.mark.long
def test_a_model_is_trained_as_with_its_tower_within_the_worker(tmp_path):
    predicted = []
    for number in (0, 2):
        folder = tmp_path / str(number)
        write(folder, "clicks_keras")
        run(words(folder, "clicks_keras", num_model_servers=number, **comparable(STRATEGIES[0])))
        loaded = tf.saved_model.load(folder / "model")
        ids = np.arange(NUM_IDS // IDS * IDS).reshape(-1, IDS)
        predicted.append(loaded.serve(tf.constant(ids)).numpy())
    assert predicted[0].std() > 0.01
    np.testing.assert_allclose(predicted[1], predicted[0], atol=1e-5)


@pytest.mark.long
def test_a_checkpoint_of_a_job_with_model_servers_begins_one_without(tmp_path):
    first, then = tmp_path / "first", tmp_path / "then"
    counts = write(first, "towers_keras")
    write(then, "towers_keras")
    checkpoints, export = first / "checkpoints", then / "tables"
    run(words(first, "towers_keras", num_model_servers=1, checkpoint_dir=checkpoints))
    begun = {"checkpoint_dir_for_init": checkpoints, "export_tables": export}
    run(words(then, "towers_keras", **begun))
    np.testing.assert_array_equal(rows_of(then, "met")[:, 0], 2 * counts)
    (within,) = tf.saved_model.load(then / "model").used_variables
    np.testing.assert_array_equal(within.numpy(), [2 * counts.sum()] * 2)

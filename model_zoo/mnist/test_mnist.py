import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from elasticdl import Mode
from elasticdl.config import ModelSection
from elasticdl.data.base import Metadata
from elasticdl.data.example import encode_examples
from elasticdl.model_spec import load_model_spec

ZOO = Path(__file__).parents[1]
NUM_DIGITS = 640

pytestmark = [
    pytest.mark.keras,
    pytest.mark.timeout(600),
    # Keras warns of a dict given to a model of one input, and finds the input by its name.
    pytest.mark.filterwarnings(r"ignore:[\s\S]*The structure of `inputs`:UserWarning"),
]


@pytest.fixture(scope="module")
def spec():
    return load_model_spec(ModelSection(model_zoo=ZOO, model_def="mnist.model.custom_model"))


@pytest.fixture(scope="module")
def digits():
    """Handwritten digits of 8 x 8 pixels, enlarged and framed to the 28 x 28 of MNIST."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8)[:NUM_DIGITS] * (255 / 16)
    enlarged = images.repeat(3, axis=1).repeat(3, axis=2)
    return np.pad(enlarged, ((0, 0), (2, 2), (2, 2))).astype(np.uint8), labels[:NUM_DIGITS]


@pytest.fixture(scope="module")
def records(digits):
    images, labels = digits
    return encode_examples(
        {
            "image": images.reshape(len(images), -1).astype(np.float32),
            "label": labels.astype(np.int64),
        }
    )


def test_feed_gives_images_between_0_and_1_and_a_label(spec, digits, records):
    import tensorflow as tf

    dataset = spec.feed(tf.data.Dataset.from_tensor_slices(records), Mode.EVALUATION, Metadata())
    features, label = next(iter(dataset))

    np.testing.assert_allclose(features["image"], digits[0][0] / 255.0, atol=1e-6)
    assert label.numpy().tolist() == [digits[1][0]]


@pytest.mark.long
def test_learns_in_a_plain_python_session(spec, records):
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(0)
    model = spec.model()
    optimizer = spec.optimizer()
    dataset = tf.data.Dataset.from_tensor_slices(records)
    accuracy = spec.eval_metrics_fn()["accuracy"]

    training = spec.feed(dataset, Mode.TRAINING, Metadata()).batch(32).repeat(3)
    for features, labels in training:
        with tf.GradientTape() as tape:
            loss = spec.loss(labels, model(features, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    features, labels = next(iter(spec.feed(dataset, Mode.EVALUATION, Metadata()).batch(NUM_DIGITS)))

    assert np.mean(accuracy(labels, model(features, training=True))) > 0.8


@pytest.mark.long
def test_trains_by_all_reduce(spec, digits, tmp_path, strategy):
    train_and_check(digits, tmp_path, "mnist.model.custom_model", strategy)


@pytest.mark.long
@pytest.mark.parametrize(
    "model_def", ["mnist.mnist_functional_api.custom_model", "mnist.mnist_subclass.CustomModel"]
)
def test_trains_by_its_other_names(spec, digits, tmp_path, model_def):
    train_and_check(digits, tmp_path, model_def)


def train_and_check(digits, tmp_path, model_def, flags=()):
    from mnist.prepare import write

    num_training, num_validation = write(digits, tmp_path, validation_share=0.1)
    command = [
        sys.executable,
        "-c",
        "from elasticdl.cli.main import main; main()",
        "train",
        f"--model_zoo={ZOO}",
        f"--model_def={model_def}",
        f"--training_data={tmp_path / 'train'}",
        f"--validation_data={tmp_path / 'validation'}",
        "--minibatch_size=32",
        "--num_epochs=2",
        f"--output={tmp_path / 'export'}",
        f"--summary={tmp_path / 'summary.json'}",
        *flags,
    ]

    done = subprocess.run(command, capture_output=True, text=True, timeout=550)

    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (num_training, num_validation) == (576, 64)
    assert [epoch["trained_once"] for epoch in summary["ledger"]] == [576, 576]
    assert 0.0 <= summary["metrics"]["accuracy"] <= 1.0
    assert (tmp_path / "export" / "saved_model.pb").exists()


def test_converter_reads_the_original_files(spec, digits, tmp_path):
    from mnist.prepare import read_idx

    images, labels = digits
    (tmp_path / "images.gz").write_bytes(
        gzip.compress(_header(0x803, len(images), 28, 28) + images.tobytes())
    )
    (tmp_path / "labels.gz").write_bytes(
        gzip.compress(_header(0x801, len(labels)) + labels.astype(np.uint8).tobytes())
    )

    found_images, found_labels = read_idx(tmp_path / "images.gz", tmp_path / "labels.gz")

    np.testing.assert_array_equal(found_images, images)
    np.testing.assert_array_equal(found_labels, labels)


def test_converter_refuses_files_in_the_wrong_order(spec, digits, tmp_path):
    from mnist.prepare import read_idx

    path = tmp_path / "labels.gz"
    path.write_bytes(gzip.compress(_header(0x801, 0)))

    with pytest.raises(SystemExit, match=r"labels.gz starts with 0x801, expected 0x803"):
        read_idx(path, path)


def _header(*numbers):
    return b"".join(number.to_bytes(4, "big") for number in numbers)

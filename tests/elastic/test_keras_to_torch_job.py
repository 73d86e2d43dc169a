"""A table that a job in Keras has trained goes on in a job in PyTorch, from the checkpoint."""

import json
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

pytestmark = [pytest.mark.torch, pytest.mark.keras, pytest.mark.timeout(600)]

NUM_RECORDS, NUM_IDS, FIELDS = 4096, 500, 4

KERAS = """
import keras
import tensorflow as tf
from elasticdl.layers import Embedding

def forward():
    ids = keras.Input((4,), dtype="int64", name="ids")
    rows = Embedding(1, embeddings_initializer="zeros", name="weights")(ids)
    return keras.Model({"ids": ids}, keras.ops.sum(rows, axis=1))

def loss(labels, predictions):
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, predictions))

def optimizer(lr=0.2):
    return keras.optimizers.Adagrad(lr)

def feed(dataset, mode, metadata):
    def parse(line):
        values = tf.strings.to_number(tf.strings.split(line, ","), tf.float32)
        values = tf.ensure_shape(values, [5])
        features = {"ids": tf.cast(values[:4], tf.int64)}
        return features if mode == "prediction" else (features, values[4:])
    return dataset.map(parse)
"""

TORCH = """
import numpy as np
import torch
from elasticdl import Initializer
from elasticdl.layers.torch import Embedding

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        zeros = Initializer("constant", {"value": 0.0})
        self.weights = Embedding(None, 1, initializer=zeros)

    def forward(self, ids):
        return self.weights(ids).sum(1)

def forward():
    return Model()

def loss(labels, predictions):
    return torch.nn.functional.binary_cross_entropy_with_logits(predictions, labels)

def optimizer(parameters, lr=0.2):
    return torch.optim.Adagrad(parameters, lr=lr)

def feed(dataset, mode, metadata):
    values = np.array([line.split(b",") for line in dataset.values]).astype(np.float32)
    ids = values[:, :4].astype(np.int64)
    return ids if mode == "prediction" else (ids, values[:, 4:])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keras-to-torch")
    (folder / "in_keras.py").write_text(KERAS)
    (folder / "in_torch.py").write_text(TORCH)
    rng = np.random.default_rng(0)
    ids = rng.integers(NUM_IDS, size=(NUM_RECORDS, FIELDS))
    labels = (rng.normal(size=NUM_IDS)[ids].sum(1) > 0).astype(int)
    lines = [",".join(map(str, [*row, label])) for row, label in zip(ids, labels, strict=True)]
    (folder / "data.txt").write_text("\n".join(lines) + "\n")
    return folder


def run(folder, name, model, *flags):
    data = {"train": "training_data", "predict": "prediction_data"}[name]
    summary = folder / "summary.json"
    words = [
        "-m",
        "elasticdl.cli.main",
        name,
        f"--model_zoo={folder}",
        f"--model_def={model}.forward",
        f"--{data}=data.txt",
        "--minibatch_size=64",
        f"--summary={summary}",
        *flags,
    ]
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(summary.read_text())


def predicted(folder):
    with np.load(next(folder.iterdir())) as arrays:
        return arrays["output"]


def test_predictions_are_equal_and_training_goes_on(folder):
    keras = run(folder, "train", "in_keras", "--checkpoint_dir=ck", "--num_epochs=2")
    run(folder, "predict", "in_keras", "--checkpoint_dir_for_init=ck", "--output=by-keras")
    begin = ["--pretrained_rows=weights=ck"]
    run(folder, "train", "in_torch", *begin, "--learning_rate=1e-30", "--output=model")
    run(folder, "predict", "in_torch", "--saved_model=model", "--output=by-torch")

    np.testing.assert_allclose(
        predicted(folder / "by-torch"), predicted(folder / "by-keras"), atol=1e-5
    )
    onward = run(folder, "train", "in_torch", *begin, "--learning_rate=0.02")
    assert onward["loss"] < keras["loss"]

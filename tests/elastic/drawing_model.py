"""A network that draws (dropout) and looks at its minibatch (batch norm), in Keras or PyTorch.

Each worker writes down the loss of every minibatch that it hands in, and a hash of weights and
state after every update. `settings.json` beside this file says
which framework it is, and how long a step takes at least.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
SETTINGS = json.loads((HERE / "settings.json").read_text())

if SETTINGS["framework"] == "keras":
    import keras
    import tensorflow as tf

    def custom_model():
        """Return the network."""
        layers = [
            keras.Input((8,)),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1),
        ]
        return keras.Sequential(layers)

    def loss(labels, predictions):
        """Return the mean square."""
        return tf.reduce_mean(tf.square(labels - predictions))

    def optimizer(lr=0.01):
        """Return one with slots."""
        return keras.optimizers.Adam(lr)

    def feed(dataset, mode, metadata):
        """Parse a vector and its label."""

        def parse(record):
            numbers = tf.io.decode_raw(record, tf.float32)
            return numbers[:8], numbers[8:9]

        return dataset.map(parse).shuffle(100)

else:
    import torch

    def custom_model():
        """Return the network."""
        layers = [
            torch.nn.Linear(8, 32),
            torch.nn.ReLU(),
            torch.nn.BatchNorm1d(32),
            torch.nn.Dropout(0.3),
            torch.nn.Linear(32, 1),
        ]
        return torch.nn.Sequential(*layers)

    def loss(labels, predictions):
        """Return the mean square."""
        return torch.nn.functional.mse_loss(predictions, labels)

    def optimizer(parameters):
        """Return one with slots."""
        return torch.optim.Adam(parameters, lr=0.01)

    def feed(records, mode, metadata):
        """Parse vectors and their labels."""
        numbers = np.stack([np.frombuffer(record, np.float32) for record in records])
        return numbers[:, :8], numbers[:, 8:9]


def _write_down(name, *values):
    with (HERE / "seen" / f"{name}-{os.getpid()}").open("a") as file:
        file.write(" ".join(map(str, values)) + "\n")


def _watch():
    from elasticdl.packages.all_reduce.exchange import RingExchange
    from elasticdl.packages.all_reduce.replica import Replica

    push, count = RingExchange.push, Replica.count_each

    def push_and_write(exchange, pulled, result, rate, lease, index, *args):
        time.sleep(SETTINGS["seconds"])  # the tempo of the job
        _write_down("losses", lease.task.id, index, float(result.loss).hex())
        return push(exchange, pulled, result, rate, lease, index, *args)

    def count_and_write(replica, *args):
        before = replica.version
        count(replica, *args)
        if replica.version != before:
            pulled = replica.client.pull([], training=False)
            digest = hashlib.sha256(pulled.dense.tobytes() + pulled.state.tobytes()).hexdigest()
            _write_down("updates", replica.version, digest)

    RingExchange.push, Replica.count_each = push_and_write, count_and_write


if "worker" in " ".join(sys.orig_argv):
    _watch()

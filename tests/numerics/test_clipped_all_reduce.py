"""All-reduce with an optimizer that clips trains as one process of plain Keras.

Two ranks, each with a part of every minibatch, reduce through a real ring and update real replicas.
Plain Keras computes the gradient of the whole minibatch, and clips that. Parts differ in size.
"""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl._core import PsServer, RingListener
from elasticdl.data.base import Metadata, Records
from elasticdl.job import Mode
from elasticdl.model_spec import ModelSpec
from elasticdl.packages.all_reduce.collective import Group, WorldView, form_ring
from elasticdl.packages.all_reduce.collective.rounds import OfferedMinibatch
from elasticdl.packages.all_reduce.replica import Replica
from elasticdl.packages.keras.trainer import KerasTrainer

pytestmark = [pytest.mark.keras, pytest.mark.timeout(300)]

TOKEN = bytes(32)
SIZES = (5, 11)  # records of each rank's part
UPDATES = 40

CLIPPED = {
    "clipnorm": lambda: keras.optimizers.SGD(0.1, momentum=0.5, clipnorm=0.3),
    "global_clipnorm": lambda: keras.optimizers.SGD(0.1, momentum=0.5, global_clipnorm=0.5),
    "clipvalue": lambda: keras.optimizers.Adam(0.01, clipvalue=0.02),
}


def model():
    x = keras.Input((3,), name="x")
    h = keras.layers.Dense(8, activation="tanh", name="hidden")(x)
    return keras.Model(x, keras.layers.Dense(1, name="out")(h))


def loss(labels, predictions):
    return tf.reduce_mean(tf.square(labels - predictions))


def feed(dataset, mode, metadata):
    return dataset.map(lambda r: (r["x"], r["y"]))


def records(rng, size):
    x = rng.normal(size=(size, 3)).astype(np.float32)
    return {"x": x, "y": (3 * x.sum(1, keepdims=True) + 5).astype(np.float32)}


def together(work):
    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(250)


@pytest.mark.parametrize("name", CLIPPED)
def test_two_ranks_make_the_updates_of_plain_keras_on_all_their_records(name):
    spec = ModelSpec(model, loss, CLIPPED[name], feed, None, None, None, None)
    trainer = KerasTrainer(spec, Metadata(), seed=5, embedding_threshold_bytes=0)
    rng = np.random.default_rng(0)
    parts = [[records(rng, size) for size in SIZES] for _ in range(UPDATES)]

    def minibatch(columns):
        given = iter([Records(0, columns=columns)])
        (found,) = trainer.minibatches(given, Mode.TRAINING, len(columns["x"]), 0)
        return found

    description = trainer.build(minibatch(parts[0][0]))
    replicas = [Replica(lambda store: PsServer(store, "127.0.0.1", 0, TOKEN), None) for _ in SIZES]
    for replica in replicas:
        replica.declare(description, *trainer.initial_values())
        replica.begin("")
    plain = keras.models.clone_model(model())
    for variable, place in zip(plain.trainable_variables, description.dense, strict=True):
        size = int(np.prod(place.shape))
        values = trainer.initial_values()[0][place.offset : place.offset + size]
        variable.assign(values.reshape(place.shape))
    optimizer = CLIPPED[name]()
    optimizer.build(plain.trainable_variables)
    listeners = [RingListener("127.0.0.1", 0, TOKEN) for _ in SIZES]
    world = tuple(listener.address for listener in listeners)
    groups = [None, None]

    def join(rank):
        ring = form_ring(WorldView(1, rank, world), listeners[rank], timeout_seconds=100)
        groups[rank] = Group(ring)

    together(join)

    num_clipped = 0
    for index, both in enumerate(parts):
        steps = []
        for replica, columns in zip(replicas, both, strict=True):
            pulled = replica.client.pull([], training=False)
            steps.append(trainer.train_step(minibatch(columns), [], pulled.dense, pulled.state))
        counted = [OfferedMinibatch(rank, 1, index, size) for rank, size in enumerate(SIZES)]

        def reduce(rank, steps=steps, counted=counted):
            given = steps[rank].dense_grad, steps[rank].state_delta
            out = tuple(np.empty_like(values) for values in given)
            groups[rank].mean(given, out, SIZES[rank])
            replicas[rank].count(counted, trainer.learning_rate(replicas[rank].version), out)

        together(reduce)
        assert [replica.version for replica in replicas] == [index + 1] * 2

        x = np.concatenate([columns["x"] for columns in both])
        y = np.concatenate([columns["y"] for columns in both])
        with tf.GradientTape() as tape:
            value = loss(y, plain(x, training=True))
        gradients = tape.gradient(value, plain.trainable_variables)
        clipped = optimizer._clip_gradients(gradients)
        num_clipped += any(
            not np.array_equal(c, g) for c, g in zip(clipped, gradients, strict=True)
        )
        optimizer.apply(gradients, plain.trainable_variables)

    expected = np.concatenate([v.numpy().ravel() for v in plain.trainable_variables])
    found = [replica.client.pull([], training=False).dense for replica in replicas]
    assert num_clipped > UPDATES / 4
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=2e-5)
    assert not np.allclose(expected, trainer.initial_values()[0], atol=0.1)
    for group, replica in zip(groups, replicas, strict=True):
        group.close()
        replica.close()

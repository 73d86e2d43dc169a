"""A training loop of its own in TensorFlow that counts how often each record was trained.

It counts as `script_loop.py` does: each update adds 1 to the weight of every record in it.
"""

import argparse
import hashlib
import json
import time
from pathlib import Path

import keras
import tensorflow as tf

import elasticdl.controller

parser = argparse.ArgumentParser()
parser.add_argument("--num_records", type=int)
parser.add_argument("--seconds", type=float)
parser.add_argument("--finals", type=Path)
words = parser.parse_args()


class Visits(keras.Model):
    """A count of each record; what is not trained counts minibatches."""

    def __init__(self):
        super().__init__()
        self.visits = self.add_weight((words.num_records,), "zeros", name="visits")
        self.minibatches = self.add_weight(
            (), "zeros", "int32", trainable=False, name="minibatches"
        )

    def call(self, numbers, training=False):
        if training:
            self.minibatches.assign_add(1)
        return -tf.reduce_mean(tf.gather(self.visits.value, numbers))


if __name__ == "__main__":
    controller = elasticdl.controller.init()
    model = Visits()
    model(tf.constant([0]))
    adam = keras.optimizers.Adam(1.0, beta_1=0.0, beta_2=0.0, epsilon=1e-30)
    optimizer = controller.wrap(model, adam)

    @tf.function(reduce_retracing=True)
    def step(numbers):
        with tf.GradientTape() as tape:
            loss = model(numbers, training=True)
        return loss, tape.gradient(loss, model.trainable_variables)

    places = set()
    for records in controller.minibatches():
        if not (words.finals / "hurry").exists():
            time.sleep(words.seconds)  # the tempo of the job: it lasts until a worker is missed
        loss, gradients = step(tf.constant([int(record) for record in records]))
        pairs = zip(gradients, model.trainable_variables, strict=True)
        optimizer.apply_gradients(pairs, loss=loss)
        assert 0 <= controller.rank < controller.world_size
        places.add((controller.rank, controller.world_size))
    (words.finals / f"places-{controller.worker_id}").write_text(json.dumps(sorted(places)))
    final = model.visits.numpy().tobytes() + model.minibatches.numpy().tobytes()
    (words.finals / str(controller.worker_id)).write_text(hashlib.sha256(final).hexdigest())

"""Plain Keras `fit` with a model file of the zoo: one run of one side of a benchmark.

    PYTHONPATH=model_zoo python benchmarks/peers/keras_fit.py --model_def=flights.deepfm \
        --source=records FILE ...

reads TFRecord files and prints the records/s of the steps after the first ones, as JSON. The jobs
use the same model file, unchanged. `fit` has all cores and TensorFlow's own threads (or
`--threads`). It runs without XLA, since XLA is slower here (`--jit` turns it on).

--source=records: `tf.data.TFRecordDataset` reads TFRecord files. The records go through the model
    file's `feed`, then `batch` and `prefetch`.
--source=parallel: the same, but all calls of `map` in `feed` get `num_parallel_calls=AUTOTUNE`, as
    a user might write them.
--source=by_hand: the pipeline of an expert instead of `feed`, see `by_hand.py`.
--source=memory: parsed minibatches from `feed`, held in memory.

Tables of `elasticdl.layers.Embedding` are `keras.layers.Embedding` here, of any size. They are
weights of TensorFlow in this process, and Keras' form of the model file's optimizer trains them.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import math
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf
from by_hand import minibatches as by_hand

import elasticdl.layers
from elasticdl import Mode
from elasticdl.data.base import Metadata

SOURCES = ("records", "parallel", "by_hand", "memory")


class Stopwatch(keras.callbacks.Callback):  # type: ignore[misc]  # keras has no types
    """Measures from the end of step `first` to the end of the last one."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self._first = first
        self._step = 0
        self._started = 0.0
        self.seconds = 0.0
        self.steps = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count a step."""
        self._step += 1
        now = time.perf_counter()
        if self._step == self._first:
            self._started = now
        elif self._step > self._first:
            self.seconds, self.steps = now - self._started, self._step - self._first


def plain_embedding(output_dim: int, input_dim: int, **settings: Any) -> Any:
    """Return Keras' own layer in the place of elasticdl's."""
    return keras.layers.Embedding(input_dim, output_dim, **settings)


def make_dataset(
    model_def: str, feed: Any, source: str, files: list[Path], minibatch_size: int
) -> Any:
    """Return the minibatches of one side."""
    records = tf.data.TFRecordDataset([str(path) for path in files])
    if source == "by_hand":
        return by_hand(model_def, records, minibatch_size).prefetch(tf.data.AUTOTUNE)
    if source == "parallel":
        plain_map = records.map
        records.map = functools.partial(plain_map, num_parallel_calls=tf.data.AUTOTUNE)
    minibatches = feed(records, Mode.TRAINING, Metadata()).batch(minibatch_size)
    if source == "memory":
        minibatches = minibatches.cache()
        for _ in minibatches:  # parse everything now
            pass
    return minibatches.repeat().prefetch(tf.data.AUTOTUNE)


def main() -> None:
    """Run one side once."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_def", required=True, help="module of the zoo")
    parser.add_argument("--function", default="forward", help="that makes the model")
    parser.add_argument("--optimizer", default="optimizer", help="function of the module")
    parser.add_argument("--source", choices=SOURCES, required=True)
    parser.add_argument("--minibatch_size", type=int, default=512)
    parser.add_argument("--warm_up_steps", type=int, default=40)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--threads", type=int, default=0, help="0: TensorFlow's own choice")
    parser.add_argument("--jit", action="store_true", help='jit_compile="auto", Keras\' default')
    parser.add_argument("files", type=Path, nargs="+")
    args = parser.parse_args()
    if args.threads:
        tf.config.threading.set_intra_op_parallelism_threads(args.threads)
        tf.config.threading.set_inter_op_parallelism_threads(args.threads)
    keras.utils.set_random_seed(0)
    elasticdl.layers.Embedding = plain_embedding  # before the model file takes it from there
    module = importlib.import_module(args.model_def)
    dataset = make_dataset(
        args.model_def, module.feed, args.source, args.files, args.minibatch_size
    )
    model = getattr(module, args.function)()
    label_type = dataset.element_spec[1].dtype

    def loss(labels: Any, predictions: Any) -> Any:  # `fit` has made the labels floats
        return module.loss(tf.cast(labels, label_type), predictions)

    optimizer = getattr(module, args.optimizer)()
    model.compile(optimizer, loss, jit_compile="auto" if args.jit else False)
    stopwatch = Stopwatch(args.warm_up_steps)
    steps = args.warm_up_steps + args.steps
    model.fit(dataset, steps_per_epoch=steps, epochs=1, verbose=0, callbacks=[stopwatch])
    rate = stopwatch.steps * args.minibatch_size / stopwatch.seconds
    trained = sum(math.prod(weight.shape) for weight in model.trainable_weights)
    found = {"records_per_second": rate, "steps": stopwatch.steps, "trained_weights": trained}
    print(json.dumps(found))


if __name__ == "__main__":
    main()

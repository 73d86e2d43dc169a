"""The Criteo DeepFM in one process: one `tf.function` a step, minibatches in memory.

    PYTHONPATH=model_zoo python benchmarks/peers/criteo_tf_function.py --optimizer=sgd

prints the records/s as JSON. The tables are plain variables, and only touched rows are updated.
`--optimizer=none` only computes. `--rows=gathered` then gathers rows from the tables inside the
step. `--rows=given` takes rows as an input and returns their gradients, like a worker whose tables
are in other processes.
"""

from __future__ import annotations

import argparse
import json
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from criteo_tensorflow import DIM, Updates, loss, make_dense, make_tables, minibatches, rate

from criteo.fields import SIZES


def main() -> None:
    """Run one side once."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--optimizer", choices=("sgd", "adagrad", "adam", "none"), default="sgd")
    parser.add_argument("--rows", choices=("gathered", "given"), default="gathered")
    parser.add_argument("--minibatch_size", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--threads", type=int, help="of TensorFlow [default: its own choice]")
    parser.add_argument("--xla", action="store_true")
    args = parser.parse_args()
    if args.threads:
        tf.config.threading.set_intra_op_parallelism_threads(args.threads)
        tf.config.threading.set_inter_op_parallelism_threads(args.threads)
    dense = make_dense()
    size = args.minibatch_size

    if args.rows == "given":

        @tf.function(jit_compile=args.xla)
        def step(numbers, vectors, weights, labels):  # type: ignore[no-untyped-def]
            with tf.GradientTape() as tape:
                tape.watch([vectors, weights])
                value = loss(dense, numbers, vectors, weights, labels)
            return value, tape.gradient(value, [*dense, vectors, weights])

        vectors = np.full((size, len(SIZES), DIM), 0.01, np.float32)
        weights = np.zeros((size, len(SIZES), 1), np.float32)
        data = [
            [tf.constant(x) for x in (numbers, vectors, weights, labels)]
            for numbers, _ids, labels in minibatches(20, size)
        ]
    else:
        variables = [*dense, *make_tables()]
        updates = None if args.optimizer == "none" else Updates(args.optimizer, variables)

        @tf.function(jit_compile=args.xla)
        def step(numbers, ids, labels):  # type: ignore[no-untyped-def]
            with tf.GradientTape() as tape:
                rows = [tf.gather(table, ids) for table in variables[-2:]]
                value = loss(dense, numbers, *rows, labels)
            gradients = tape.gradient(value, variables)
            if updates is None:
                return value, gradients
            updates.apply(gradients)
            return value

        data = [[tf.constant(x) for x in minibatch] for minibatch in minibatches(40, size)]

    def run(number: int) -> object:
        result = step(*data[number % len(data)])
        return (result[0] if isinstance(result, tuple) else result).numpy()

    print(json.dumps({"records_per_second": rate(run, size, args.seconds)}))


if __name__ == "__main__":
    main()

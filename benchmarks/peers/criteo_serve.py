"""Scores records with Criteo's columns by an exported model, in TensorFlow without elasticdl.

    python benchmarks/peers/criteo_serve.py EXPORT val.tfrecord scores.npz --records=100000

It works like a service: it loads the SavedModel, parses `tf.train.Example`s and calls the model.
"""

import argparse
import sys

import numpy as np
import tensorflow as tf

MINIBATCH = 4096
MISSING_NUMBER = -10  # what the model file says in its columns
COLUMNS = {f"I{n}": tf.io.FixedLenFeature([1], tf.int64, MISSING_NUMBER) for n in range(1, 14)}
COLUMNS |= {f"C{n}": tf.io.FixedLenFeature([1], tf.string, "") for n in range(1, 27)}
LABEL = {"label": tf.io.FixedLenFeature([], tf.int64)}


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("records")
    parser.add_argument("output")
    parser.add_argument("--records", dest="count", type=int, default=-1)
    args = parser.parse_args()
    sys.modules["elasticdl"] = None  # type: ignore[assignment]  # an import of it fails
    model = tf.saved_model.load(args.model)  # it holds the variables
    specs = model.serve.input_signature[0]
    labels, logits = [], []
    for records in tf.data.TFRecordDataset(args.records).take(args.count).batch(MINIBATCH):
        parsed = tf.io.parse_example(records, COLUMNS | LABEL)
        labels.append(parsed.pop("label").numpy())
        features = {name: tf.cast(parsed[name], spec.dtype) for name, spec in specs.items()}
        logits.append(tf.reshape(model.serve(features), [-1]).numpy())
    np.savez(args.output, labels=np.concatenate(labels), logits=np.concatenate(logits))


if __name__ == "__main__":
    main()

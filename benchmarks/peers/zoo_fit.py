"""Plain Keras: a model file of the zoo trained by `fit` in one process; prints its metrics.

    python benchmarks/peers/zoo_fit.py --model_def=adult.model.forward --train=... --test=...

The model, loss, optimizer and feed come from the model file. Only the readers of records are those
of a job, on the same files. All records are read once, and they are shuffled in each epoch.
"""

from __future__ import annotations

import json
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from zoo_model import load, parse, read

from elasticdl.job import Mode
from elasticdl.model_spec import ModelSpec


def main() -> None:
    """Train, and print `{"auc": 0.9, ...}`."""
    args = parse(__doc__)
    keras.utils.set_random_seed(args.seed)
    spec, given = load(args)
    model = spec.model()
    metrics = spec.eval_metrics_fn() if spec.eval_metrics_fn else {}
    assert spec.optimizer is not None
    training = fed(spec, args.train, args.data_reader_params, Mode.TRAINING).cache()
    loss = _of_labels(spec.loss, training.element_spec[1].dtype)
    model.compile(spec.optimizer(**given), loss, metrics=list(metrics.values()))
    training = training.shuffle(10_000_000, seed=args.seed).batch(args.minibatch_size)
    model.fit(training, epochs=args.num_epochs, shuffle=False, verbose=0)
    testing = fed(spec, args.test, args.data_reader_params, Mode.EVALUATION).batch(512)
    _loss, *values = model.evaluate(testing, verbose=0)
    print(json.dumps(dict(zip(metrics, values, strict=True))))


def _of_labels(loss: Any, dtype: Any) -> Any:
    """Return the loss with labels as the feed gives them: `compile` makes floats of them."""
    return lambda labels, predictions: loss(tf.cast(labels, dtype), predictions)


def fed(spec: ModelSpec, place: str, params: str, mode: Mode) -> Any:
    """Return the features and labels of some data, one element a record."""
    reader, found = read(place, params)
    chunks = list(found)
    if chunks[0].columns:
        columns = {
            name: np.concatenate([np.asarray(chunk.columns[name]) for chunk in chunks])
            for name in chunks[0].columns
        }
        records = tf.data.Dataset.from_tensor_slices(columns)
    else:
        values = [value for chunk in chunks for value in chunk.values]
        records = tf.data.Dataset.from_tensor_slices(np.array(values, dtype=object))
    return spec.feed(records, mode, reader.metadata)


if __name__ == "__main__":
    main()

"""Plain Keras: a model file of the zoo trained by `fit` in one process; prints its metrics.

    python benchmarks/peers/zoo_fit.py --model_def=adult.model.forward --train=... --test=...

The model, loss, optimizer and feed are those of the model file; nothing of a job is involved, but
that records come from the same files by the same readers. They are read once, and all of them are
shuffled in each epoch.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

from elasticdl.config import ModelSection
from elasticdl.data.open import open_reader
from elasticdl.job import Mode
from elasticdl.model_spec import ModelSpec, load_model_spec

ZOO = Path(__file__).parents[2] / "model_zoo"


def main() -> None:
    """Train, and print `{"auc": 0.9, ...}`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model_def", required=True)
    parser.add_argument("--model_params", default="")
    parser.add_argument("--train", required=True, help="data, as --training_data takes it")
    parser.add_argument("--test", required=True)
    parser.add_argument("--data_reader_params", default="")
    parser.add_argument("--minibatch_size", type=int, default=128)
    parser.add_argument("--num_epochs", type=int, default=1)
    parser.add_argument("--learning_rate", type=float, help="default: that of the model file")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    keras.utils.set_random_seed(args.seed)
    spec = load_model_spec(
        ModelSection(model_zoo=ZOO, model_def=args.model_def, model_params=args.model_params)
    )
    model = spec.model()
    metrics = spec.eval_metrics_fn() if spec.eval_metrics_fn else {}
    assert spec.optimizer is not None
    given = {} if args.learning_rate is None else {"lr": args.learning_rate}
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
    reader = open_reader(place, params)
    chunks = [chunk for shard in reader.shards() for chunk in reader.read(shard)]
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

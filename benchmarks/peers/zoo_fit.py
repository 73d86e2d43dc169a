"""Plain Keras: a model file of the zoo trained by `fit` in one process; prints its metric.

    python benchmarks/peers/zoo_fit.py --model_def=adult.model.forward --train=... --test=...

The model, loss, optimizer and feed are those of the model file; nothing of a job is involved. The
table is read once, and all of its records are shuffled in each epoch.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

from elasticdl.config import ModelSection
from elasticdl.data.base import Metadata
from elasticdl.job import Mode
from elasticdl.model_spec import ModelSpec, load_model_spec

ZOO = Path(__file__).parents[2] / "model_zoo"


def main() -> None:
    """Train, and print `{"auc": 0.9, ...}`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model_def", required=True)
    parser.add_argument("--model_params", default="")
    parser.add_argument("--train", type=Path, required=True, help="CSV file with a header")
    parser.add_argument("--test", type=Path, required=True, help="CSV file with a header")
    parser.add_argument("--minibatch_size", type=int, default=128)
    parser.add_argument("--num_epochs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    keras.utils.set_random_seed(args.seed)
    spec = load_model_spec(
        ModelSection(model_zoo=ZOO, model_def=args.model_def, model_params=args.model_params)
    )
    model = spec.model()
    metrics = spec.eval_metrics_fn() if spec.eval_metrics_fn else {}
    assert spec.optimizer is not None
    model.compile(spec.optimizer(), spec.loss, metrics=list(metrics.values()))
    training = rows(spec, args.train).cache()
    training = training.shuffle(10_000_000, seed=args.seed).batch(args.minibatch_size)
    model.fit(training, epochs=args.num_epochs, shuffle=False, verbose=0)
    _loss, *values = model.evaluate(rows(spec, args.test).batch(4096), verbose=0)
    print(json.dumps(dict(zip(metrics, values, strict=True))))


def rows(spec: ModelSpec, path: Path) -> Any:
    """Return the features and labels of a file, one element a record."""
    with path.open() as file:
        header = tuple(next(csv.reader(file)))
    lines = tf.data.TextLineDataset(str(path)).skip(1)
    return spec.feed(lines, Mode.EVALUATION, Metadata(header))


if __name__ == "__main__":
    main()

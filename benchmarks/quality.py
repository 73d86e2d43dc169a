"""What late gradients cost two networks for tables: the delay alone, in one process.

    python benchmarks/quality.py --train=adult/train.csv --test=adult/test.csv

`adult/` is what `model_zoo/adult/prepare.py` makes. Each gradient is applied so many updates after
the one on whose parameters it was computed, so nothing but staleness differs between two rows. The
rule `divided` is that of `--staleness_lr_modulation`. A row is printed once its seeds are done:
the accuracy on the test records, mean and standard deviation over the seeds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import deque
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from elasticdl.config import ModelSection
from elasticdl.job import Mode
from elasticdl.model_spec import ModelSpec, load_model_spec

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from zoo_fit import fed

MODELS = ("gated", "transformer")
RULES = ((0, False), (3, False), (3, True), (1, False))
RECORDS, EPOCHS = 16_000, 2


def main() -> None:
    """Print a row for each model and rule."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--train", required=True)
    parser.add_argument("--test", required=True)
    parser.add_argument("--model", choices=MODELS, action="append", help="default: both")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minibatch", type=int, default=128)
    flags = parser.parse_args()
    for name in flags.model or MODELS:
        folder = Path(__file__).parent / "quality_models"
        spec = load_model_spec(ModelSection(model_zoo=folder, model_def=f"tables.{name}"))
        train, test = (
            fed(spec, place, "skip_header=true", Mode.EVALUATION).take(RECORDS).cache()
            for place in (flags.train, flags.test)
        )
        for delay, divided in RULES:
            found = [
                accuracy(spec, train, test, delay, divided, seed, flags.minibatch)
                for seed in range(flags.seeds)
            ]
            spread = statistics.stdev(found) if len(found) > 1 else 0.0
            rule = ", rate divided" if divided else ""
            mean = statistics.mean(found)
            print(f"{name}, {delay} late{rule}: {mean:.4f} +- {spread:.4f}", flush=True)


def accuracy(
    spec: ModelSpec,
    train: Any,
    test: Any,
    delay: int,
    divided: bool,
    seed: int,
    minibatch: int,
) -> float:
    """Train a model with gradients that come `delay` updates late; return its test accuracy."""
    keras.utils.set_random_seed(seed)
    assert spec.optimizer is not None
    model, optimizer = spec.model(), spec.optimizer()
    rate = float(optimizer.learning_rate)
    optimizer.build(model.trainable_variables)

    @tf.function
    def gradients(columns: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            value = spec.loss(labels, model(columns, training=True))
        return [tf.convert_to_tensor(g) for g in tape.gradient(value, model.trainable_variables)]

    @tf.function
    def apply(grads: Any) -> None:
        optimizer.apply(grads, model.trainable_variables)

    data = train.shuffle(RECORDS, seed=seed).batch(minibatch)
    late: deque[Any] = deque()
    updates = 0
    for columns, labels in data.repeat(EPOCHS):
        late.append(gradients(columns, labels))
        if len(late) > delay:
            staleness = min(updates, delay)  # the first gradients have nothing to be late for
            optimizer.learning_rate = rate / max(1, staleness) if divided else rate
            apply(late.popleft())
            updates += 1
    metric = keras.metrics.BinaryAccuracy(threshold=0.0)
    for columns, labels in test.batch(2048):
        metric.update_state(labels, model(columns, training=False))
    return float(metric.result())


if __name__ == "__main__":
    main()

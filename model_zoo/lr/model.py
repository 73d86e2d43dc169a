"""Logistic regression with FTRL on hashed crosses: seven billion weights, of which few are used.

McMahan et al., "Ad Click Prediction: a View from the Trenches", KDD 2013. The linear model has
very many features; each is a value or a combination of values. FTRL-proximal trains it. Its L1 term
keeps the weights of rare features at zero.
"""

import keras
import tensorflow as tf

from elasticdl.preprocessing.tabular import Category, Cross, Label, Table

BILLION = 1_000_000_000


def _table(shrink):
    """Return the columns; `shrink` divides the numbers of buckets."""
    sizes = {
        "user": 200_000_000,
        "item": 200_000_000,
        "site": 50_000_000,
        "hour": 50_000_000,
        ("user", "item"): 3 * BILLION,
        ("user", "site"): 2 * BILLION,
        ("item", "site", "hour"): int(1.5 * BILLION),
    }
    columns = [
        Category(name, size // shrink) if isinstance(name, str) else Cross(name, size // shrink)
        for name, size in sizes.items()
    ]
    return Table(columns, label=Label("clicked"))


TABLE = _table(1)
feed = TABLE.feed


def forward(shrink=1):
    """Return the model: words -> logit of a click.

    Args:
        shrink: Divides the numbers of buckets, since plain Keras stores a weight for each.
    """
    table = TABLE if shrink == 1 else _table(shrink)
    inputs = table.inputs()
    return keras.Model(inputs, Bias()(table.encode(inputs).linear()))


class Bias(keras.layers.Layer):
    """Adds one weight to the logit of every record."""

    def build(self, shape):
        """Make the weight."""
        self.bias = self.add_weight(shape=(1,), initializer="zeros", name="bias")

    def call(self, logits):
        """Add the weight."""
        return logits + self.bias


def loss(labels, predictions):
    """Return the mean binary cross-entropy of logits."""
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, predictions))


def optimizer(lr=2.0):
    """Return FTRL-proximal. Its L1 term is for gradients of a minibatch's mean loss."""
    return keras.optimizers.Ftrl(
        lr, initial_accumulator_value=0.01, l1_regularization_strength=0.0005
    )


def eval_metrics_fn():
    """Return the metrics of an evaluation."""
    return {"auc": keras.metrics.AUC(from_logits=True)}

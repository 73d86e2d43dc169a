"""Logistic regression with FTRL on hashed crosses: seven billion weights, of which few are used.

McMahan et al., "Ad Click Prediction: a View from the Trenches", KDD 2013: a linear model of very
many features, each a value or a combination of values, trained by FTRL-proximal, whose L1 term
holds the weights of rare features at zero.
"""

import keras
import tensorflow as tf

from elasticdl.preprocessing.tabular import Category, Cross, Label, Table

BILLION = 1_000_000_000

TABLE = Table(
    [
        Category("user", 200_000_000),
        Category("item", 200_000_000),
        Category("site", 50_000_000),
        Category("hour", 50_000_000),
        Cross(["user", "item"], 3 * BILLION),
        Cross(["user", "site"], 2 * BILLION),
        Cross(["item", "site", "hour"], int(1.5 * BILLION)),
    ],
    label=Label("clicked"),
)
feed = TABLE.feed


def forward():
    """Return the model: words -> logit of a click."""
    inputs = TABLE.inputs()
    return keras.Model(inputs, Bias()(TABLE.encode(inputs).linear()))


class Bias(keras.layers.Layer):
    """Adds the one weight that every record has."""

    def build(self, shape):
        """Make the weight."""
        self.bias = self.add_weight(shape=(1,), initializer="zeros", name="bias")

    def call(self, logits):
        """Add it."""
        return logits + self.bias


def loss(labels, predictions):
    """Return the mean binary cross-entropy of logits."""
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, predictions))


def optimizer(lr=2.0):
    """Return FTRL-proximal; L1 is per gradient of the mean loss of a minibatch."""
    return keras.optimizers.Ftrl(
        lr, initial_accumulator_value=0.01, l1_regularization_strength=0.0005
    )


def eval_metrics_fn():
    """Return the metrics of an evaluation."""
    return {"auc": keras.metrics.AUC(from_logits=True)}

"""Wide & deep on UCI Adult: does a person earn more than 50,000 dollars a year?

Cheng et al., "Wide & Deep Learning for Recommender Systems", DLRS 2016. A linear model remembers
which combinations of categories go together. A network on their vectors generalises. Both are
trained together.
"""

import keras
import tensorflow as tf

from elasticdl.preprocessing.tabular import Bucket, Category, Cross, Label, Number, Table

DIM = 8
HIDDEN = (64, 32)
MONEY = [1, 1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 10_000, 14_000, 20_000, 50_000]

TABLE = Table(
    [
        Number("age", mean=38.6, stddev=13.6),
        Number("education_num", mean=10.1, stddev=2.6),
        Number("hours_per_week", mean=40.4, stddev=12.3),
        Number("capital_gain", log=True, stddev=3.0),
        Number("capital_loss", log=True, stddev=3.0),
        Bucket("age", [18, 21, 25, 30, 35, 40, 45, 50, 55, 60, 65, 75]),
        Bucket("hours_per_week", [20, 30, 39, 41, 46, 51, 61]),
        Bucket("capital_gain", MONEY),
        Bucket("capital_loss", [1, 1500, 1600, 1700, 1800, 1900, 2000, 2200, 2400, 2600]),
        Category("workclass", 100),
        Category("education", 100),
        Category("marital_status", 100),
        Category("occupation", 100),
        Category("relationship", 100),
        Category("race", 100),
        Category("sex", ["Female", "Male"]),
        Category("native_country", 1000),
        Cross(["education", "occupation"], 10_000),
        Cross(["age", "occupation"], 10_000),
        Cross(["age", "education", "marital_status"], 100_000),
        Cross(["workclass", "occupation"], 10_000),
        Cross(["native_country", "occupation"], 10_000),
        Cross(["relationship", "hours_per_week"], 10_000),
    ],
    label=Label("income", positive=">50K"),
)

feed = TABLE.feed


def forward():
    """Return the model: columns of a person -> logit of the higher income."""
    inputs = TABLE.inputs()
    columns = TABLE.encode(inputs)
    hidden = columns.flat(DIM)
    for units in HIDDEN:
        hidden = keras.layers.Dense(units, activation="relu")(hidden)
        hidden = keras.layers.Dropout(0.2)(hidden)
    return keras.Model(inputs, columns.linear() + keras.layers.Dense(1)(hidden))


def loss(labels, predictions):
    """Return the mean binary cross-entropy of logits."""
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, predictions))


def optimizer(lr=0.1):
    """Return Adagrad: rare crosses begin with a large step and keep it."""
    return keras.optimizers.Adagrad(lr, initial_accumulator_value=0.01)


def eval_metrics_fn():
    """Return the metrics of an evaluation."""
    return {
        "auc": keras.metrics.AUC(num_thresholds=1000, from_logits=True),
        "accuracy": keras.metrics.BinaryAccuracy(threshold=0.0),
    }

"""Two networks for the columns of UCI Adult, with Adam: `gated` and `transformer`.

Written anew after two of Keras's public examples: "Classification with Gated Residual and Variable
Selection Networks" and "Structured data learning with TabTransformer".
"""

from typing import Any

import keras
import tensorflow as tf

from elasticdl.preprocessing.tabular import Category, Label, Number, Table

DIM = 16
DROPOUT = 0.15

TABLE = Table(
    [
        Number("age", mean=38.6, stddev=13.6),
        Number("education_num", mean=10.1, stddev=2.6),
        Number("hours_per_week", mean=40.4, stddev=12.3),
        Number("capital_gain", log=True, stddev=3.0),
        Number("capital_loss", log=True, stddev=3.0),
        Category("workclass", 100),
        Category("education", 100),
        Category("marital_status", 100),
        Category("occupation", 100),
        Category("relationship", 100),
        Category("race", 100),
        Category("sex", ["Female", "Male"]),
        Category("native_country", 1000),
    ],
    label=Label("income", positive=">50K"),
)

feed = TABLE.feed


def gated() -> keras.Model:
    """Return the network that selects variables by gated residual blocks."""
    inputs = TABLE.inputs()
    columns = TABLE.encode(inputs)
    vectors = columns.vectors(DIM)
    numbers = [
        keras.layers.Dense(DIM)(columns.numbers[:, i : i + 1])
        for i in range(columns.numbers.shape[1])
    ]
    parts = [vectors[:, i, :] for i in range(vectors.shape[1])] + numbers
    selected = _gated_residual(keras.layers.Concatenate()(parts), DIM)
    weights = keras.layers.Dense(len(parts), activation="softmax")(selected)
    stacked = keras.ops.stack([_gated_residual(part, DIM) for part in parts], axis=1)
    mixed = keras.ops.sum(keras.ops.expand_dims(weights, -1) * stacked, axis=1)
    return keras.Model(inputs, keras.layers.Dense(1)(mixed))


def transformer() -> keras.Model:
    """Return the network whose categories attend to each other."""
    inputs = TABLE.inputs()
    columns = TABLE.encode(inputs)
    tokens = columns.vectors(DIM)
    for _ in range(2):
        attended = keras.layers.MultiHeadAttention(4, DIM, dropout=DROPOUT)(tokens, tokens)
        tokens = keras.layers.LayerNormalization()(tokens + attended)
        hidden = keras.layers.Dense(DIM, activation="gelu")(tokens)
        hidden = keras.layers.Dropout(DROPOUT)(hidden)
        tokens = keras.layers.LayerNormalization()(tokens + hidden)
    numbers = keras.layers.LayerNormalization()(columns.numbers)
    hidden = keras.layers.Concatenate()([keras.layers.Flatten()(tokens), numbers])
    for units in (128, 64):
        hidden = keras.layers.BatchNormalization()(hidden)
        hidden = keras.layers.Dense(units, activation="selu")(hidden)
        hidden = keras.layers.Dropout(DROPOUT)(hidden)
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


def _gated_residual(inputs: Any, units: int) -> Any:
    hidden = keras.layers.Dense(units, activation="elu")(inputs)
    hidden = keras.layers.Dropout(DROPOUT)(keras.layers.Dense(units)(hidden))
    gate = keras.layers.Dense(units, activation="sigmoid")(hidden)
    kept = inputs if inputs.shape[-1] == units else keras.layers.Dense(units)(inputs)
    return keras.layers.LayerNormalization()(kept + keras.layers.Dense(units)(hidden) * gate)


def loss(labels: Any, predictions: Any) -> Any:
    """Return the mean binary cross-entropy of logits."""
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, predictions))


def optimizer(lr: float = 0.001) -> keras.optimizers.Optimizer:
    """Return Adam."""
    return keras.optimizers.Adam(lr)


def eval_metrics_fn() -> dict[str, Any]:
    """Return the metrics of an evaluation."""
    return {
        "auc": keras.metrics.AUC(num_thresholds=1000, from_logits=True),
        "accuracy": keras.metrics.BinaryAccuracy(threshold=0.0),
    }

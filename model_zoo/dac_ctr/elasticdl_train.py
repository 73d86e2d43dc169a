"""Click prediction on Criteo's data, as in the ElasticDL report: five models, one file.

elasticdl train --model_def=dac_ctr.elasticdl_train.forward \
        --model_params="model=xdeepfm; embedding_dim=8" ...
"""

import keras
import tensorflow as tf

from dac_ctr.columns import TABLE
from dac_ctr.models import MODELS

feed = TABLE.feed


def forward(model="wide_deep", embedding_dim=8):
    """Return a model: columns of a line -> logit of a click.

    Args:
        model: A name of `MODELS`.
        embedding_dim: Width of the vectors.
    """
    if model not in MODELS:
        raise ValueError(f"--model_params: model must be one of {', '.join(MODELS)}, not {model!r}")
    inputs = TABLE.inputs()
    return keras.Model(inputs, MODELS[model](TABLE.encode(inputs), embedding_dim), name=model)


def loss(labels, predictions):
    """Return the mean binary cross-entropy of logits."""
    labels = tf.cast(labels, tf.float32)
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, predictions))


def optimizer(lr=0.001):
    """Return Adam."""
    return keras.optimizers.Adam(lr)


def eval_metrics_fn():
    """Return the metrics of an evaluation."""
    return {
        "auc": keras.metrics.AUC(num_thresholds=1000, from_logits=True),
        "logloss": keras.metrics.BinaryCrossentropy(from_logits=True),
    }

"""MobileNetV2 for CIFAR-10: the model of Keras for 32 x 32 pixels. Sandler et al., CVPR 2018."""

import keras

from cifar10.model import SIDE, eval_metrics_fn, feed, loss, optimizer

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]

MOMENTUM = 0.9
"""Of the moving statistics. Keras' own 0.999 still has two thirds of their initial values after an
epoch of 400 updates, and a model that is evaluated then knows nothing."""


def custom_model(alpha=1.0):
    """Return the network: images -> logits of ten classes.

    Args:
        alpha: Scales the number of filters; the paper has 1.0.
    """
    network = keras.applications.MobileNetV2(
        (SIDE, SIDE, 3),
        alpha,
        weights=None,
        input_tensor=keras.Input((SIDE, SIDE, 3), name="image"),
        classes=10,
        classifier_activation=None,
    )
    for layer in network.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = MOMENTUM
    return network

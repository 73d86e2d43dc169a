"""MobileNetV2 for CIFAR-10. Sandler et al., CVPR 2018; Keras' own, for 32 x 32 pixels."""

import keras

from cifar10.model import SIDE, eval_metrics_fn, feed, loss, optimizer

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]

MOMENTUM = 0.9
"""Of the moving statistics. Keras' own 0.999 still has two thirds of their initial values after an
epoch of 400 updates, and a model that is evaluated then knows nothing."""


def custom_model(alpha=1.0):
    """Return the network: images -> logits of ten classes.

    Args:
        alpha: Scales the number of filters; 1.0 is the paper's.
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

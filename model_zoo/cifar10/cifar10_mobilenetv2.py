"""MobileNetV2 for CIFAR-10. Sandler et al., CVPR 2018; Keras' own, for 32 x 32 pixels."""

import keras

from cifar10.model import SIDE, eval_metrics_fn, feed, loss, optimizer

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]


def custom_model(alpha=1.0):
    """Return the network: images -> logits of ten classes.

    Args:
        alpha: Scales the number of filters; 1.0 is the paper's.
    """
    return keras.applications.MobileNetV2(
        (SIDE, SIDE, 3),
        alpha,
        weights=None,
        input_tensor=keras.Input((SIDE, SIDE, 3), name="image"),
        classes=10,
        classifier_activation=None,
    )

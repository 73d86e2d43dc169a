"""The network of `mnist.model` as a subclass of `keras.Model`."""

import keras

from mnist.model import eval_metrics_fn, feed, loss, optimizer

__all__ = ["CustomModel", "eval_metrics_fn", "feed", "loss", "optimizer"]


class CustomModel(keras.Model):
    """Images -> logits of ten digits."""

    def __init__(self):
        super().__init__(name="mnist_model")
        self.body = [
            keras.layers.Reshape((28, 28, 1)),
            keras.layers.Conv2D(32, kernel_size=(3, 3), activation="relu"),
            keras.layers.Conv2D(64, kernel_size=(3, 3), activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.MaxPooling2D(pool_size=(2, 2)),
            keras.layers.Dropout(0.25),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]

    def call(self, features, training=None):
        """Return the logits of a minibatch; `feed` makes the `features`."""
        x = features["image"]
        for layer in self.body:
            x = layer(x, training=training) if _has_modes(layer) else layer(x)
        return x


def _has_modes(layer):
    return isinstance(layer, keras.layers.BatchNormalization | keras.layers.Dropout)

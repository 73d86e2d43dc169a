"""Layers of the deep interest network: they weight a user's history by its fit to one item."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import keras

from elasticdl.packages.frameworks.lookup import Shape

ops = keras.ops


@keras.saving.register_keras_serializable(package="elasticdl")
class Dice(keras.layers.Layer):  # type: ignore[misc]  # keras has no types
    """The activation `p s + (1 - p) alpha s`, with p the sigmoid of the standardised s.

    Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", KDD 2018, equation 3.
    In training the mean and the variance are the minibatch's, and otherwise moving averages. Alpha
    is learnt for each unit.
    """

    def __init__(self, epsilon: float = 1e-8, momentum: float = 0.99, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.epsilon = epsilon
        self.momentum = momentum
        self.standardise = keras.layers.BatchNormalization(
            momentum=momentum, epsilon=epsilon, center=False, scale=False
        )

    def build(self, input_shape: Shape) -> None:
        """Make alpha, one number for each unit."""
        self.standardise.build(input_shape)
        self.alpha = self.add_weight(shape=(input_shape[-1],), initializer="zeros", name="alpha")

    def call(self, inputs: keras.KerasTensor, training: bool | None = None) -> keras.KerasTensor:
        """Return the activations."""
        share = ops.sigmoid(self.standardise(inputs, training=training))
        return share * inputs + (1.0 - share) * self.alpha * inputs

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Return the shape of the input."""
        return input_shape

    def get_config(self) -> dict[str, object]:
        """Return the arguments that rebuild the layer."""
        return {**super().get_config(), "epsilon": self.epsilon, "momentum": self.momentum}


@keras.saving.register_keras_serializable(package="elasticdl")
class TargetAttention(keras.layers.Layer):  # type: ignore[misc]  # keras has no types
    """Sums a history's vectors, each with the weight of its fit to the target.

    Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", KDD 2018, equation 3 of
    section 4.3. A small network computes the weight from (vector, target, vector - target, vector *
    target). The weights are no softmax: a user with many fitting items has a longer sum.

    The layer is called with [target (records, dim), history (records, items, dim), is_item
    (records, items)] and returns (records, dim). `is_item` is false for padding of a history.

    Args:
        units: The sizes of the hidden layers of the small network.
        activation: The activation of the hidden layers; "dice" is `Dice`.
    """

    def __init__(
        self,
        units: Sequence[int] = (36,),
        activation: str | Callable[[keras.KerasTensor], keras.KerasTensor] | None = "dice",
        **kwargs: object,
    ) -> None:
        super().__init__(**kwargs)
        self.units = tuple(units)
        self.activation = activation
        self.hidden = [keras.layers.Dense(size) for size in self.units]
        self.activations = [
            Dice() if activation == "dice" else keras.layers.Activation(activation)
            for _ in self.units
        ]
        self.score = keras.layers.Dense(1)

    def build(self, input_shape: Sequence[Shape]) -> None:
        """Make the small network."""
        _target, history, _is_item = input_shape
        assert history[-1] is not None, "vectors have a width"
        width = 4 * history[-1]
        for dense, activation in zip(self.hidden, self.activations, strict=True):
            dense.build((*history[:-1], width))
            width = dense.units
            activation.build((*history[:-1], width))
        self.score.build((*history[:-1], width))

    def call(
        self, inputs: Sequence[keras.KerasTensor], training: bool | None = None
    ) -> keras.KerasTensor:
        """Return the weighted sums."""
        target, history, is_item = inputs
        target = ops.broadcast_to(target[:, None, :], ops.shape(history))
        met = ops.concatenate([history, target, history - target, history * target], axis=-1)
        for dense, activation in zip(self.hidden, self.activations, strict=True):
            met = dense(met)
            met = (
                activation(met, training=training)
                if isinstance(activation, Dice)
                else activation(met)
            )
        weights = self.score(met) * ops.cast(is_item, history.dtype)[:, :, None]
        return ops.sum(weights * history, axis=1)

    def compute_output_shape(self, input_shape: Sequence[Shape]) -> Shape:
        """Return the shape of the target."""
        return input_shape[0]

    def get_config(self) -> dict[str, object]:
        """Return the arguments that rebuild the layer."""
        return {**super().get_config(), "units": list(self.units), "activation": self.activation}

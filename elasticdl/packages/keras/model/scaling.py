"""Loss scaling of models that compute in float16."""

from __future__ import annotations

import keras

GROWTH_STEPS = 2000
FIRST_SCALE = 2.0**15


class LossScale:
    """The factor that multiplies the loss, and divides its gradient, so that float16 can hold it.

    Like Keras' `LossScaleOptimizer`, it halves the scale after a gradient that is not finite, and
    doubles the scale after many finite ones. Keras leaves such a minibatch out; here it is computed
    again, so that each is trained once. Each process has its own scale. It is a power of two, so it
    changes a gradient only by the rounding of float16.
    """

    def __init__(self, first: float = FIRST_SCALE, growth_steps: int = GROWTH_STEPS) -> None:
        self.value = first
        self._growth_steps = growth_steps
        self._num_finite = 0

    def overflowed(self) -> bool:
        """Halve the scale; return False if it is not the scale that makes gradients so large."""
        self._num_finite = 0
        if self.value <= 1.0:
            return False
        self.value /= 2
        return True

    def was_finite(self) -> None:
        """Count a step, and try a larger scale from time to time."""
        self._num_finite += 1
        if self._num_finite == self._growth_steps:
            self._num_finite = 0
            self.value *= 2


def loss_scale_of(
    optimizer: keras.optimizers.Optimizer, model: keras.Model
) -> tuple[keras.optimizers.Optimizer, LossScale | None]:
    """Return the optimizer that makes updates, and the scale that goes with it, if there is one.

    A scale is used if the user's optimizer is a `LossScaleOptimizer`, and, as in Keras'
    `compile(auto_scale_loss=True)`, if the model computes in float16.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        scale = LossScale(float(optimizer.initial_scale), int(optimizer.dynamic_growth_steps))
        return optimizer.inner_optimizer, scale
    if any(layer.compute_dtype == "float16" for layer in model._flatten_layers()):
        return optimizer, LossScale()
    return optimizer, None

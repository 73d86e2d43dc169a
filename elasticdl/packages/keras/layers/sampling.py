"""Logits of a model that was trained on logs whose negatives were sampled."""

from __future__ import annotations

import math

import keras

from elasticdl.packages.frameworks.lookup import Shape
from elasticdl.packages.frameworks.rates import require_rate


@keras.saving.register_keras_serializable(package="elasticdl")
class SamplingCorrection(keras.layers.Layer):  # type: ignore[misc]  # keras has no types
    """Corrects logits for data in which only a share of the negatives was kept.

    In training the logits stay as they are, since they are those of the sampled log. Everywhere
    else (evaluation, prediction, export) log(rate) is added, so the odds are those of all data. For
    a probability p this is p / (p + (1 - p) / rate): He et al., "Practical Lessons from Predicting
    Clicks on Ads at Facebook", ADKDD 2014, section 6.3. The correction is a part of the exported
    model.

    Args:
        rate: The share of the negatives that was kept, above 0 and at most 1.
    """

    def __init__(self, rate: float, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.rate = require_rate(rate)

    def call(self, logits: keras.KerasTensor, training: bool | None = None) -> keras.KerasTensor:
        """Return the logits, corrected unless they are trained."""
        return logits if training else logits + math.log(self.rate)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Return the shape of the input."""
        return input_shape

    def get_config(self) -> dict[str, object]:
        """Return the arguments that rebuild the layer."""
        return {**super().get_config(), "rate": self.rate}

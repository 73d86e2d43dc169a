"""What a model file's `callbacks()` may return, beside what Keras has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LearningRateScheduler:
    """Sets the learning rate of each step, in place of the optimizer's own.

    Args:
        schedule: `schedule(version) -> learning rate`, where `version` counts the updates that
            the model has seen. Keras' callback of this name counts epochs, of which an elastic
            job has several under way at once.
    """

    schedule: Callable[[int], float]

"""Steps of a script that wants minibatches alone: nothing is computed of them for the job."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from elasticdl.backends.base import (
    Float32,
    Minibatch,
    ModelDescription,
    OptimizerSpec,
    StepResult,
)
from elasticdl.errors import ModelError
from elasticdl.packages.own_loops.asking import AskingTrainer
from elasticdl.packages.own_loops.handover import GradientRequest


class ShardsTrainer(AskingTrainer):
    """A model without a parameter, whose updates count minibatches and change nothing."""

    answer = "done()"

    def load(self, dense: Float32, state: Float32) -> None:
        """There are no parameters."""

    def _begin(self, step: GradientRequest, seed: int) -> None:
        """The model, and the random numbers, are the script's affair."""

    def end_step(
        self,
        step: GradientRequest,
        loss: Any,
        gradients: Iterable[tuple[object, object]] | None = None,
    ) -> StepResult:
        """Return that a minibatch is done.

        Raises:
            ModelError: The loss is no number.
        """
        try:
            value = float(loss)
        except (TypeError, ValueError) as error:
            raise ModelError(
                f"done(loss): expected one number, found {type(loss).__name__}"
            ) from error
        nothing = np.zeros(0, np.float32)
        return StepResult(loss=value, row_grads=[], dense_grad=nothing, state_delta=nothing)

    def zero_grad(self) -> None:
        """There are no gradients."""

    def build(self, sample: Minibatch) -> ModelDescription:
        """Describe a model that has nothing."""
        return ModelDescription((), (), (), OptimizerSpec("sgd"), self._seed)

    def initial_values(self) -> tuple[Float32, Float32]:
        """Return nothing."""
        return np.zeros(0, np.float32), np.zeros(0, np.float32)

    def learning_rate(self, version: int) -> float:
        """Return what changes nothing."""
        return 0.0

    def _write(self, directory: Path) -> None:
        raise ModelError(
            f"{directory}: expected a script that saves its model itself, since the job of "
            "--shards_only has none; leave --output out"
        )

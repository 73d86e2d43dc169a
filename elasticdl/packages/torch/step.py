"""The steps and the inference of a PyTorch model."""

from __future__ import annotations

from collections.abc import Container, Sequence

import torch

from elasticdl.backends.average import EvaluationLoss
from elasticdl.backends.base import Float32, Minibatch, StepResult
from elasticdl.errors import ModelError
from elasticdl.packages.frameworks.momenta import change_of
from elasticdl.packages.frameworks.parts import Evaluation
from elasticdl.packages.torch.compiled import CompiledStep
from elasticdl.packages.torch.feed import TorchMinibatch
from elasticdl.packages.torch.lookups import GivenRows
from elasticdl.packages.torch.loss import MinibatchLoss
from elasticdl.packages.torch.metrics import Metrics
from elasticdl.packages.torch.model import PlacedModel
from elasticdl.packages.torch.structures import (
    Nested,
    as_array,
    map_leaves,
    map_outputs,
    without_none,
)
from elasticdl.packages.torch.trial import FixedParameters


class TorchStep:
    """The `StepPart` of a PyTorch model.

    Args:
        placed: The model.
        loss: The loss of a minibatch; None if the model file has none.
        momenta: The rule by which training changes each buffer.
        fixed: The parameters that no step may add or remove.
        clipped: The `id`s of parameters under a common norm, which alone have gradients; None: all.
        compiled: The compiled step, with `--torch_compile`.
    """

    def __init__(
        self,
        placed: PlacedModel,
        loss: MinibatchLoss | None,
        momenta: Sequence[float],
        fixed: FixedParameters,
        clipped: Container[int] | None,
        compiled: CompiledStep | None,
    ) -> None:
        self._placed = placed
        self._loss = loss
        self._momenta = momenta
        self._fixed = fixed
        self._clipped = clipped
        self._compiled = compiled

    def train(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> StepResult:
        """Compute loss and gradients; see `Trainer.train_step`."""
        minibatch, placed = TorchMinibatch.of(minibatch), self._placed
        placed.load(dense, state)
        given = GivenRows(placed, minibatch, rows, grad=True)
        placed.device.seed(minibatch.seed)
        # PyTorch counts the changes of a tensor in place in its `_version`.
        versions = [p._version for _, p in placed.parameters]
        outputs, loss = self._forward(minibatch, given)
        MinibatchLoss.differentiate(loss)
        # The check waits for the GPU, so it comes after the backward pass was started.
        given.check()
        self._check_step(versions)
        state_delta = placed.trained_state(state)
        if len(state_delta):
            state_delta = change_of(state_delta, state, placed.repeat(self._momenta))
        return StepResult(
            loss=float(loss.detach()),
            row_grads=given.gradients(self._clipped),
            dense_grad=placed.gradient(self._clipped),
            state_delta=state_delta,
            predictions=map_outputs(_detached, outputs),
        )

    def _forward(self, minibatch: TorchMinibatch, given: GivenRows) -> tuple[Nested, torch.Tensor]:
        if self._compiled is not None:
            return self._compiled(minibatch, given)
        assert self._loss is not None, "build has refused a training without a loss"
        outputs = self._placed.call(minibatch.features, given, training=True)
        return outputs, self._loss(self._placed.device.moved(minibatch.labels), outputs)

    def _check_step(self, versions: Sequence[int]) -> None:
        for (name, p), version in zip(self._placed.parameters, versions, strict=True):
            if p._version != version:
                raise ModelError(
                    f"the model changes its parameter {name!r} with this minibatch, and did not "
                    "with the first one; no other worker would know. Let each step change it, or "
                    "none"
                )
        self._fixed.check(self._placed.parameters)
        for constant in self._placed.constants:
            constant.check()

    def infer(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> Nested:
        """Return the outputs, on the CPU."""
        minibatch, placed = TorchMinibatch.of(minibatch), self._placed
        placed.load(dense, state)
        with torch.no_grad():
            given = GivenRows(placed, minibatch, rows, grad=False)
            outputs = placed.call(minibatch.features, given, training=False)
        given.check()
        return map_outputs(_detached, outputs)

    def predict(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> Nested:
        """Return the outputs as arrays."""
        return map_leaves(as_array, without_none(self.infer(minibatch, rows, dense, state)))


class TorchEvaluation(Evaluation):
    """The metrics of a PyTorch model, and the loss of an evaluation.

    Args:
        metrics: The metrics of the model file.
        loss: The loss of an evaluation.
        loss_on_cpu: The loss of a minibatch, where predictions are; None if the file has none.
        step: Computes the model.
    """

    def __init__(
        self,
        metrics: Metrics,
        loss: EvaluationLoss,
        loss_on_cpu: MinibatchLoss | None,
        step: TorchStep,
    ) -> None:
        super().__init__(metrics, loss)
        self._metrics = metrics
        self._loss_on_cpu = loss_on_cpu
        self._step = step

    def measure(self, minibatches: Sequence[Minibatch], predictions: Sequence[Nested]) -> None:
        """Add trained minibatches to the metrics."""
        for minibatch, outputs in zip(minibatches, predictions, strict=True):
            self._metrics.update(minibatch.labels, outputs, minibatch.num_records)

    def evaluate(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> None:
        """Add a minibatch of an evaluation to metrics and loss."""
        outputs = self._step.infer(minibatch, rows, dense, state)
        self._metrics.update(minibatch.labels, outputs, minibatch.num_records)
        if (loss := self._loss_on_cpu) is not None:
            self._loss.add(
                lambda: as_array(loss.value(minibatch.labels, outputs)), minibatch.num_records
            )


def _detached(leaf: torch.Tensor) -> torch.Tensor:
    """Return what metrics and predictions are made of, which is done on the CPU."""
    return leaf.detach().cpu() if isinstance(leaf, torch.Tensor) else leaf

"""A training step whose forward pass, backward pass and loss are compiled by `torch.compile`."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import warnings
from collections.abc import Sequence

import torch
from torch import nn

from elasticdl.errors import ModelError
from elasticdl.packages.torch.feed import TorchMinibatch
from elasticdl.packages.torch.lookups import GivenRows
from elasticdl.packages.torch.loss import MinibatchLoss
from elasticdl.packages.torch.model import PlacedModel
from elasticdl.packages.torch.structures import Nested

log = logging.getLogger(__name__)

TOLERANCE = 1e-4
"""How far the compiled loss may be from the plain one, relative to it where it is above 1."""


def check_compiler() -> None:
    """Refuse `--torch_compile` where there is nothing that compiles what PyTorch generates.

    For a GPU PyTorch brings its own.

    Raises:
        ModelError: There is no C++ compiler.
    """
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is None:
        raise ModelError(
            f"--torch_compile=true: PyTorch generates C++, and the compiler {compiler!r} is not "
            "there; install it (Debian: apt-get install g++), name another one in CXX, or leave "
            "the flag out"
        )


class _Rows:
    """The lookup of the compiled code: it gives rows in their order, and notes the ids.

    The ids are compared after the step: a comparison inside it would break its compiled graph
    apart.
    """

    def __init__(self, placed: PlacedModel) -> None:
        self._placed = placed
        self.given: Sequence[torch.Tensor] = ()
        self.asked: list[tuple[nn.Module, torch.Tensor]] = []

    def __call__(self, layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        self.asked.append((layer, ids))
        return self._placed.given(self.given[len(self.asked) - 1])


class CompiledStep:
    """Computes outputs and loss of a minibatch.

    Inductor draws random numbers as PyTorch does without it, so losses are the same with dropout.
    """

    def __init__(self, placed: PlacedModel, loss: MinibatchLoss) -> None:
        """Compile nothing yet; that is done when it is first called, and for other shapes.

        Raises:
            ModelError: There is no C++ compiler.
        """
        if placed.device.is_cpu:
            check_compiler()
        # The tracer asks for `.grad` of tensors between two parts of a model that it breaks off.
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
        self._placed, self._loss = placed, loss
        self._rows = rows = _Rows(placed)
        model, bare_loss = placed.model, loss.bare

        def compute(
            features: Nested, labels: Nested, given: Sequence[torch.Tensor]
        ) -> tuple[Nested, torch.Tensor, list[tuple[nn.Module, torch.Tensor]]]:
            rows.given, rows.asked = given, []
            outputs = model(features)
            return outputs, bare_loss(labels, outputs), rows.asked

        self._compute = torch.compile(compute, options={"fallback_random": True})

    def __call__(self, minibatch: TorchMinibatch, given: GivenRows) -> tuple[Nested, torch.Tensor]:
        """Return outputs and loss.

        Raises:
            ModelError: The model raises, cannot be compiled, or looks up other ids than were
                pulled.
        """
        labels = self._placed.device.moved(minibatch.labels)

        def call(features: Nested) -> Nested:
            outputs, *others = self._compute(features, labels, given.rows)
            beside.append(others)
            return outputs

        beside: list[list[torch.Tensor]] = []
        outputs = self._placed.call(minibatch.features, self._rows, training=True, model=call)
        [[loss, asked]] = beside
        for layer, ids in asked:
            given(layer, ids)
        return outputs, self._loss.checked(loss)

    def try_out(self, minibatch: TorchMinibatch, given: GivenRows, expected: float) -> None:
        """Compile for a first minibatch, and compare its loss with that of the plain step.

        Raises:
            ModelError: It cannot be compiled, or the losses differ.
        """
        # PyTorch counts graph breaks for the whole process, and only those of this step are wanted.
        torch._dynamo.utils.counters.clear()
        try:
            _, loss = self(minibatch, given)
            # The backward pass is compiled as well, so what cannot be compiled in it must show
            # here.
            loss.backward()
        except ModelError as error:
            raise _of_compiler(error) from error
        breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
        if breaks:
            log.warning(
                "--torch_compile: torch.compile breaks the model off in %d places, between which "
                "Python runs as before; TORCH_LOGS=graph_breaks says where",
                breaks,
            )
        found = float(loss.detach())
        if not abs(found - expected) <= TOLERANCE * max(1.0, abs(expected)):
            raise ModelError(
                f"--torch_compile=true: the loss of the first minibatch is {found!r} compiled and "
                f"{expected!r} otherwise; expected the same within {TOLERANCE:g}. Does the model "
                "draw random numbers that are not PyTorch's? Leave the flag out"
            )


def _of_compiler(error: ModelError) -> ModelError:
    """Return what to say of a failure: the model has run before without being compiled."""
    cause = error.__cause__
    if cause is None:
        return error
    return ModelError(
        "--torch_compile=true: the model cannot be compiled here; without the flag it runs: "
        f"{type(cause).__name__}: {' '.join(str(cause).split())[:1000]}"
    )

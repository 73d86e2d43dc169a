"""The user's loss of a minibatch."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from elasticdl.backends.call_order import Tell, takes_predictions_first, told_nobody
from elasticdl.errors import ModelError, place_of
from elasticdl.packages.frameworks.user_code import user_code
from elasticdl.packages.torch.device import Device
from elasticdl.packages.torch.structures import Nested, describe, map_leaves

_CPU = Device()


class MinibatchLoss:
    """`loss(labels, predictions)`, a scalar tensor.

    A `torch.nn.Module` (`torch.nn.CrossEntropyLoss()`) and a function of `torch.nn.functional`
    are called in PyTorch's own order, (predictions, labels), also in a `functools.partial`, and so
    is what names its parameters so (see `call_order`).
    """

    def __init__(
        self,
        loss: Callable[..., torch.Tensor],
        device: Device = _CPU,
        tell: Tell = told_nobody,
    ) -> None:
        """Take a user's loss.

        Args:
            loss: The loss of the model file; it stays as it is.
            device: The device of labels and predictions.
            tell: Told of an order that is not the usual.

        Raises:
            ModelError: It is no function, or has parameters.
        """
        if not callable(loss):
            raise ModelError(
                f"loss is {loss!r}: expected a function loss(labels, predictions), or a loss of "
                "torch.nn or torch.nn.functional; names of losses are for Keras"
            )
        inner = loss.func if isinstance(loss, functools.partial) else loss
        self._is_swapped = takes_predictions_first(loss, "loss", tell, is_of_torch(loss))
        _check_module(inner)
        self._loss = loss if device.is_cpu else _on(loss, device)

    @property
    def function(self) -> Callable[..., torch.Tensor]:
        """The function to call: the user's, or a copy of it whose tensors are on the device."""
        return self._loss

    def __call__(self, labels: Nested, predictions: Nested) -> torch.Tensor:
        """Return the loss.

        Raises:
            ModelError: The function raises, or gives something else.
        """
        return self.checked(self.value(labels, predictions))

    def value(self, labels: Nested, predictions: Nested) -> torch.Tensor:
        """Return what the user's function does; an evaluation has no gradient to be checked.

        Raises:
            ModelError: The function raises.
        """

        def shapes(error: Exception) -> str:
            given = f"labels are {describe(labels)}, predictions {describe(predictions)}"
            return f" ({place_of(error)}); {given}"

        with user_code("loss(labels, predictions)", after=shapes):
            return self.bare(labels, predictions)

    def bare(self, labels: Nested, predictions: Nested) -> torch.Tensor:
        """Return the result of the user's function, without a check."""
        if self._is_swapped:
            return self._loss(predictions, labels)
        return self._loss(labels, predictions)

    @staticmethod
    def differentiate(loss: torch.Tensor) -> None:
        """Compute the gradients of a loss.

        Raises:
            ModelError: A part of the model has none, or its own code for them raises.
        """
        with user_code("loss.backward()"):
            loss.backward()

    @staticmethod
    def checked(loss: torch.Tensor | object) -> torch.Tensor:
        """Return a loss that can be used.

        Raises:
            ModelError: It is something else.
        """
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise ModelError(
                f"loss(labels, predictions) returned {describe(loss)}; expected one number, the "
                "mean over the minibatch: a loss of each example needs .mean()"
            )
        if not loss.requires_grad:
            raise ModelError(
                "loss(labels, predictions) has no gradient for any parameter of the model; does "
                "it, or the model, use argmax, a comparison, detach() or torch.no_grad()?"
            )
        return loss.reshape(())


def object_of(function: Any, what: str) -> Any:
    """Return a loss or metric; an object of it if it is a class, as `compile` of Keras does it."""
    if not isinstance(function, type):
        return function
    with user_code(f"{what}: {function.__name__}()"):
        return function()


def is_of_torch(loss: object) -> bool:
    """Whether a loss, or a metric, is a module, or a function of PyTorch: (predictions, labels)."""
    called = loss.func if isinstance(loss, functools.partial) else loss
    # A model file may name the method `forward` of a loss in place of the loss.
    inner = called.__self__ if inspect.ismethod(called) else called  # `forward` of a loss
    of_functions = ("torch.nn.functional", "torch._C._nn")
    return isinstance(inner, nn.Module) or getattr(inner, "__module__", "") in of_functions


def _check_module(loss: object) -> None:
    if not isinstance(loss, nn.Module):
        return
    for name, _ in loss.named_parameters():
        raise ModelError(
            f"the loss, a {type(loss).__name__}, has the parameter {name!r}, which the job would "
            "not train: move it to the model, and return what the loss needs of it as one of the "
            "predictions"
        )


def _on(loss: Callable[..., torch.Tensor], device: Device) -> Callable[..., torch.Tensor]:
    """Return a loss whose own tensors (weights of classes and the like) are on a device."""
    if isinstance(loss, functools.partial):
        args, keywords = (
            map_leaves(lambda x: x.to(device.torch) if isinstance(x, torch.Tensor) else x, part)
            for part in (loss.args, loss.keywords)
        )
        assert isinstance(args, tuple), "the structure stays"
        assert isinstance(keywords, Mapping), "the structure stays"
        return functools.partial(_on(loss.func, device), *args, **keywords)
    if isinstance(loss, nn.Module):
        # The loss stays on the CPU for evaluations, so the device gets a copy.
        there: Callable[..., torch.Tensor] = copy.deepcopy(loss).to(device.torch)
        return there
    return loss

"""The user's loss of a minibatch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from elasticdl.backends.torch.structures import describe
from elasticdl.errors import ElasticdlError, ModelError, place_of


class MinibatchLoss:
    """`loss(labels, predictions)`, a scalar tensor.

    What PyTorch itself has (`torch.nn.CrossEntropyLoss()`, `torch.nn.functional.mse_loss`) is
    called in its own order, (predictions, labels).
    """

    def __init__(self, loss: Callable[[Any, Any], Any]) -> None:
        self._loss = loss
        self._is_torch = isinstance(loss, nn.Module) or (
            getattr(loss, "__module__", "") in ("torch.nn.functional", "torch._C._nn")
        )

    def __call__(self, labels: Any, predictions: Any) -> Any:
        """Return the loss.

        Raises:
            ModelError: The function raises, or gives something else.
        """
        return self.checked(self.value(labels, predictions))

    def value(self, labels: Any, predictions: Any) -> Any:
        """Return what the user's function does; an evaluation has no gradient to be checked.

        Raises:
            ModelError: The function raises.
        """
        try:
            return self.bare(labels, predictions)
        except ElasticdlError:
            raise
        except Exception as error:
            raise ModelError(
                f"loss(labels, predictions) raised {type(error).__name__}: "
                f"{' '.join(str(error).split())[:1000]} ({place_of(error)}); labels are "
                f"{describe(labels)}, predictions {describe(predictions)}"
            ) from error

    def bare(self, labels: Any, predictions: Any) -> Any:
        """Return what the user's function does, whatever that is."""
        if self._is_torch:
            return self._loss(predictions, labels)
        return self._loss(labels, predictions)

    @staticmethod
    def checked(loss: Any) -> Any:
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

"""Clips gradients for optimizers of PyTorch, as in `clip_grad_norm(torch.optim.Adam(...), 1.0)`.

A job clips the gradient of each minibatch before it is applied, and with all-reduce their mean. In
a plain loop of PyTorch, the optimizer clips in its `step`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from elasticdl.errors import ModelError


@dataclass(frozen=True, slots=True)
class Clipping:
    """A hook of an optimizer's steps; `kind` and `limit` are those of `ClipSpec`."""

    kind: str
    limit: float

    def __call__(
        self,
        optimizer: torch.optim.Optimizer,
        args: tuple[object, ...],
        kwargs: Mapping[str, object] | None,
    ) -> None:
        """Clip the gradients of all parameters of a plain optimizer."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if self.kind == "value":
            torch.nn.utils.clip_grad_value_(parameters, self.limit)
        else:
            torch.nn.utils.clip_grad_norm_(parameters, self.limit)


def clip_grad_norm(optimizer: torch.optim.Optimizer, max_norm: float) -> torch.Tensor:
    """Make an optimizer clip as `torch.nn.utils.clip_grad_norm_` does; return the optimizer.

    Args:
        optimizer: An optimizer of `torch.optim`.
        max_norm: The limit of the L2 norm of the gradients of all parameters together, with the
            rows of tables.

    Raises:
        ModelError: An argument has another type, or the optimizer clips already.
    """
    return _clipping(optimizer, "global_norm", "clip_grad_norm", "max_norm", max_norm)


def clip_grad_value(optimizer: torch.optim.Optimizer, clip_value: float) -> torch.Tensor:
    """Make an optimizer clip as `torch.nn.utils.clip_grad_value_` does; return the optimizer.

    Args:
        optimizer: An optimizer of `torch.optim`.
        clip_value: The limit of each element of a gradient, on both sides of 0.

    Raises:
        ModelError: An argument has another type, or the optimizer clips already.
    """
    return _clipping(optimizer, "value", "clip_grad_value", "clip_value", clip_value)


def _clipping(
    optimizer: torch.optim.Optimizer, kind: str, function: str, name: str, limit: float
) -> torch.Tensor:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ModelError(
            f"{function}(optimizer, {name}): expected an optimizer of torch.optim, found "
            f"{type(optimizer).__name__}; a scheduler goes around what this returns"
        )
    is_number = isinstance(limit, int | float) and not isinstance(limit, bool)
    if not is_number or not 0 < limit < math.inf:
        raise ModelError(
            f"{function}(optimizer, {name}): expected a finite {name} above 0, found {limit!r}; "
            "leave the call out for no clipping"
        )
    # A job has one limit for all parameters, so a second hook is refused.
    if any(isinstance(hook, Clipping) for hook in optimizer._optimizer_step_pre_hooks.values()):
        raise ModelError(
            f"{function}(optimizer, {name}): the optimizer clips already; expected one limit"
        )
    optimizer.register_step_pre_hook(Clipping(kind, float(limit)))
    return optimizer

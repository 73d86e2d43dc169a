"""What training does to buffers: moving statistics and counters.

Workers train at the same time, so none of them knows the value that its change will meet. The
replicas make `momentum * old + change` of a buffer, which is right where `change` does not depend
on `old`. The momentum is found by trial: a step from other values says how much of them is kept.

Some buffers of PyTorch follow no such rule: the mean of all minibatches, in which one weighs 1 / n
(`BatchNorm1d(momentum=None)`), and the vectors of a spectral norm, which each step makes anew. Half
of the old value, and what is missing to the new one, is right for one worker, and for all-reduce,
which takes the mean of such changes. With ps replicas what two workers make at the same time of the
same value comes to the newer one and a half of the other's change.

A buffer that begins with inf, as that of a smallest value does, says nothing in a trial. Each step
replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from elasticdl.backends.base import Float32
from elasticdl.backends.torch.feed import TorchMinibatch
from elasticdl.backends.torch.model import Buffer, Lookup, PlacedModel
from elasticdl.errors import ModelError

_SAME = 1e-3
_NOT_MOVED_BY_OTHERS = 1e-5
_DIGITS = 4


Step = Callable[[TorchMinibatch], None]


def find_momenta(
    placed: PlacedModel, minibatch: TorchMinibatch, step: Step, begins: Float32
) -> list[float]:
    """Return the momentum of each buffer in training; the model keeps the values that it has.

    Args:
        placed: The model.
        minibatch: A first one.
        step: Makes a step that updates nothing.
        begins: The state that training begins with; the model may have another one now.

    Raises:
        ModelError: A buffer follows another rule.
    """
    if not placed.buffers:
        return []
    dense, before = placed.dense_values(), placed.state_values()
    first = _after(placed, minibatch, dense, before, step)
    # A slow copy of parameters changes as soon as they do.
    other = _after(placed, minibatch, np.where(dense == 0, 0.01, 0.99 * dense), before, step)
    sizes = [int(buffer.value.numel()) for buffer in placed.buffers]
    parts = np.split(np.arange(len(before)), np.cumsum(sizes)[:-1])
    are_endless = [not np.all(np.isfinite(begins[part])) for part in parts]
    changes = [
        not is_endless
        and bool(np.any(first[part] != before[part]) or np.any(other[part] != before[part]))
        for part, is_endless in zip(parts, are_endless, strict=True)
    ]

    def slopes(shifts: Sequence[int]) -> torch.Tensor:
        # Whole numbers, so that counters stay numbers that a float32 can tell apart.
        shift = placed.repeat([float(n) for n in shifts])
        after = _after(placed, minibatch, dense, before + shift, step)
        with np.errstate(invalid="ignore"):  # of what begins with inf there is no slope
            return (after - first) / np.maximum(shift, 1.0)

    alike = slopes([int(does) for does in changes])
    apart = slopes([int(does) * (2 + number) for number, does in enumerate(changes)])
    momenta = []
    for number, (buffer, part) in enumerate(zip(placed.buffers, parts, strict=True)):
        if not changes[number]:
            momenta.append(0.0 if are_endless[number] else 1.0)
            continue
        momentum = _momentum(buffer, np.stack([alike[part], apart[part]]), _NOT_MOVED_BY_OTHERS)
        if momentum is None:  # it is computed of others, which had another value
            alone = slopes([int(number == k) for k in range(len(parts))])[part]
            momentum = _momentum(buffer, alone, _SAME)
            if momentum is None:
                raise _no_momentum(buffer, alone)
        momenta.append(momentum)
    placed.load(dense, before)
    return momenta


def _after(
    placed: PlacedModel,
    minibatch: TorchMinibatch,
    dense: torch.Tensor,
    state: torch.Tensor,
    step: Step,
) -> torch.Tensor:
    placed.load(dense, state)
    step(minibatch)
    return placed.state_values()


def _is_made_new(buffer: Buffer) -> bool:
    """Whether a buffer is one of PyTorch's own that follow another rule; see above."""
    module, key = buffer.module, buffer.key
    if isinstance(module, _NormBase):
        return module.momentum is None
    if isinstance(module, _SpectralNorm):
        return True
    hooks = module._forward_pre_hooks.values()
    return any(
        isinstance(hook, SpectralNorm) and key in (f"{hook.name}_u", f"{hook.name}_v")
        for hook in hooks
    )


def zeros(placed: PlacedModel) -> Lookup:
    """Return a lookup that gives zeros."""

    def look_up(layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        placed.table_of(layer)
        return torch.zeros(*ids.shape, layer.embedding_dim, device=ids.device)

    return look_up


def _momentum(buffer: Buffer, slopes: torch.Tensor, tolerance: float) -> float | None:
    if not slopes.size:
        return 1.0
    if _is_made_new(buffer):
        return 0.5
    found = round(float(np.median(slopes)), _DIGITS)
    is_one = np.all(np.abs(slopes - found) < tolerance) and 0.0 <= found <= 1.0
    return found if is_one else None


def _no_momentum(buffer: Buffer, slopes: torch.Tensor) -> ModelError:
    low, high = float(np.min(slopes)), float(np.max(slopes))
    return ModelError(
        f"training makes the new value of buffer {buffer.name!r} of {low:.4g} to {high:.4g} times "
        "the old one; expected one factor from 0 to 1, as batch normalization with a momentum has "
        "it: changes of workers that train at the same time do not add up otherwise"
    )

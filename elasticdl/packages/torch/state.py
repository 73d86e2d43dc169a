"""Training's effect on buffers: moving statistics and counters; see `frameworks/momenta.py`.

Some buffers of PyTorch follow no such rule. `BatchNorm1d(momentum=None)` keeps the mean of all
minibatches, in which one weighs 1 / n. Each step makes the vectors of a spectral norm anew. A
momentum of one half, with the missing part added, is right for one worker. It is right for
all-reduce too, which takes the mean of such changes. On ps replicas two workers may change the same
value at the same time. It then becomes the newer value and a half of the other's change.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from elasticdl.backends.base import Float32
from elasticdl.errors import ModelError
from elasticdl.packages.frameworks.momenta import momentum_of
from elasticdl.packages.torch.buffers import Buffer
from elasticdl.packages.torch.feed import TorchMinibatch
from elasticdl.packages.torch.model import Lookup, PlacedModel, trial_rows

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

    def after(state: Float32, of: Float32 = dense) -> Float32:
        placed.load(of, state)
        step(minibatch)
        return placed.state_values()

    # A slow copy of parameters changes as soon as they do.
    others = after(begins), after(begins, np.where(dense == 0, 0.01, 0.99 * dense))
    momenta, start = [], 0
    for buffer in placed.buffers:
        part = slice(start, start + int(buffer.value.numel()))
        start = part.stop
        momentum = _said(buffer)
        if momentum is None:
            stays = all(np.array_equal(other[part], begins[part]) for other in others)
            is_finite = np.all(np.isfinite(begins[part]))
            dtype = str(buffer.value.dtype).removeprefix("torch.")
            momentum = 1.0 if stays and is_finite else momentum_of(after, begins, part, dtype)
        if momentum is None:
            raise ModelError(
                f"training computes the new value of buffer {buffer.name!r} from the old one in a "
                "way that does not add up over workers, which train at the same time; expected "
                "momentum * old + new part with a momentum from 0 to 1, as batch normalization has "
                "it, a sum or count, or a value that is replaced"
            )
        momenta.append(momentum)
    placed.load(dense, before)
    return momenta


def _said(buffer: Buffer) -> float | None:
    """Return the momentum that a module of PyTorch says, or its half; see above."""
    module, key = buffer.module, buffer.key
    # A subclass with a forward of its own may follow another rule.
    is_norm = isinstance(module, _NormBase) and type(module).forward.__module__.startswith("torch.")
    if is_norm and key.startswith("running_") and module.training and module.track_running_stats:
        return 0.5 if module.momentum is None else 1.0 - module.momentum
    hooks = module._forward_pre_hooks.values()
    is_made_new = isinstance(module, _SpectralNorm) or any(
        isinstance(hook, SpectralNorm) and key in (f"{hook.name}_u", f"{hook.name}_v")
        for hook in hooks
    )
    return 0.5 if is_made_new else None


def looked_up(placed: PlacedModel) -> Lookup:
    """Return a lookup for steps that update nothing."""

    def look_up(layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        placed.table_of(layer)
        return trial_rows(layer, ids)

    return look_up

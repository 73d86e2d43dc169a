"""The buffers of a PyTorch model: those that cross in the state vector, and those that may not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from elasticdl.backends.base import Float32
from elasticdl.errors import ModelError
from elasticdl.packages.torch.device import Device
from elasticdl.packages.torch.trial import UntrainedState

EXACT_INTEGERS = 2**24  # below it, each integer is a float32 of its own
Place = tuple[str, nn.Module, str]
"""A name of a buffer, its module, and the key there."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """A value that crosses in the state vector, and its place among the buffers of the model.

    A parameter that is not trained and that steps change, as a teacher's, is one too.

    also: The other places of the same tensor: name, module and key.
    """

    name: str
    module: nn.Module
    key: str
    value: torch.Tensor
    also: tuple[Place, ...] = ()
    is_parameter: bool = False

    @property
    def _register(self) -> dict[str, torch.Tensor]:
        module = self.module
        found: dict[str, torch.Tensor] = (
            module._parameters if self.is_parameter else module._buffers
        )
        return found

    @property
    def is_counter(self) -> bool:
        """Whether it counts what must not be missing; batch norm hardly needs its own counter."""
        is_norm = isinstance(self.module, _NormBase) and self.key == "num_batches_tracked"
        return not self.value.is_floating_point() and not is_norm

    def check_counted(self, before: Float32, now: Float32) -> None:
        """Refuse integers from which on a float32 cannot count.

        Raises:
            ModelError: A step has made one of them.
        """
        if np.abs(now).max(initial=0.0) >= EXACT_INTEGERS and (now != before).any():
            raise ModelError(
                f"buffer {self.name!r} has counted to {EXACT_INTEGERS}, from where on a float32, "
                "in which workers pass it on, cannot count; count in larger steps, or let it start "
                "again from 0"
            )

    def put(self, flat: torch.Tensor) -> None:
        """Give the module, or all that share it, a tensor of this backend, with these values."""
        self.value.copy_(flat.view(self.value.shape))
        self._register[self.key] = self.value
        for _, module, key in self.also:
            module._buffers[key] = self.value

    def current(self) -> torch.Tensor:
        """Return what the module has now, flat, as float32.

        Raises:
            ModelError: A step has made two tensors of one that modules share.
        """
        now = self._register[self.key]
        for other, module, key in self.also:
            if module._buffers[key] is not now:
                raise ModelError(
                    f"the buffers {self.name!r} and {other!r} are one tensor, which training "
                    "replaces in one of them: change it in place (.copy_, .add_), or give each "
                    "module its own by .clone()"
                )
        return now.detach().reshape(-1).to(torch.float32)


@dataclass(frozen=True, slots=True)
class Constant:
    """A buffer that no step may change: it does not fit the state vector."""

    name: str
    module: nn.Module
    key: str
    value: torch.Tensor
    version: int

    def check(self) -> None:
        """Raise if it has changed."""
        now = self.module._buffers[self.key]
        if now is not self.value or now._version != self.version:
            raise ModelError(
                f"training changes the buffer {self.name!r} of {self.value.dtype}, which workers "
                "cannot pass on: they pass on float32, and integers below 2**24"
            )


def sorted_buffers(
    model: nn.Module, carried: UntrainedState, device: Device
) -> tuple[list[Buffer], list[Constant]]:
    """Return the buffers of a model, and of the loss, that a step may change, and the others."""
    buffers, constants = [], []
    for places in _places([("", model), *carried.of_loss]):
        (name, module, key), *others = places
        value = module._buffers[key]
        if value.dtype == torch.float32 or _is_small(value):
            own = value.detach().to(device.torch, copy=True, memory_format=torch.contiguous_format)
            buffers.append(Buffer(name, module, key, own, tuple(others)))
        else:
            own = value.to(device.torch)
            constants += [Constant(*place, own, own._version) for place in places]
        for _, module, key in places:  # one tensor of several modules stays one
            module._buffers[key] = own
    for name in sorted(carried.parameters):
        path, _, key = name.rpartition(".")
        parameter = model.get_parameter(name)
        parameter.data = parameter.detach().to(
            device.torch, copy=True, memory_format=torch.contiguous_format
        )
        buffers.append(Buffer(name, model.get_submodule(path), key, parameter, is_parameter=True))
    return buffers, constants


def _places(roots: Sequence[tuple[str, nn.Module]]) -> Iterable[list[Place]]:
    """Return the places of each tensor that is a buffer."""
    found: dict[int, list[Place]] = {}
    for path, module in (each for name, root in roots for each in root.named_modules(prefix=name)):
        for key, value in module._buffers.items():
            if value is not None:
                name = f"{path}.{key}" if path else key
                found.setdefault(id(value), []).append((name, module, key))
    return found.values()


def _is_small(value: torch.Tensor) -> bool:
    """Say whether a float32 can stand for the integers of a buffer."""
    if value.dtype.is_floating_point or value.dtype.is_complex or value.dtype == torch.bool:
        return False
    # PyTorch computes little of unsigned integers, and float64 is exact up to 2**53.
    return not value.numel() or float(value.to(torch.float64).abs().max()) < EXACT_INTEGERS

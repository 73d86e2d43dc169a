"""The device of a model in PyTorch, and the way of arrays to it and back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch import device as TorchDevice

from elasticdl.backends.base import Float32
from elasticdl.data.strings import Array
from elasticdl.errors import ModelError
from elasticdl.packages.torch.structures import Nested, map_leaves

CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Device:
    """A device of PyTorch. Arrays go to a GPU, and come from it, by pinned memory.

    Pinned memory is of PyTorch's own pool. It is used again only when the copies from it are done.
    """

    name: str = CPU

    @property
    def is_cpu(self) -> bool:
        """Whether tensors on it share memory with arrays."""
        return self.name == CPU

    @property
    def torch(self) -> TorchDevice:
        """The device as PyTorch names it."""
        return torch.device(self.name)

    def tensor(self, array: Array | np.generic) -> Tensor:
        """Return an array as a tensor here; on the CPU on the same memory."""
        tensor = from_numpy(array)
        return tensor if self.is_cpu else self._sent(tensor)

    def moved(self, structure: Nested) -> Nested:
        """Return a structure with its tensors here; its dicts and lists are the receiver's own."""
        return map_leaves(
            lambda leaf: self._sent(leaf) if isinstance(leaf, torch.Tensor) else leaf, structure
        )

    def array(self, tensor: Tensor) -> Float32:
        """Return a tensor that is here as an array; the work that it comes from is waited for."""
        tensor = tensor.detach()
        if not self.is_cpu:
            pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            pinned.copy_(tensor, non_blocking=True)
            # The copy runs beside Python, and the array may be read only when the copy is done.
            torch.cuda.current_stream(self.torch).synchronize()
            tensor = pinned
        found: Float32 = tensor.contiguous().numpy()
        return found

    def seed(self, seed: int) -> None:
        """Have the random numbers that are drawn here begin with a seed."""
        torch.default_generator.manual_seed(seed)
        if not self.is_cpu:
            with torch.cuda.device(self.torch):
                torch.cuda.manual_seed(seed)

    def _sent(self, tensor: Tensor) -> Tensor:
        if self.is_cpu:
            # The receiver may call requires_grad_() on it, which is for one call alone.
            may_grow = tensor.is_floating_point() or tensor.is_complex()
            return tensor.detach() if may_grow else tensor
        if tensor.device != torch.device(CPU):
            return tensor
        return tensor.pin_memory().to(self.torch, non_blocking=True)


def open_device(name: str) -> Device:
    """Return a device of `--worker_devices`.

    Raises:
        ModelError: There is none of that name; says what there is.
    """
    wanted = torch.device(name)
    if wanted.type == CPU:
        return Device()
    there = [f"cuda:{k} ({torch.cuda.get_device_name(k)})" for k in range(_num_gpus())]
    if wanted.index < len(there):
        return Device(name)
    if torch.version.cuda is None:
        found = "a PyTorch that is built for the CPU alone"
    else:
        found = f"cpu and {', '.join(there) or 'no GPU'}"
    raise ModelError(
        f"--worker_devices: expected {name} on the machine of each worker, PyTorch "
        f"{torch.__version__} finds {found}; name what is there, or leave the flag out (cpu)"
    )


def from_numpy(array: Array | np.generic) -> Tensor:
    """Return a tensor on the memory of an array that nobody writes to."""
    # PyTorch warns of memory that is read-only, because a tensor on it could be written.
    if not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(np.asarray(array))


def _num_gpus() -> int:
    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


def prepare(seed: int, num_threads: int) -> None:
    """Have PyTorch use these threads, and begin with the same random numbers in each worker."""
    torch.set_num_threads(num_threads)
    torch.manual_seed(seed)

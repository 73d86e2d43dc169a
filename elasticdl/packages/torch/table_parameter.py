"""The weight that stands for a table on the ps replicas in a PyTorch model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from elasticdl.errors import ModelError

_INSTEAD = (
    "use uniform_, normal_, constant_, a kaiming or a xavier function of torch.nn.init, or say "
    'initializer=elasticdl.Initializer("truncated_normal", {"mean": 0.0, "stddev": 0.02})'
)
_VIEWS = frozenset({"T", "H", "mT", "mH", "real", "imag"})
_MOVES = frozenset({"to", "cpu", "cuda", "float", "half", "bfloat16", "double"})
Distribution = tuple[str, dict[str, float]]
"""The kind and the parameters, as in `Initializer` of `elasticdl/backends/base.py`."""

# These functions need no rows of the table: they ask for its shape and the like.
_HARMLESS = frozenset(
    {
        "__get__", "__set__", "__delete__", "size", "dim", "numel", "is_floating_point",
        "is_complex", "requires_grad_", "__hash__", "__repr__", "__len__",
        "full_like", "zeros_like", "empty_like", "element_size",
        "_has_compatible_shallow_copy_type",
    }
)  # fmt: skip


_CPU = torch.device("cpu")
_device: ContextVar[torch.device] = ContextVar("elasticdl_device", default=_CPU)


@contextmanager
def computed_on(device: torch.device) -> Iterator[None]:
    """Let the weights of tables say, within the block, that they are on the model's device.

    PyTorch takes ids that are on no device, and gives memory that nobody has written.
    """
    token = _device.set(device)
    try:
        yield
    finally:
        _device.reset(token)


class TableParameter(nn.Parameter):  # type: ignore[misc]  # torch has no types here
    """Stands for a table on the ps replicas: it has a shape and a device, but no memory.

    Functions of `torch.nn.init`, and in-place initialisations, set the distribution of new rows.
    Any other read or write of the table is refused.

    Attributes:
        table_initializer: The distribution of new rows.
        given: All rows, if the model file sets them, shape (num_embeddings, dim).
        owner: The name of the weight's owner in messages.
        padding: The id that gives zeros, if there is one.
    """

    table_initializer: Distribution
    given: NDArray[np.float32] | None
    owner: str
    padding: int | None

    @classmethod
    def of(
        cls, owner: str, rows: int, dim: int, initializer: Distribution, padding: int | None = None
    ) -> TableParameter:
        """Return the weight of a layer."""
        empty = torch.empty((rows, dim), device="meta")
        weight: TableParameter = torch.Tensor._make_subclass(cls, empty, True)
        weight.table_initializer, weight.given, weight.owner = initializer, None, owner
        weight.padding = padding
        return weight

    def __deepcopy__(self, memo: dict[int, torch.Tensor]) -> TableParameter:
        """Return another weight with the same first rows."""
        rows, dim = self.shape
        copied = TableParameter.of(self.owner, rows, dim, self.table_initializer, self.padding)
        copied.given = self.given
        memo[id(self)] = copied.requires_grad_(self.requires_grad)
        return copied

    @classmethod
    def __torch_function__(
        cls,
        func: torch._C._FunctionBase,
        types: Iterable[type],
        args: tuple[torch.Tensor, ...] = (),
        kwargs: Mapping[str, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Note the initial values, answer questions about the shape, and refuse all other calls."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        weight = args[0] if args and isinstance(args[0], cls) else None
        if weight is None:
            weight = kwargs.get("tensor")  # as functions of torch.nn.init call it
        if weight is not None and _says_initial_values(func, name):
            weight._begin_with(func, name, args, kwargs)
            return weight
        attribute = getattr(getattr(func, "__self__", None), "__name__", "")
        if weight is not None and name == "__get__" and attribute == "data":
            return weight  # weight.data.uniform_() and the like
        if weight is not None and name == "__set__" and attribute == "data":
            if args[1] is not weight:
                weight._begin_with(func, "copy_", args, kwargs)  # weight.data = rows
            return weight
        if weight is not None and name == "detach":
            return weight  # as a state dict has it; a plain tensor would have no values
        if name == "__get__" and attribute == "is_meta":
            return False  # functions of torch.nn.init would do nothing, and say nothing
        if name == "__get__" and attribute == "device":
            return _device.get()  # models make tensors there
        if name == "__get__" and attribute == "is_cuda":
            return _device.get().type == "cuda"
        if weight is not None and name in _MOVES:
            return weight._moved(name, args, kwargs)
        if weight is not None and name == "__getitem__" and weight._is_padding(args[1]):
            return weight._of_padding()
        if weight is not None and name == "__setitem__" and weight._is_padding(args[1]):
            return weight._of_padding().copy_(torch.as_tensor(args[2]))
        if name in _HARMLESS and attribute not in _VIEWS:
            return super().__torch_function__(func, types, args, kwargs)
        owner = weight.owner if weight is not None else "an embedding layer"
        if "hook" in name:
            raise ModelError(
                f"the model calls {name} on the weight of {owner}, which has no gradient in a "
                "worker, so the hook would never be called: in forward, call register_hook on the "
                "rows that the layer returns, if rows.requires_grad"
            )
        raise ModelError(
            f"the model calls {name} on the weight of {owner}, whose table is on the ps replicas: "
            "rows come by calling the layer. Use torch.nn's own layer where all of them are needed "
            f"at once; to say how rows begin, {_INSTEAD}"
        )

    def _moved(
        self,
        name: str,
        args: tuple[torch.Tensor, ...],
        kwargs: Mapping[str, torch.Tensor],
    ) -> TableParameter:
        """Return the weight as `.to` and the like do: where it is already, in float32.

        Raises:
            ModelError: It is moved elsewhere, or made another type.
        """
        device, dtype = None, None
        if name == "to":
            device, dtype, *_ = torch._C._nn._parse_to(*args[1:], **kwargs)
        is_here = name in ("to", "cpu", "float") and device in (None, _CPU)
        if is_here and dtype in (None, torch.float32):
            return self
        raise ModelError(
            f"the model calls {name} on the weight of {self.owner}: tables are float32, and "
            "--worker_devices says where the model is computed; leave the call out, and use "
            "torch.autocast in forward to compute in less"
        )

    def _is_padding(self, index: object) -> bool:
        """Whether this is the place of padding; `weight.data[padding_idx].zero_()` is usual."""
        if self.padding is None or not isinstance(index, int):
            return False
        return index in (self.padding, self.padding - (self.shape[0] or 1))

    def _of_padding(self) -> torch.Tensor:
        """Return the row of padding; changes of it are those of the given rows, or refused."""
        if self.given is not None:
            return torch.from_numpy(self.given[self.padding])
        return torch.zeros(self.shape[1]).as_subclass(_Padding)

    def _begin_with(
        self,
        func: torch._C._FunctionBase,
        name: str,
        args: tuple[torch.Tensor, ...],
        kwargs: Mapping[str, torch.Tensor],
    ) -> None:
        if name == "copy_":
            if tuple(args[1].shape) != tuple(self.shape):
                raise ModelError(
                    f"the weight of {self.owner} has shape {tuple(self.shape)}, the rows that the "
                    f"model copies into it {tuple(args[1].shape)}"
                )
            self.given = args[1].detach().to("cpu", torch.float32).numpy().copy()
            return
        # The function is run on a tensor without memory, to see what it draws from.
        plain = torch.empty(tuple(self.shape), device="meta")
        with _Draws() as draws:
            func(plain, *args[1:], **{k: v for k, v in kwargs.items() if k != "tensor"})
        # A row is created alone, so several draws that depend on each other cannot be repeated for
        # it.
        if len(draws.found) != 1:
            raise ModelError(
                f"the weight of {self.owner} is initialised by {name}, but rows are created one "
                f"by one on the ps replicas; {_INSTEAD}"
            )
        self.table_initializer, self.given = draws.found[0], None


class _Padding(torch.Tensor):  # type: ignore[misc]  # torch has no types here
    """The row of padding: zeros, which a model may set to zeros once more."""

    @classmethod
    def __torch_function__(
        cls,
        func: torch._C._FunctionBase,
        types: Iterable[type],
        args: tuple[torch.Tensor, ...] = (),
        kwargs: Mapping[str, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Do what is asked, and refuse another row than zeros."""
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            found = func(*args, **kwargs)
            rows = [each for each in (*args, *kwargs.values()) if isinstance(each, cls)]
            if any(row.any() for row in rows):
                raise ModelError(
                    "the model sets the row of padding to other values than zeros, which padding "
                    "gives here: leave it out, or leave padding_idx out"
                )
        return found


class _Draws(TorchDispatchMode):  # type: ignore[misc]  # torch has no types here
    """Notes the distributions with which a function fills a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Distribution] = []

    def __torch_dispatch__(
        self,
        func: torch._C._FunctionBase,
        types: Iterable[type],
        args: tuple[torch.Tensor, ...] = (),
        kwargs: Mapping[str, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        name, numbers = func.overloadpacket.__name__, [v for v in args[1:] if _is_number(v)]
        match name, numbers:
            case "uniform_", _:
                low, high = _two(numbers)
                self.found.append(("uniform", {"low": low, "high": high}))
            case "normal_", _:
                mean, stddev = _two(numbers)
                self.found.append(("normal", {"mean": mean, "stddev": stddev}))
            case "zero_", _:
                self.found.append(("constant", {"value": 0.0}))
            case "fill_", [value]:
                self.found.append(("constant", {"value": float(value)}))
            case _ if name.endswith("_"):
                self.found += [("other", {}), ("other", {})]  # it goes on from what was drawn
        return func(*args, **(kwargs or {}))


def _two(numbers: list[float]) -> tuple[float, float]:
    """Return two parameters of a distribution; the defaults are 0 and 1."""
    first, second = (*numbers, *(0.0, 1.0)[len(numbers) :])
    return float(first), float(second)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _says_initial_values(func: torch._C._FunctionBase, name: str) -> bool:
    if getattr(func, "__module__", "") == "torch.nn.init":
        return True
    return name in ("uniform_", "normal_", "zero_", "fill_", "copy_")

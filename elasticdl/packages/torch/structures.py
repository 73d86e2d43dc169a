"""Tensors, alone or in dicts, tuples and lists: what `feed` gives and what models return."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from elasticdl.data.strings import Array

Nested: TypeAlias = "torch.Tensor | Sequence[Nested] | Mapping[str, Nested] | None"
"""Tensors, alone or in dicts, tuples and lists, as `feed` or a model makes them."""

_SHOWN = 8  # of a list, in a message


def map_leaves(function: Callable[[torch.Tensor], object], value: Nested) -> Nested:
    """Return the same structure with `function` applied to each leaf."""
    if isinstance(value, Mapping):
        return {key: map_leaves(function, part) for key, part in value.items()}
    if isinstance(value, tuple):
        parts = [map_leaves(function, part) for part in value]
        made: Nested = getattr(type(value), "_make", tuple)(parts)  # a namedtuple stays one
        return made
    if isinstance(value, list):
        return [map_leaves(function, part) for part in value]
    leaf: torch.Tensor = function(value)
    return leaf


def map_outputs(function: Callable[[torch.Tensor], object], value: Nested) -> Nested:
    """Return `map_leaves` of a model's outputs, with dicts of the model's own types.

    A loss or a metric may say `predictions.logits` of a dict that has such attributes.
    """
    if not isinstance(value, Mapping) or type(value) is dict:
        return map_leaves(function, value)
    parts = {key: map_outputs(function, part) for key, part in value.items()}
    try:
        made: Any = copy.copy(value)
        for key, part in parts.items():
            made[key] = part
    except Exception:  # of a type that is not to be changed
        return parts
    own: Nested = made
    return own


def leaves(value: Nested) -> Iterator[torch.Tensor]:
    """Yield what dicts, tuples and lists hold."""
    if isinstance(value, Mapping):
        for part in value.values():
            yield from leaves(part)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from leaves(part)
    else:
        yield value


def without_none(value: Nested) -> Nested:
    """Return predictions without what a dict has no value of, such as a loss in evaluation."""
    if isinstance(value, Mapping):
        return {key: without_none(part) for key, part in value.items() if part is not None}
    return value


def as_tensor(value: torch.Tensor | np.generic | Array) -> torch.Tensor:
    """Return numbers as a tensor on the same memory; anything else, and strings, as they are."""
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        if not value.dtype.isnative:  # as np.frombuffer(record, ">i4") gives it
            value = value.astype(value.dtype.newbyteorder("="))
        if not value.flags.writeable:
            value = value.copy()  # a tensor cannot be told to be read-only
        return torch.from_numpy(np.ascontiguousarray(value))
    return value


def as_array(value: torch.Tensor | float | Array) -> Array:
    """Return a tensor as an array; half precision becomes float32, which NumPy supports better."""
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    value = value.detach().cpu()
    if value.dtype in (torch.bfloat16, torch.float16):
        value = value.float()
    found: Array = value.numpy()
    return found


def describe(value: object) -> str:
    """Say what a structure holds, for a message."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {describe(part)}" for key, part in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(describe(part) for part in value) + ")"
    if isinstance(value, list) and value and not isinstance(value[0], str | bytes | int | float):
        shown = ", ".join(describe(part) for part in value[:_SHOWN])
        return f"[{shown}{', ...' if len(value) > _SHOWN else ''}]"
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, np.ndarray):
        return f"array of {value.dtype}{list(value.shape)}"
    return type(value).__name__

"""What callbacks change outside of themselves: variables and values among a model file's globals.

Other files of the user's that the model file imports from count as it does.

Only the process that calls a callback has such a change: other workers do not get it, nor does a
worker that is started later. So the values before and after a call are compared.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from elasticdl.backends.python_state import is_own_file
from elasticdl.errors import SideEffectError

_DEPTH = 3  # of lists, dicts and objects in each other
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def globals_of(function: Callable[..., object] | None) -> Mapping[str, object]:
    """Return the globals of the file that has a function; empty if it has none."""
    while isinstance(inner := getattr(function, "__wrapped__", None), types.FunctionType):
        function = inner
    return getattr(function, "__globals__", {})


def values_in(namespace: Mapping[str, object]) -> dict[str, object]:
    """Return what globals hold now, as far as callbacks can change it, to be compared later.

    Those of other files have the file's name before theirs.
    """
    found: dict[str, object] = {}
    for prefix, names in _files(namespace).items():
        own = names.get("__name__")
        for name, value in list(names.items()):
            if not name.startswith("__"):
                found[f"{prefix}{name}"] = _held(value, own, _DEPTH)
    return found


def _files(namespace: Mapping[str, object]) -> dict[str, Mapping[str, object]]:
    """Return the globals of a file, and of the user's files that it has anything of."""
    found, left = {"": namespace}, [namespace]
    while left:
        for value in list(left.pop().values()):
            of = value if isinstance(value, types.ModuleType) else _module_of(value)
            if of is None or of.__name__ == namespace.get("__name__"):
                continue
            if f"{of.__name__}." not in found and is_own_file(vars(of)):
                found[f"{of.__name__}."] = vars(of)
                left.append(vars(of))
    return found


def _module_of(value: object) -> types.ModuleType | None:
    is_made_there = isinstance(value, type | types.FunctionType)
    return sys.modules.get(value.__module__) if is_made_there else None


def check_unchanged(before: Mapping[str, object], namespace: Mapping[str, object]) -> None:
    """Refuse changes of globals since then.

    Raises:
        SideEffectError: There are some; names them.
    """
    after = values_in(namespace)
    changed = [n for n in {**before, **after} if not _same(before.get(n), after.get(n))]
    if not changed:
        return
    raise SideEffectError(
        f"a callback changes {', '.join(map(repr, sorted(changed)))} of the model file, and only "
        "the worker that has called it would know: neither other workers, nor one that is started "
        "later. Expected changes of the callback's own attributes, of "
        "model.optimizer.learning_rate (in PyTorch self.learning_rate) or of model.stop_training; "
        "a value that follows training can be computed in the model from a counter of its steps. "
        "With --distribution_strategy=Local there is one process, which has the change"
    )


def _held(value: object, own: object, depth: int) -> Any:
    if isinstance(value, _PLAIN):
        return value
    array = _array_of(value)
    if array is not None:
        return array
    if isinstance(value, types.ModuleType | types.FunctionType | types.BuiltinFunctionType):
        return id(value)
    if depth == 0 or hasattr(value, "on_epoch_end"):  # what a callback remembers goes with it
        return id(value)
    if isinstance(value, dict):
        return {str(key): _held(part, own, depth - 1) for key, part in list(value.items())}
    if isinstance(value, list | tuple | set | frozenset):
        return [_held(part, own, depth - 1) for part in list(value)]
    kind = value if isinstance(value, type) else type(value)
    if kind.__module__ == own or kind is types.SimpleNamespace:
        return {
            name: _held(part, own, depth - 1)
            for name, part in list(getattr(value, "__dict__", {}).items())
            if not name.startswith("__")
        }
    return id(value)


def _array_of(value: object) -> Any:
    """Return a copy of what a variable, tensor or array holds; None of anything else."""
    if isinstance(value, np.ndarray | np.generic):
        return np.array(value)
    if isinstance(value, type) or not (hasattr(value, "numpy") and hasattr(value, "shape")):
        return None
    try:
        detached = value.detach().cpu() if hasattr(value, "detach") else value
        return np.array(detached.numpy())
    except Exception:  # a symbolic tensor has no value
        return None


def _same(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and bool(one == other or (one != one and other != other))

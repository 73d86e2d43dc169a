"""What a `feed` does beside making examples, as far as its code says so for certain."""

from __future__ import annotations

import dis
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def side_effects(feed: Callable[..., Any]) -> list[str]:
    """List the calls of `print`, and the assignments to outer variables, that a `feed` has.

    Looked at are the function, those inside of it, and those of its module that they name. What a
    method of an object does, an append to a list for example, cannot be told from the code.
    """
    found: list[str] = []
    seen: set[int] = set()
    waiting = [_plain(feed)]
    while waiting:
        function = waiting.pop(0)
        if function is None or id(function) in seen:
            continue
        seen.add(id(function))
        for code in _codes(function.__code__):
            found += _of_code(code, function.__globals__)
            waiting += [_neighbour(function, name) for name in code.co_names]
        waiting += [_plain(cell) for cell in _held(function)]
    return found


def _of_code(code: types.CodeType, module: dict[str, Any]) -> Iterator[str]:
    for step in dis.get_instructions(code):
        line = step.positions.lineno if step.positions else None
        place = f"({Path(code.co_filename).name}:{line})"
        is_global = step.opname == "LOAD_GLOBAL"
        if is_global and step.argval == "print" and "print" not in module:
            yield f"a call of print in {code.co_name} {place}"
        elif step.opname == "STORE_GLOBAL" or (
            step.opname == "STORE_DEREF" and step.argval in code.co_freevars
        ):
            yield f"an assignment to the outer variable {step.argval!r} in {code.co_name} {place}"


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _neighbour(function: types.FunctionType, name: str) -> types.FunctionType | None:
    """Return the function of this name, if it is of the same module."""
    other = _plain(function.__globals__.get(name))
    return other if other is not None and other.__module__ == function.__module__ else None


def _held(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue


def _plain(value: Any) -> types.FunctionType | None:
    """Return the Python function of a value, also of one under `tf.function`."""
    value = getattr(value, "python_function", value)
    return value if isinstance(value, types.FunctionType) else None

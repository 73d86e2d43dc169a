"""Copies what a user's files hold in Python, so that it can be compared and put back.

A worker calls a model and a loss more often than there are steps, and another worker does not see
these calls at all. So the changes of the trials before training are put back. Two steps are
compared: a value that the first one leaves for the second is known to one process alone.

The attributes of objects and classes of the user are looked at, the globals of the user's files,
and the variables that functions hold of outer ones. So are the lists, dicts, sets, arrays and
tensors among all these. Iterators, `__slots__`, context variables and values of a thread are not
looked at.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import random
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from elasticdl.data.strings import Array
from elasticdl.errors import ModelError, SideEffectError

MOST_BYTES = 1 << 26
"""The largest array that is copied; a larger one is taken for data, which nobody changes."""

_MOST_PARTS = 20_000  # of a list, dict or set that is looked into; a larger one is taken for data
_RELATIVE, _ABSOLUTE = 1e-5, 1e-7  # sums in another order are the same
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)
_EMPTY = object()

Minibatch = TypeVar("Minibatch")
Visit = Callable[["PythonState", str, Any], bool]
"""Notes an object of a framework by its name; returns whether it is one."""


def shown(names: list[str]) -> str:
    """Return the first of some names that differ, for a message."""
    names = [name for name in names if not name.startswith("len(")] or names
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


class PythonState:
    """Holds the values that were reachable from some objects when this was made.

    In a `with` statement it is put back after the block.

    values: what is compared, by name. drawn: where the random numbers of Python and NumPy stand.
    """

    def __init__(self, roots: Mapping[str, object], visit: Visit = lambda *_: False) -> None:
        """Note what objects hold, and all that they refer to.

        Args:
            roots: The objects, by the names that a user knows them by.
            visit: Asked first about each object.
        """
        self.values: dict[str, object] = {}
        self._visit_first = visit
        self._undo: list[Callable[[], None]] = []
        self._seen: dict[int, Any] = {}  # they are kept, so that their ids remain theirs
        self._todo = deque(roots.items())
        of_python, of_numpy = random.getstate(), np.random.get_state()
        self.drawn = {"random": repr(of_python), "numpy.random": repr(of_numpy)}
        self.undo(lambda: random.setstate(of_python))
        self.undo(lambda: np.random.set_state(of_numpy))
        while self._todo:
            self._visit(*self._todo.popleft())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.put_back()

    def put_back(self) -> None:
        """Give everything its noted values again, but for cells of functions, and classes."""
        for undo in self._undo:
            undo()

    def differences(self, other: PythonState, same: Callable[..., bool] | None = None) -> list[str]:
        """Return the names of values that differ; rounding is no difference, if `same` is None."""
        same = same or is_same
        return sorted(
            name
            for name in self.values.keys() | other.values.keys()
            if not same(self.values.get(name, _EMPTY), other.values.get(name, _EMPTY))
        )

    def drawn_since(self, before: PythonState) -> list[str]:
        """Return the names of sources of random numbers that stood elsewhere before."""
        return sorted(name for name, at in self.drawn.items() if before.drawn[name] != at)

    # --- for frameworks --------------------------------------------------------------------------

    def add(self, name: str, thing: object) -> None:
        """Have an object visited."""
        self._todo.append((name, thing))

    def undo(self, undo: Callable[[], None]) -> None:
        """Have a function called by `put_back`."""
        self._undo.append(undo)

    def names(
        self,
        before: str,
        names: dict[str, Any],
        left_out: Callable[[str], bool] = lambda key: False,
    ) -> None:
        """Note what names stand for.

        Args:
            before: A prefix for each name, for a user.
            names: The things to note by name: attributes, globals.
            left_out: Says whether a name does not matter; it is asked again before a name is put
                back.
        """
        held = {key: value for key, value in names.items() if not left_out(key)}
        self.undo(lambda: _restore(names, held, left_out))
        for key, value in held.items():
            self.add(f"{before}{key}", value)

    # --- Python's own ----------------------------------------------------------------------------

    def _visit(self, name: str, thing: object) -> None:
        if isinstance(thing, _PLAIN):
            self.values[name] = thing
            return
        if id(thing) in self._seen:
            return
        self._seen[id(thing)] = thing
        if self._visit_first(self, name, thing):
            return
        match thing:
            case dict():
                held = dict(thing)
                self.undo(lambda: _restore(thing, held))
                self._parts(name, held)
            case list() | deque():
                self._list(name, thing)
            case tuple() | frozenset() if len(thing) <= _MOST_PARTS:
                for number, part in enumerate(thing):
                    self.add(f"{name}[{number}]", part)
            case set():
                self._set(name, thing)
            case np.ndarray() if thing.nbytes <= MOST_BYTES and thing.dtype != object:
                self._array(name, thing)
            case types.FunctionType():
                self._function(name, thing)
            case types.MethodType():
                self.add(name, thing.__self__)
                self.add(name, thing.__func__)
            case functools.partial():
                self.add(name, thing.func)
                self.add(f"{name}'s arguments", (thing.args, thing.keywords))
            case type():
                self._class(thing)
            case types.ModuleType():
                self._globals(vars(thing))
            case _ if _has(thing, "__wrapped__"):  # of functools.cache and the like
                self.add(name, getattr(thing, "__wrapped__", None))
            case _ if _is_own_class(type(thing)) or type(thing) is types.SimpleNamespace:
                if _has(thing, "__dict__"):
                    self.names(f"{name}.", vars(thing))
                self.add(type(thing).__qualname__, type(thing))

    def _list(self, name: str, thing: list[Any] | deque[Any]) -> None:
        held = list(thing)

        def undo() -> None:
            # Elements are compared by identity: `==` of arrays gives an array, and may run user
            # code.
            if len(thing) != len(held) or any(map(operator.is_not, thing, held)):
                thing.clear()
                thing.extend(held)

        self.undo(undo)
        self._parts(name, dict(enumerate(held)))

    def _parts(self, name: str, held: dict[Any, Any]) -> None:
        self.values[f"len({name})"] = len(held)
        if len(held) <= _MOST_PARTS:
            for key, value in held.items():
                self.add(f"{name}[{key!r}]" if isinstance(key, _PLAIN) else f"{name}[...]", value)

    def _set(self, name: str, thing: set[Any]) -> None:
        held = set(thing)

        def undo() -> None:
            thing.clear()
            thing.update(held)

        self.undo(undo)
        plain = len(held) <= _MOST_PARTS and all(isinstance(value, _PLAIN) for value in held)
        # A set has no order of its own, so its text is made of sorted values.
        self.values[name] = repr(sorted(held, key=repr)) if plain else len(held)

    def _array(self, name: str, thing: Array) -> None:
        held = self.values[name] = thing.copy()

        def undo() -> None:
            if thing.shape == held.shape:
                thing[...] = held

        if thing.flags.writeable:
            self.undo(undo)

    def _function(self, name: str, thing: types.FunctionType) -> None:
        if not is_own_file(thing.__globals__):
            self.add(name, getattr(thing, "__wrapped__", None))
            return
        for key, cell in zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # nothing is in it yet
                self.add(f"{name}'s {key}", cell.cell_contents)
        self.names(f"{name}.", vars(thing))
        self.add(f"{name}'s defaults", (thing.__defaults__, thing.__kwdefaults__))
        self._globals(thing.__globals__)

    def _globals(self, names: dict[str, Any]) -> None:
        if id(names) in self._seen or not is_own_file(names):
            return
        self._seen[id(names)] = names
        self.names(_file_of(names), names, lambda key: key.startswith("__"))

    def _class(self, thing: type) -> None:
        if not _is_own_class(thing):
            return
        for key, value in vars(thing).items():
            if isinstance(value, types.FunctionType):
                self._globals(value.__globals__)
            elif not key.startswith(("__", "_abc_")):
                self.add(f"{thing.__qualname__}.{key}", value)
        for base in thing.__mro__[1:]:
            self.add(base.__qualname__, base)


def _has(thing: object, name: str) -> bool:
    """Whether an object has an attribute, without a question to a `__getattr__` of the user's.

    Such a `__getattr__` may raise any error, or create the attribute.
    """
    return inspect.getattr_static(thing, name, _EMPTY) is not _EMPTY


def _restore(
    names: dict[Any, Any], held: dict[Any, Any], left_out: Callable[[Any], bool] = lambda key: False
) -> None:
    for key in [key for key in names if key not in held and not left_out(key)]:
        del names[key]
    for key, value in held.items():
        if names.get(key, _EMPTY) is not value and not left_out(key):
            names[key] = value


def _file_of(names: Mapping[str, object]) -> str:
    return f"{Path(str(names.get('__file__') or names.get('__name__', ''))).name}: "


@dataclass(frozen=True, slots=True)
class TwoSteps:
    """A step after another one, and the same step alone.

    Attributes:
        results: The result of each of the two steps.
        kept: The names of the values in Python that differ after the two.
        drawn: The sources of random numbers of Python and NumPy from which a step drew.
    """

    results: tuple[Any, Any]
    kept: list[str]
    drawn: list[str]


def compare_steps(
    note: Callable[[], PythonState],
    step: Callable[[Minibatch], Any],
    first: Minibatch,
    second: Minibatch,
) -> TwoSteps:
    """Make a step after another one, and the same step alone; put everything back.

    A value that each step leaves for its own loss, or to be looked at, makes no difference: the
    next step writes its own.

    Args:
        note: Notes the values in Python.
        step: Makes a step that updates nothing; returns what it computes.
        first: A minibatch that the model takes.
        second: The minibatch of the step; `first` is taken where the model does not take it.
    """
    before = note()

    def steps(*minibatches: Minibatch) -> tuple[Any, PythonState]:
        before.put_back()
        results = [step(one) for one in minibatches]
        return results[-1], note()

    with before:
        try:
            later, with_history = steps(first, second)
        except ModelError:
            second = first
            later, with_history = steps(first, second)
        alone, without = steps(second)
        kept = with_history.differences(without)
        return TwoSteps((later, alone), kept, without.drawn_since(before))


def is_same(one: object, other: object) -> bool:
    """Whether two values are the same, but for sums in another order."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        if one.dtype.kind in "fc":
            return np.allclose(one, other, _RELATIVE, _ABSOLUTE, equal_nan=True)
        return bool(np.array_equal(one, other)) or one.tobytes() == other.tobytes()
    if isinstance(one, float | np.floating) and isinstance(other, float | np.floating):
        return bool(np.isclose(one, other, _RELATIVE, _ABSOLUTE, equal_nan=True))
    return type(one) is type(other) and bool(one == other or (one != one and other != other))


# --- what callbacks change -----------------------------------------------------------------------


def globals_of(function: Callable[..., object] | None) -> Mapping[str, object]:
    """Return the globals of the file that has a function; empty if it has none."""
    while isinstance(inner := getattr(function, "__wrapped__", None), types.FunctionType):
        function = inner
    return getattr(function, "__globals__", {})


def globals_now(namespace: Mapping[str, object]) -> PythonState:
    """Note what the globals of a model file hold, as far as callbacks can change it.

    Other files of the user's that the model file imports from count as it does. The memory of a
    callback does not count: it goes from worker to worker.
    """
    file = _file_of(namespace)
    named = {f"{file}{key}": value for key, value in namespace.items() if not key.startswith("__")}
    return PythonState(named, _visit_for_callbacks)


def check_unchanged(before: PythonState, namespace: Mapping[str, object]) -> None:
    """Refuse changes of globals since then: only the process that calls a callback has them.

    Raises:
        SideEffectError: There are some; names them.
    """
    changed = before.differences(globals_now(namespace), _is_equal)
    if not changed:
        return
    raise SideEffectError(
        f"a callback changes {shown(changed)} of the model file, and only "
        "the worker that has called it would know: neither other workers, nor one that is started "
        "later. Expected changes of the callback's own attributes, of "
        "model.optimizer.learning_rate (in PyTorch self.learning_rate) or of model.stop_training; "
        "a value that follows training can be computed in the model from a counter of its steps. "
        "With --distribution_strategy=Local there is one process, which has the change"
    )


def _visit_for_callbacks(state: PythonState, name: str, thing: Any) -> bool:
    if _has(thing, "on_epoch_end"):
        return True
    if isinstance(thing, type) or not (_has(thing, "numpy") and _has(thing, "shape")):
        return False
    with contextlib.suppress(Exception):  # a symbolic tensor has no value
        held = thing.detach().cpu() if _has(thing, "detach") else thing
        state.values[name] = np.array(held.numpy())
    return True


def _is_equal(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.shape == other.shape and one.tobytes() == other.tobytes()
    return type(one) is type(other) and bool(one == other or (one != one and other != other))


# --- whose code it is ----------------------------------------------------------------------------


@functools.cache
def _libraries() -> tuple[Path, ...]:
    """Return where the code lies that is not a user's."""
    roots = [Path(sysconfig.get_paths()[name]) for name in ("stdlib", "platstdlib")]
    for name in ("numpy", "torch", "tensorflow", "keras", "elasticdl"):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None:  # what was installed beside it lies there too
            folder = Path(file).parent
            roots.append(folder if name == "elasticdl" else folder.parent)
    return tuple(roots)


def is_own_file(names: Mapping[str, object]) -> bool:
    """Whether the globals are those of a file that a user wrote."""
    file = names.get("__file__")
    if file is None:
        return names.get("__name__") == "__main__" or names.get("__name__") not in sys.modules
    path = Path(str(file))
    if {"site-packages", "dist-packages"} & set(path.parts):
        return False
    return not any(path.is_relative_to(root) for root in _libraries())


def _is_own_class(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    if module is not None:
        return is_own_file(vars(module)) and kind.__module__ != "builtins"
    functions = (value for value in vars(kind).values() if isinstance(value, types.FunctionType))
    return any(is_own_file(function.__globals__) for function in functions)

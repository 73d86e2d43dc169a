"""What the objects of a user's model file hold in Python, noted so that calls can be compared.

A worker calls a model and a loss more often than there are steps, and another worker does not see
these calls at all. So what they leave in Python (a counter of a module, a global of the file, a
list in a closure) is put back after calls that are trials, and what one step leaves for the next is
found by comparing.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import random
import sys
import sysconfig
import threading
import types
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from elasticdl.data.strings import Array
from elasticdl.errors import ModelError

MOST_BYTES = 1 << 26
"""The largest array that is copied; a larger one is taken for data, which nobody changes."""

_MOST_PARTS = 20_000  # of a list, dict or set that is looked into; a larger one is taken for data
_RELATIVE, _ABSOLUTE = 1e-5, 1e-7  # sums in another order are the same
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)
_ITERATORS: tuple[type, ...] = (
    types.GeneratorType,
    type(iter([])),
    type(iter(())),
    type(iter(range(0))),
)
_EMPTY = object()

Minibatch = TypeVar("Minibatch")
Visit = Callable[["PythonState", str, Any], bool]
"""Notes an object of a framework by its name; returns whether it is one."""


def shown(names: list[str]) -> str:
    """Return the first of some names that differ, for a message."""
    names = [name for name in names if not name.startswith("len(")] or names
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


class SourcesOfPython:
    """Where the sources of random numbers stand that Python and NumPy have for all."""

    def __init__(self) -> None:
        self._python, self._numpy = random.getstate(), np.random.get_state()

    def put_back(self) -> None:
        """Have them stand there again."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)

    def named(self) -> dict[str, str]:
        """Return what tells whether they have moved, by name."""
        return {"random": repr(self._python), "numpy.random": repr(self._numpy)}


class PythonState:
    """What is reachable from some objects, as it is when this is made.

    In a `with` statement it is put back after the block.

    values: what is compared, by name. drawn: names of sources of random numbers that are reachable.
    """

    def __init__(self, roots: Mapping[str, object], visit: Visit = lambda *_: False) -> None:
        """Note what objects hold, and all that they refer to.

        Args:
            roots: The objects, by the names that a user knows them by.
            visit: Asked first about each object.
        """
        self.values: dict[str, object] = {}
        self.drawn: dict[str, str] = {}
        self._visit_first = visit
        self._undo: list[Callable[[], None]] = []
        self._seen: dict[int, Any] = {}  # they are kept, so that their ids remain theirs
        self._todo = deque(roots.items())
        sources = SourcesOfPython()
        self.undo(sources.put_back)
        self.drawn |= sources.named()
        while self._todo:
            self._visit(*self._todo.popleft())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.put_back()

    def put_back(self) -> None:
        """Have everything hold what it held."""
        for undo in self._undo:
            undo()

    def differences(self, other: PythonState) -> list[str]:
        """Return the names of what differs."""
        names = self.values.keys() | other.values.keys()
        return sorted(
            name
            for name in names
            if not is_same(self.values.get(name, _EMPTY), other.values.get(name, _EMPTY))
        )

    def drawn_since(self, before: PythonState) -> list[str]:
        """Return the names of sources of random numbers that stood elsewhere before."""
        return sorted(n for n, at in self.drawn.items() if before.drawn.get(n, at) != at)

    # --- for frameworks --------------------------------------------------------------------------

    def add(self, name: str, thing: object) -> None:
        """Have an object visited."""
        self._todo.append((name, thing))

    def undo(self, undo: Callable[[], None]) -> None:
        """Have a function called by `put_back`."""
        self._undo.append(undo)

    def namespace(
        self,
        name: str,
        names: Mapping[str, object],
        set_one: Callable[[str, Any], None],
        delete_one: Callable[[str], None],
        left_out: Callable[[str], bool] = lambda key: False,
    ) -> None:
        """Note names and what they stand for.

        Args:
            name: What comes before each name, for a user.
            names: What is noted.
            set_one: Gives a name another meaning.
            delete_one: Takes a name away.
            left_out: Whether a name is of no matter; asked again before one is put back.
        """
        held = {key: value for key, value in names.items() if not left_out(key)}

        def undo() -> None:
            for key in [key for key in names if key not in held and not left_out(key)]:
                delete_one(key)
            for key, value in held.items():
                if names.get(key, _EMPTY) is not value and not left_out(key):
                    set_one(key, value)

        self.undo(undo)
        for key, value in held.items():
            self.add(f"{name}{key}", value)

    def attributes(
        self, name: str, thing: object, left_out: Callable[[str], bool] = lambda key: False
    ) -> None:
        """Note the attributes of an object."""
        own = vars(thing)
        self.namespace(f"{name}.", own, own.__setitem__, own.__delitem__, left_out)

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
                self._dict(name, thing)
            case list() | deque():
                self._list(name, thing)
            case tuple() | frozenset() if len(thing) <= _MOST_PARTS:
                for number, part in enumerate(thing):
                    self.add(f"{name}[{number}]", part)
            case set():
                self._set(name, thing)
            case np.ndarray() if thing.nbytes <= MOST_BYTES and thing.dtype != object:
                self._array(name, thing)
            case random.Random() | np.random.Generator() | np.random.RandomState():
                self._source(name, thing)
            case types.FunctionType():
                self._function(name, thing)
            case types.MethodType():
                self.add(name, thing.__self__)
                self.add(name, thing.__func__)
            case functools.partial():
                self.add(name, thing.func)
                self.add(f"{name}'s arguments", thing.args)
                self.add(f"{name}'s arguments", thing.keywords)
            case type():
                self._class(thing)
            case types.ModuleType():
                self._globals(vars(thing))
            case staticmethod() | classmethod():
                self.add(name, thing.__func__)
            case property():
                self.add(name, thing.fget)
            case _ if isinstance(thing, _ITERATORS):
                self._iterator(name, thing)
            case _:
                self._other(name, thing)

    def _dict(self, name: str, thing: dict[Any, Any]) -> None:
        held = list(thing.items())

        def undo() -> None:
            now = list(thing.items())
            if len(now) != len(held) or any(
                a is not c or b is not d for (a, b), (c, d) in zip(now, held, strict=True)
            ):
                thing.clear()
                thing.update(held)

        self.undo(undo)
        self.values[f"len({name})"] = len(held)
        if len(held) <= _MOST_PARTS:
            for key, value in held:
                self.add(f"{name}[{key!r}]" if isinstance(key, _PLAIN) else f"{name}[...]", value)

    def _list(self, name: str, thing: list[object] | deque[object]) -> None:
        held = list(thing)

        def undo() -> None:
            if len(thing) != len(held) or any(a is not b for a, b in zip(thing, held, strict=True)):
                thing.clear()
                thing.extend(held)

        self.undo(undo)
        self.values[f"len({name})"] = len(held)
        if len(held) <= _MOST_PARTS:
            for number, value in enumerate(held):
                self.add(f"{name}[{number}]", value)

    def _set(self, name: str, thing: set[Any]) -> None:
        held = set(thing)

        def undo() -> None:
            if thing != held:
                thing.clear()
                thing.update(held)

        self.undo(undo)
        plain = len(held) <= _MOST_PARTS and all(isinstance(value, _PLAIN) for value in held)
        self.values[name] = repr(sorted(held, key=repr)) if plain else len(held)

    def _array(self, name: str, thing: Array) -> None:
        held = thing.copy()

        def undo() -> None:
            if thing.flags.writeable and thing.shape == held.shape:
                thing[...] = held

        if thing.flags.writeable:
            self.undo(undo)
        self.values[name] = held

    def _source(
        self, name: str, thing: random.Random | np.random.Generator | np.random.RandomState
    ) -> None:
        if isinstance(thing, np.random.Generator):
            bits = thing.bit_generator
            held: Mapping[str, object] = bits.state
            self.undo(lambda: setattr(bits, "state", held))
        elif isinstance(thing, random.Random):
            state = thing.getstate()
            self.undo(lambda: thing.setstate(state))
            held = {"state": state}
        else:
            words = thing.get_state()
            held = {"state": words}
            self.undo(lambda: thing.set_state(words))
        self.drawn[name] = repr(held)

    def _iterator(self, name: str, thing: Any) -> None:
        """Note where an iterator stands; it cannot be put back, and so is found to have moved."""
        if isinstance(thing, types.GeneratorType):
            frame = thing.gi_frame
            locals_ = {} if frame is None else frame.f_locals
            plain = {key: value for key, value in locals_.items() if isinstance(value, _PLAIN)}
            self.values[name] = repr((frame and frame.f_lasti, plain))
        else:
            self.values[name] = thing.__length_hint__()

    def _function(self, name: str, thing: types.FunctionType) -> None:
        if not is_own_file(thing.__globals__):
            if hasattr(thing, "__wrapped__"):
                self.add(name, thing.__wrapped__)
            return
        for key, cell in zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True):
            held = _content(cell)
            self.undo(functools.partial(_fill, cell, held))
            if held is not _EMPTY:
                self.add(f"{name}'s {key}", held)
        self.attributes(name, thing)
        self.add(f"{name}'s defaults", thing.__defaults__)
        self.add(f"{name}'s defaults", thing.__kwdefaults__)
        self._globals(thing.__globals__)

    def _globals(self, names: dict[str, object]) -> None:
        if id(names) in self._seen or not is_own_file(names):
            return
        self._seen[id(names)] = names
        file = Path(str(names.get("__file__") or names.get("__name__", ""))).name
        self.namespace(
            f"{file}: ", names, names.__setitem__, names.__delitem__,
            lambda key: key.startswith("__"),
        )  # fmt: skip

    def _class(self, thing: type) -> None:
        if not _is_own_class(thing):
            return
        self.namespace(
            f"{thing.__qualname__}.",
            vars(thing),
            functools.partial(setattr, thing),
            functools.partial(delattr, thing),
            lambda key: key.startswith(("__", "_abc_")),
        )
        for name in ("__init__", "__call__"):
            self.add(f"{thing.__qualname__}.{name}", vars(thing).get(name))
        for base in thing.__mro__[1:]:
            self.add(base.__qualname__, base)

    def _other(self, name: str, thing: object) -> None:
        kind = type(thing)
        if kind.__module__ == "itertools" and kind.__name__ == "count":
            self.values[name] = repr(thing)
        elif isinstance(thing, contextvars.ContextVar):
            self._context_variable(name, thing)
        elif isinstance(thing, threading.local):
            self.attributes(name, thing)
        elif _is_own_class(kind) or kind is types.SimpleNamespace:
            if hasattr(thing, "__dict__"):
                self.attributes(name, thing)
            self._slots(name, thing)
            self.add(kind.__qualname__, kind)
        elif hasattr(thing, "__wrapped__"):  # of functools.cache and the like
            self.add(name, thing.__wrapped__)

    def _context_variable(self, name: str, thing: contextvars.ContextVar[Any]) -> None:
        try:
            held = thing.get()
        except LookupError:  # nobody has set it
            return

        def undo() -> None:
            thing.set(held)

        self.undo(undo)
        self.add(name, held)

    def _slots(self, name: str, thing: object) -> None:
        """Note what an object holds in the `__slots__` of its classes."""
        classes = [c for c in reversed(type(thing).__mro__) if "__slots__" in vars(c)]
        slots = {k: v for c in classes for k, v in vars(c).items() if inspect.ismemberdescriptor(v)}
        held = {key: getattr(thing, key, _EMPTY) for key in slots}

        def undo() -> None:
            for key, slot in slots.items():
                if getattr(thing, key, _EMPTY) is held[key]:
                    continue
                if held[key] is _EMPTY:
                    slot.__delete__(thing)
                else:
                    slot.__set__(thing, held[key])

        self.undo(undo)
        for key, value in held.items():
            if value is not _EMPTY:
                self.add(f"{name}.{key}", value)


def after_another_and_alone(
    before: PythonState,
    note: Callable[[], PythonState],
    step: Callable[[Minibatch], Any],
    first: Minibatch,
    second: Minibatch,
) -> tuple[tuple[Any, PythonState], tuple[Any, PythonState]]:
    """Make a step after another one, and the same step alone; put everything back.

    Args:
        before: What both begin with.
        note: Notes what is there.
        step: Makes a step that updates nothing; returns what it computes.
        first: A minibatch that the model takes.
        second: That of the step; `first` is taken where the model takes it not.

    Returns:
        What the step computed and what was there then, for each.
    """

    def steps(*minibatches: Minibatch) -> tuple[Any, PythonState]:
        before.put_back()
        results = [step(one) for one in minibatches]
        return results[-1], note()

    with before:
        try:
            after_another = steps(first, second)
        except ModelError:
            second = first
            after_another = steps(first, second)
        return after_another, steps(second)


def is_same(one: object, other: object) -> bool:
    """Whether two values are the same, but for sums in another order."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        if one.dtype.kind in "fc":
            return np.allclose(one, other, _RELATIVE, _ABSOLUTE, equal_nan=True)
        return bool(np.array_equal(one, other))
    if isinstance(one, float | np.floating) and isinstance(other, float | np.floating):
        return bool(np.isclose(one, other, _RELATIVE, _ABSOLUTE, equal_nan=True))
    return type(one) is type(other) and bool(one == other)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing is in it yet
        return _EMPTY


def _fill(cell: Any, held: Any) -> None:
    if _content(cell) is held:
        return
    if held is _EMPTY:
        del cell.cell_contents
    else:
        cell.cell_contents = held


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

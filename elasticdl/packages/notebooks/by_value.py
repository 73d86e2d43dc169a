"""Writes the definitions of a program by value, and the contents of installed packages by name."""

from __future__ import annotations

import contextlib
import copyreg
import functools
import hashlib
import io
import linecache
import pickle
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import cloudpickle
from cloudpickle.cloudpickle import _make_function

from elasticdl.packages.notebooks.functions_file import (
    missing,
    module_of,
    namespace,
    no_shell,
    same,
    with_own_classes,
)

MAX_BYTES = 1 << 30

_MAIN = "__main__"
_PROGRAM = "user_program"
"""The name of the program's main module in the processes of a job, whose own main module differs.
"""

_STATES = 6  # parts of how cloudpickle writes a function or a class by value
OF_IMPORT = {"__builtins__", "__cached__", "__loader__", "__spec__"}
"""Names that Python puts into each module."""


class TooLargeError(Exception):
    """An object is larger than `MAX_BYTES` when it is written."""


class CountedWriter:
    """Counts and hashes the bytes that are written to a file; without a file it only counts."""

    def __init__(self, file: IO[bytes] | None = None) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, content: Any) -> int:
        """Write a part.

        Raises:
            TooLargeError: The parts are larger than the limit together.
        """
        size = memoryview(content).nbytes
        self.size += size
        if self.size > MAX_BYTES:
            raise TooLargeError(f"it takes more than {MAX_BYTES >> 20} MiB")
        if self._file is not None:
            self._hash.update(content)
            self._file.write(content)
        return size

    def digest(self) -> str:
        """Return the SHA-256 of all parts."""
        return self._hash.hexdigest()


class _Namespace(dict[str, object]):
    """Stands for the globals of a module of the user; all functions of the module share it."""

    def __init__(self, module: str, file: str) -> None:
        super().__init__()
        self.place = module, file


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """Writes the user's own functions, classes and modules by value.

    Attributes:
        users: The functions and classes whose writing has begun, in order.
        sources: The source lines of the functions and classes.
        packages: The packages with a part that was written by its name.
        modules: The user's modules that were written whole.
    """

    def __init__(self, file: CountedWriter, left_out: Mapping[str, Mapping[str, str]]) -> None:
        super().__init__(file)
        self.users: list[types.FunctionType | type] = []
        self.sources: dict[str, list[str]] = {}
        self.packages: set[str] = set()
        self.modules: list[types.ModuleType] = []
        self._left_out = left_out

    def reducer_override(self, obj: Any) -> Any:
        """Return how an object is written, or leave the object to cloudpickle."""
        if isinstance(obj, _Namespace):
            return namespace, obj.place
        if isinstance(obj, types.ModuleType):
            return self._reduced_module(obj)
        if (instead := _outside_notebook(obj)) is not None:
            return same, (instead,)
        if isinstance(obj, io.IOBase) and not isinstance(obj, io.BytesIO | io.StringIO):
            raise pickle.PicklingError("it is an open file")
        if _is_of_keras(obj):
            return _reduced_by_keras(obj)
        reduced = super().reducer_override(obj)
        if isinstance(obj, types.FunctionType | type):
            is_by_value = isinstance(reduced, tuple) and len(reduced) == _STATES
            self._note(obj, is_by_value)
            return _of_program(reduced) if is_by_value else reduced
        return reduced

    def _function_getnewargs(self, func: types.FunctionType) -> Any:
        names = func.__globals__
        module = str(names.get("__name__"))
        if is_own(module):
            file = str(names.get("__file__", func.__code__.co_filename))
            # cloudpickle keeps the globals of a function here by their identity, so functions share
            # them.
            self.globals_ref.setdefault(id(names), _Namespace(_renamed(module), file))
        return super()._function_getnewargs(func)

    def _reduced_module(self, module: types.ModuleType) -> Any:
        name = module.__name__
        if name == _MAIN or not is_own(name):
            self.packages.add(name.partition(".")[0])
            return NotImplemented
        self.modules.append(module)
        why = self._left_out.get(name, {})
        kept = {key: v for key, v in vars(module).items() if key not in OF_IMPORT | why.keys()}
        if why:
            # A left-out value fails where it is used, with the reason, and not where the module is
            # loaded.
            kept["__getattr__"] = functools.partial(missing, name, dict(why))
        return module_of, (name,), kept

    def _note(self, thing: types.FunctionType | type, is_by_value: bool) -> None:
        if not is_by_value:
            self.packages.add(str(thing.__module__).partition(".")[0])
            return
        self.users.append(thing)
        if isinstance(thing, types.FunctionType):
            file = thing.__code__.co_filename
            if file not in self.sources and (lines := linecache.getlines(file, thing.__globals__)):
                self.sources[file] = lines


@contextlib.contextmanager
def own_modules_by_value() -> Iterator[None]:
    """Make cloudpickle write by value the definitions in the user's own files."""
    known = cloudpickle.list_registry_pickle_by_value()
    own = [
        module
        for name, module in list(sys.modules.items())
        if isinstance(module, types.ModuleType)
        and module.__name__ == name != _MAIN
        and name not in known
        and is_own(name)
    ]
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)


def is_own(name: str) -> bool:
    """Return whether a module is the user's; another process may lack it under its name."""
    if name == _MAIN or name not in sys.modules:
        return True
    if name.partition(".")[0] == "elasticdl":
        return False
    file = getattr(sys.modules[name], "__file__", None)
    is_python = file is not None and file.endswith((".py", ".pyc"))
    return is_python and not _is_installed(file, name.count("."))


@functools.cache
def _is_installed(file: str, depth: int) -> bool:
    """Return whether a file belongs to Python, or to a package that pip has installed."""
    path = Path(file)
    parts = {*path.parts, *path.resolve().parts}
    if {"site-packages", "dist-packages"} & parts:
        return True
    if any(path.resolve().is_relative_to(root) for root in _installed_roots()):
        return True
    up = depth + (path.stem == "__init__")
    return any(path.parents[min(up, len(path.parents) - 1)].glob("*.dist-info"))


@functools.cache
def _installed_roots() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple({Path(paths[name]).resolve() for name in names})


def _renamed(module: str) -> str:
    return _PROGRAM if module == _MAIN else module


def _of_program(reduced: Any) -> Any:
    """Return how a function or class is written, without what only this process has.

    The main module gets another name. A class is made anew even if the process has such a class
    already: otherwise cloudpickle would set the old attributes on the class of now.
    """
    make, arguments, state, *rest = reduced
    for part in state:
        if part.get("__module__") == _MAIN:
            part["__module__"] = _PROGRAM
    if make is not _make_function:
        *first, _tracked, extra = arguments
        arguments = (*(_PROGRAM if part == _MAIN else part for part in first), None, extra)
        for part in arguments:
            if isinstance(part, dict) and part.get("__module__") == _MAIN:
                part["__module__"] = _PROGRAM
    return make, arguments, state, *rest


def _outside_notebook(obj: object) -> object:
    """Return the substitute of an object that IPython has put among the names of a notebook."""
    holder = getattr(obj, "__self__", obj)
    kind = holder if isinstance(holder, types.FunctionType) else type(holder)
    if str(kind.__module__).partition(".")[0] not in ("IPython", "ipykernel"):
        return None
    name = getattr(obj, "__name__", type(obj).__name__)
    if name == "get_ipython":
        return no_shell
    if "ExitAutocall" in name:
        return sys.exit
    return open if name == "open" and isinstance(obj, types.FunctionType) else None


def _is_of_keras(obj: object) -> bool:
    """Return whether Keras writes an object by its configuration and weights."""
    saveable = getattr(sys.modules.get("keras.src.saving.keras_saveable"), "KerasSaveable", None)
    return saveable is not None and isinstance(obj, saveable)


def _reduced_by_keras(obj: Any) -> Any:
    """Return how Keras writes an object; a user's object must be made anew from its configuration.

    A loss or metric whose `get_config` lacks arguments of `__init__` is written as other objects
    are.

    Raises:
        PicklingError: The object cannot be made anew.
    """
    own = _own_classes_of(obj)
    try:
        make, given = obj.__reduce__()[:2]
        if own:
            with_own_classes(own, make, given)
    except Exception as error:
        if any(kind.__name__ in ("Loss", "Metric") for kind in type(obj).__mro__):
            return copyreg.__newobj__, (type(obj),), dict(vars(obj))  # type: ignore[attr-defined]
        raise pickle.PicklingError(
            "Keras cannot make a copy of it; get_config has to return the arguments of __init__: "
            f"{error}"
        ) from error
    return with_own_classes, (own, make, given)


def _own_classes_of(obj: object) -> dict[str, object]:
    """Return the user's classes and functions in the parts of an object of Keras, by name."""
    found: dict[str, object] = {}
    waiting, seen = [obj], set()
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        kind = part if isinstance(part, types.FunctionType) else type(part)
        module = str(kind.__module__)
        if isinstance(part, list | tuple | set):
            waiting += part
        elif isinstance(part, Mapping):
            waiting += part.values()
        elif module.partition(".")[0] == "keras" or is_own(module):
            if is_own(module):
                found[kind.__name__] = kind
            if not isinstance(part, types.FunctionType):
                waiting += vars(part).values() if hasattr(part, "__dict__") else ()
    return found

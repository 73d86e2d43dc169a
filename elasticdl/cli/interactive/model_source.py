"""A model as a file, whatever it is given as: workers are processes of their own, which import it.

Functions of a notebook are written with what they use: modules are imported again, plain values and
other functions of the notebook are written along, and so is a `Table` of columns. Nothing is
pickled, and what cannot be written is refused by its name.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from abc import ABCMeta
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from elasticdl.errors import ModelError

Function = Callable[..., object]
Model = str | Path | ModuleType | Mapping[str, Function]
"""A file, `package.module.function`, a module, or functions by their names in a model file."""

_MAIN = ("forward", "custom_model")
_PLAIN = (bool, int, float, str, bytes, type(None))
_OF_NOTEBOOKS = frozenset({"display", "exit", "get_ipython", "open", "quit"})  # IPython's own
_TABLES = "elasticdl.preprocessing.tabular"
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class ModelPlace(NamedTuple):
    """Where a model is found, as `--model_zoo` and `--model_def`; no folder: as by default."""

    model_zoo: Path | None
    model_def: str


def place_of(model: Model, folder: Path) -> ModelPlace:
    """Return where a model is found; functions are written into a folder, which is made.

    Raises:
        ModelError: There is no such file, it has no model, or a function cannot be written.
    """
    if isinstance(model, Mapping):
        content = source_of(model)
        folder.mkdir(0o700, parents=True, exist_ok=True)
        path = folder / "model.py"
        path.write_text(content)
        return _in_file(path)
    if isinstance(model, ModuleType):
        if model.__file__ is None:
            raise ModelError(f"model={model.__name__}: expected a module with a file")
        return _in_file(Path(model.__file__))
    if isinstance(model, Path) or str(model).endswith(".py"):
        return _in_file(Path(model))
    if isinstance(model, str) and "." in model:
        return ModelPlace(None, model)
    raise ModelError(
        f"model={model!r}: expected a file as model.py, package.module.function, a module, or "
        "functions by name: {'forward': forward, 'feed': feed, ...}"
    )


def _in_file(path: Path) -> ModelPlace:
    try:
        tree = ast.parse(path.read_bytes())
    except OSError as error:
        raise ModelError(f"model={path}: {error.strerror or error}") from error
    except SyntaxError as error:
        raise ModelError(f"{path}:{error.lineno}: {error.msg}") from error
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    main = next((name for name in _MAIN if name in defined), None)
    if main is None:
        raise ModelError(f"{path}: expected a function {_MAIN[0]} that makes the model, found none")
    return ModelPlace(path.resolve().parent, f"{path.stem}.{main}")


def source_of(functions: Mapping[str, Function]) -> str:
    """Return a model file of functions.

    Args:
        functions: By the names that a model file has for them.

    Raises:
        ModelError: Names one that uses something which cannot be written into a file.
    """
    writer = _Writer()
    for name, function in functions.items():
        if isinstance(function, MethodType) and writer.add_table(function.__self__, name):
            writer.parts[-1] += f".{function.__name__}"
            continue
        if not isinstance(function, FunctionType | type):
            raise ModelError(
                f"model: expected a function or a class as {name!r}, found "
                f"{type(function).__name__}"
            )
        writer.add(function, name)
    for name, function in functions.items():
        if function.__name__ != name and not isinstance(function, MethodType):
            writer.parts.append(f"{name} = {function.__name__}")
    imports = sorted(set(writer.imports))
    return "\n".join(["# Written by elasticdl.train.", *imports, "", *writer.parts, ""])


class _Writer:
    """Writes functions, what they use before them, each once."""

    def __init__(self) -> None:
        self.imports: list[str] = []
        self.parts: list[str] = []
        self._known: dict[str, object] = {}

    def add(self, function: FunctionType | type, asked: str) -> None:
        """Write a function or a class and what it uses; `asked`: which one that is for."""
        name = function.__name__
        if self._is_known(name, function, asked):
            return
        try:
            source = textwrap.dedent(inspect.getsource(function))
            tree = ast.parse(source)
        except (OSError, TypeError, SyntaxError) as error:
            raise ModelError(
                f"model: the source of {name} is not known ({error}): write it into a file, and "
                "give model='file.py'"
            ) from error
        if isinstance(function, FunctionType) and function.__closure__:
            free = ", ".join(function.__code__.co_freevars)
            raise ModelError(
                f"model: {name} takes {free} from the function around it: define both at the top"
            )
        values = _globals_of(function)
        definition = tree.body[0]
        if not isinstance(definition, _DEFINITIONS):
            raise ModelError(f"model: {asked} uses a lambda ({source.strip()}): define it by def")
        if isinstance(function, FunctionType):
            _check_defaults(function, definition)
        else:
            _check_attributes(function, definition)
        for used in _used(tree):
            if used in values and not (used == name and values[used] is function):
                self._use(used, values[used], asked, function)
        self.parts.append(f"\n\n{source.strip()}\n")
        if isinstance(function, FunctionType):
            self.parts += _marks_of(function)

    def add_table(self, value: Any, name: str) -> bool:
        """Write `name = Table(...)`, if it is a table of columns; say whether it is one."""
        table = getattr(sys.modules.get(_TABLES), "Table", None)
        if table is None or type(value) is not table:
            return False
        module = "columns_of_elasticdl"
        self.imports.append(f"import {_TABLES} as {module}")
        self.parts.append(f"{name} = {value.source(module)}")
        return True

    def _use(self, name: str, value: object, asked: str, user: FunctionType | type) -> None:
        if isinstance(value, ModuleType):
            self.imports.append(f"import {value.__name__} as {name}")
        elif isinstance(value, FunctionType | type) and value.__module__ == user.__module__:
            self.add(value, asked)
            if value.__name__ != name:
                self.parts.append(f"{name} = {value.__name__}")
        elif (home := _home_of(value)) is not None:
            self.imports.append(f"from {home[0]} import {home[1]} as {name}")
        elif _is_plain(value):
            if not self._is_known(name, value, asked):
                self.parts.append(f"{name} = {value!r}")
        elif self._is_known(name, value, asked) or self.add_table(value, name):
            return
        else:
            raise ModelError(
                f"model: {asked} uses {name}, which is {_a(type(value).__name__)}: expected a "
                "module, a function, a number or a word; make it in the function, or write a file"
            )

    def _is_known(self, name: str, value: object, asked: str) -> bool:
        """Whether it was written before; two things of one name cannot be."""
        if name not in self._known:
            self._known[name] = value
            return False
        if self._known[name] is not value and self._known[name] != value:
            raise ModelError(f"model: {asked} uses {name}, of which there are two: rename one")
        return True


def _globals_of(function: FunctionType | type) -> Mapping[str, object]:
    if isinstance(function, FunctionType):
        return function.__globals__
    return vars(sys.modules[function.__module__])


def _used(tree: ast.AST) -> Iterator[str]:
    """Yield the names that code reads, in order; those of Python itself may have been replaced."""
    seen = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            if node.id not in seen and node.id not in _OF_NOTEBOOKS:
                yield node.id
            seen.add(node.id)


def _check_defaults(function: FunctionType, definition: ast.stmt) -> None:
    """Refuse a default that is a name which has another value now: the file would have that."""
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    arguments, values = definition.args, _globals_of(function)
    parameters = [*arguments.posonlyargs, *arguments.args]
    positional = parameters[len(parameters) - len(arguments.defaults) :]
    pairs = list(zip(positional, arguments.defaults, function.__defaults__ or (), strict=True))
    given = function.__kwdefaults__ or {}
    for parameter, node in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if node is not None:
            pairs.append((parameter, node, given[parameter.arg]))
    for parameter, node, default in pairs:
        now = values.get(node.id, default) if isinstance(node, ast.Name) else default
        if now is not default and not (_is_plain(default) and now == default):
            raise ModelError(
                f"model: {function.__name__} has {default!r} as its default of {parameter.arg}, "
                f"and {ast.unparse(node)} is {now!r} now: define {function.__name__} again"
            )


def _check_attributes(kind: type, definition: ast.stmt) -> None:
    """Refuse a class with attributes that its source does not have."""
    assert isinstance(definition, ast.ClassDef)
    if type(kind) not in (type, ABCMeta):  # whose attributes are not those of the source
        return
    written = {node.id for node in ast.walk(definition) if isinstance(node, ast.Name)}
    written |= {node.name for node in definition.body if isinstance(node, _DEFINITIONS)}
    literals = dict(_literals_of(definition))
    for name, value in vars(kind).items():
        is_set = not name.startswith("_") and name not in written and not definition.decorator_list
        if is_set or (name in literals and literals[name] != value):
            raise ModelError(
                f"model: {kind.__name__}.{name} was set after the class was defined, which its "
                f"source does not have: set it in the class"
            )


def _literals_of(definition: ast.ClassDef) -> Iterator[tuple[str, object]]:
    """Yield the attributes of a class that are numbers or words, as its source has them."""
    for node in definition.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            with suppress(ValueError):  # it is no literal
                yield node.targets[0].id, ast.literal_eval(node.value)


def _marks_of(function: FunctionType) -> list[str]:
    """Return what sets the attributes of a function, as that of `elasticdl.batched`."""
    marks = {name: v for name, v in vars(function).items() if not name.startswith("__")}
    for name, value in marks.items():
        if not _is_plain(value):
            raise ModelError(
                f"model: {function.__name__}.{name} is {_a(type(value).__name__)}: expected a "
                "number or a word as an attribute of a function; write a file"
            )
    return [f"{function.__name__}.{name} = {value!r}\n" for name, value in marks.items()]


def _home_of(value: object) -> tuple[str, str] | None:
    """Return the module and the name by which a value is imported."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or "." in name:
        return None
    if module == "__main__" or getattr(sys.modules.get(module), name, None) is not value:
        return None
    return module, name


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    return isinstance(value, _PLAIN)


def _a(kind: str) -> str:
    return f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"

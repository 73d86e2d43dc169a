"""Writes functions of a program, with their values, as a model file for the processes of a job.

The functions of a notebook, a script or a file of the user are written in their present state:
code, globals, closures, defaults and attributes of classes. The contents of an installed package
are written by name.
"""

from __future__ import annotations

import contextlib
import dis
import importlib.util
import pickle
import sys
import types
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from textwrap import shorten
from typing import IO, Any

from cloudpickle.cloudpickle import _extract_code_globals

from elasticdl.errors import ModelError
from elasticdl.packages.notebooks import by_value
from elasticdl.packages.notebooks.by_value import (
    OF_IMPORT,
    CountedWriter,
    Pickler,
    TooLargeError,
    own_modules_by_value,
)
from elasticdl.packages.notebooks.functions_file import PYTHON
from elasticdl.runtime.secret_files import private_opener

_FRAMEWORKS = {"jax", "keras", "tensorflow", "torch"}


def write(folder: Path, functions: Mapping[str, object], name: str = "model") -> Path:
    """Write a model file that defines the given functions, or other values, under the given names.

    Args:
        folder: The folder of the model file and of the file of the functions.
        functions: The functions by their names in the model file.
        name: The name of the model file, without `.py`.

    Returns:
        The model file.

    Raises:
        ModelError: A variable has a value that no other process can have; the error names it.
        OSError: A file cannot be written.
    """
    partial = folder / f"{name}.partial"
    try:
        with open(partial, "wb", opener=private_opener) as file:
            digest, frameworks = _dump(functions, file)
        # The digest in the name keeps the old pickle valid until the model file below is replaced.
        content = partial.with_name(f"{name}-{digest[:16]}.pickle")
        partial.replace(content)
    finally:
        partial.unlink(missing_ok=True)
    lines = [
        '"""Functions of a program, with the values that they use. Written by elasticdl.train."""',
        "",
        *(f"import {framework}" for framework in sorted(frameworks)),
        "from elasticdl.runtime import functions_file",
        "",
        f"_functions = functions_file.load(__file__, {content.name!r}, {digest!r}, {PYTHON!r})",
        *(f"{each} = _functions[{each!r}]" for each in functions),
    ]
    path = folder / f"{name}.py"
    with open(partial, "w", opener=private_opener) as file:
        file.write("\n".join(lines) + "\n")
    partial.replace(path)
    # Python takes cached bytecode as valid if the source has the same size and the same second.
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
    for old in folder.glob(f"{name}-*.pickle"):
        if old != content:
            old.unlink(missing_ok=True)
    return path


def _dump(functions: Mapping[str, object], file: IO[bytes]) -> tuple[str, set[str]]:
    """Write functions and the source of their files; return the digest and the used frameworks."""
    with own_modules_by_value():
        left_out: dict[str, Mapping[str, str]] = {}
        while True:
            file.seek(0)
            file.truncate()
            writer = CountedWriter(file)
            pickler = Pickler(writer, left_out)
            try:
                pickler.dump(dict(functions))
                break
            except Exception as error:
                found = {m.__name__: _unwritable(m) for m in pickler.modules}
                # Every attempt leaves more modules' values out; without a new one the error is
                # final.
                new = {name: why for name, why in found.items() if why and name not in left_out}
                if not new:
                    raise _refusal(pickler, functions, error) from error
                left_out |= new
    for user in pickler.users:
        _check_attributes(user, left_out)
    pickle.dump(pickler.sources, writer, protocol=pickle.HIGHEST_PROTOCOL)
    return writer.digest(), pickler.packages & _FRAMEWORKS


def _unwritable(module: types.ModuleType) -> dict[str, str]:
    """Return the values of a module that no other process can have, each with the reason."""
    tried = {name: _problem(v) for name, v in vars(module).items() if name not in OF_IMPORT}
    return {name: problem for name, problem in tried.items() if problem}


def _problem(value: object) -> str:
    """Return why a value cannot be written; "" if it can."""
    if isinstance(value, types.ModuleType):
        return ""
    try:
        Pickler(CountedWriter(), _Everything()).dump(value)
    except Exception as error:
        return shorten(str(error), 200) or type(error).__name__
    return ""


class _Everything(dict[str, Mapping[str, str]]):
    """Leaves all values of all modules out, so that one value can be tried alone."""

    def get(self, name: str, default: object = None) -> Any:
        """Return all names of a module."""
        return dict.fromkeys(vars(sys.modules[name]), "") if name in sys.modules else {}


def _refusal(pickler: Pickler, functions: Mapping[str, object], error: Exception) -> ModelError:
    """Return an error that names the variable that cannot be written."""
    # The function whose writing began last is the innermost one, so it is tried first.
    for user in reversed(pickler.users):
        for name, value in _used_by(user):
            if not isinstance(value, types.FunctionType | type) and (why := _problem(value)):
                return _refused(f"{user.__qualname__} uses {name}", value, why)
    for name, value in functions.items():
        if not isinstance(value, types.FunctionType | type) and (why := _problem(value)):
            return _refused(f"{name!r}", value, why)
    if isinstance(error, TooLargeError):
        return ModelError(
            f"model: the values that the functions use take more than {by_value.MAX_BYTES >> 20} "
            "MiB: give data as data, or have feed read a file"
        )
    return ModelError(f"model: the functions cannot be given to other processes: {error}")


def _check_attributes(
    user: types.FunctionType | type, left_out: Mapping[str, Mapping[str, str]]
) -> None:
    """Refuse a function that uses a left-out value of a module."""
    if isinstance(user, type):
        return
    read = set(_attributes_in(user.__code__))
    for name, module in _used_by(user):
        why = left_out.get(module.__name__, {}) if isinstance(module, types.ModuleType) else {}
        for used in why:
            if (name, used) in read:
                what = f"{user.__qualname__} uses {name}.{used}"
                raise _refused(what, getattr(module, used), why[used])


def _refused(what: str, value: object, why: str) -> ModelError:
    kind = type(value).__name__
    article = "an" if kind[:1].lower() in "aeiou" else "a"
    return ModelError(
        f"model: {what}, which is {article} {kind} and cannot be given to other processes ({why}): "
        "make it in the function that uses it"
    )


def _used_by(user: types.FunctionType | type) -> Iterator[tuple[str, object]]:
    """Yield the variables that a function takes along, or the attributes of a class."""
    if isinstance(user, type):
        yield from vars(user).items()
        return
    names = _extract_code_globals(user.__code__)
    yield from ((name, user.__globals__[name]) for name in names if name in user.__globals__)
    cells = zip(user.__code__.co_freevars, user.__closure__ or (), strict=True)
    for name, cell in cells:
        with contextlib.suppress(ValueError):  # not assigned yet
            yield name, cell.cell_contents
    code = user.__code__
    defaults = user.__defaults__ or ()
    yield from zip(
        code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True
    )
    yield from (user.__kwdefaults__ or {}).items()
    yield from vars(user).items()


def _attributes_in(code: types.CodeType) -> Iterator[tuple[str, str]]:
    """Yield the variables of which code reads an attribute, each with the attribute's name."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    for before, step in pairwise(steps):
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD") and before.opname.startswith("LOAD_"):
            yield str(before.argval), str(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _attributes_in(constant)

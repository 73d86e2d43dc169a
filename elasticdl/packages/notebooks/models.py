"""Makes a file of any form of a model: workers import the file in their own processes."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import NamedTuple

from elasticdl.errors import ConfigError, ModelError
from elasticdl.packages.notebooks import functions as functions_of_program
from elasticdl.runtime.secret_files import make_private

Model = str | Path | ModuleType | Mapping[str, object]
"""A file, `package.module.function`, a module, or functions by their names in a model file."""

_MAIN = ("forward", "custom_model")
_CALLED = (*_MAIN, "feed", "dataset_fn", "callbacks", "custom_data_reader")
_AS_IN_KERAS = {"metrics": "eval_metrics_fn", "weighted_metrics": "weighted_metrics_fn"}
_BESIDE = {
    *("callbacks", "custom_data_reader", "eval_metrics_fn", "feed", "loss", "loss_weights"),
    *("optimizer", "weighted_metrics_fn", *_AS_IN_KERAS),
}


class ModelPlace(NamedTuple):
    """The place of a model, as `--model_zoo` and `--model_def`; no folder: the default one."""

    model_zoo: Path | None
    model_def: str


def place_of(model: Model, folder: Path) -> ModelPlace:
    """Return the place of a model; functions are written into a folder, which is made.

    Raises:
        ModelError: There is no such file, it has no model, or a function uses what no other
            process can have.
        ConfigError: The folder is another user's.
    """
    if isinstance(model, Mapping):
        return _written(model, folder)
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


def with_settings(model: Model, settings: Mapping[str, object]) -> tuple[Model, dict[str, object]]:
    """Return a model with the functions from the settings, and the other settings.

    Raises:
        ConfigError: A function was given together with a model file.
    """
    if isinstance(model, Mapping):
        beside = {
            name: value
            for name, value in settings.items()
            if name in _BESIDE and not (isinstance(value, str) and value in model)
        }
        rest = {name: value for name, value in settings.items() if name not in beside}
        return {**model, **beside}, rest
    for name in _BESIDE & settings.keys():
        if not isinstance(value := settings[name], str | None):
            raise ConfigError(
                f"{name}: expected the name of a function in the model file, found a "
                f"{type(value).__name__}: write it there, or give all functions by name"
            )
    return model, dict(settings)


def _written(functions: Mapping[str, object], folder: Path) -> ModelPlace:
    """Write functions into a folder."""
    named = {_AS_IN_KERAS.get(name, name): value for name, value in functions.items()}
    main = next((name for name in _MAIN if name in named), None)
    if main is None:
        raise ModelError(
            f"model: expected a function {_MAIN[0]!r} that makes the model, found "
            f"{', '.join(map(repr, named)) or 'none'}"
        )
    for name, value in named.items():
        if not name.isidentifier():
            raise ModelError(f"model: expected the name of a function, found {name!r}")
        if name in _CALLED and (not callable(value) or _is_made(value)):
            raise ModelError(
                f"model: expected a function or a class as {name!r}, found an object of "
                f"{type(value).__name__}; write def {name}(): return ..."
            )
    loss = named.get("loss")
    of_user = isinstance(loss, FunctionType) and not loss.__module__.startswith("keras.")
    if of_user and named.get("loss_weights") is not None:
        raise ModelError(
            "model: loss_weights go with a loss that compile takes by output, and loss is a "
            "function here: expected it to add its weighted losses, and no loss_weights"
        )
    try:
        make_private(folder)
        path = functions_of_program.write(folder, named)
    except OSError as error:
        raise ModelError(f"{folder}: the functions cannot be written: {error}") from error
    return ModelPlace(folder.resolve(), f"{path.stem}.{main}")


def _is_made(value: object) -> bool:
    """Return whether a value is a finished model: one can call it, but it does not make a model."""
    has = hasattr(value, "trainable_variables") or hasattr(value, "parameters")
    return has and not isinstance(value, type)


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

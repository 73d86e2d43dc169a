"""Loads a model file and finds its functions."""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeAlias

from elasticdl import registry
from elasticdl.config import STATISTICS_VARIABLE, ModelSection
from elasticdl.distribution import how_to_get
from elasticdl.errors import ModelError
from elasticdl.runtime.start_up import without_collection
from elasticdl.settings import reader_params
from elasticdl.settings.model import KERAS_VARIABLE

RATE = "negative_sampling_rate"
_PARAMS = "--model_params"

UserFunction: TypeAlias = Callable[..., Any]
"""A function of the model file. Its framework decides the types of arguments and result."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The functions of a user's model file, found and checked but not yet called.

    `model` and `optimizer` already have `--model_params` and `--learning_rate` bound. PyTorch's
    backend calls `optimizer` with the parameters; the other backends call it without arguments.
    `loss_weights` is the argument of that name of Keras' `compile`. `notes` is filled while the
    model is built.
    """

    model: Callable[[], object]
    loss: UserFunction | None
    optimizer: UserFunction | None
    feed: UserFunction
    eval_metrics_fn: UserFunction | None
    callbacks: Callable[[], list[Any]] | None
    prediction_outputs_processor: Callable[[], Any] | None
    custom_data_reader: UserFunction | None
    weighted_metrics_fn: UserFunction | None = None
    table: Any = None  # the `preprocessing.tabular.Table` that declares the columns, if any
    loss_weights: object = None
    notes: list[str] = field(default_factory=list, compare=False)

    def tell(self, note: str) -> None:
        """Note a line for the start and the summary: something that a user may not expect."""
        if note not in self.notes:
            self.notes.append(note)


class AdaptsModelFiles(Protocol):
    """Prepares for model files of a kind, and adapts their functions; a package brings it."""

    def before_import(self) -> None:
        """Prepare for the imports of a model file, in each process that imports one."""
        ...

    def adapted(self, spec: ModelSpec, file: str | None) -> ModelSpec:
        """Return the functions of a file as they are called now.

        Raises:
            ModelError: A function cannot be called so; says what to write.
        """
        ...


def _adapters() -> Iterable[AdaptsModelFiles]:
    return registry.brought("model_files").values()


def batched(feed: UserFunction) -> UserFunction:
    """Mark a `feed` that takes many records at once, in place of a dataset.

    `feed(records, mode, metadata)` gets a vector of serialised records or lines. From Parquet files
    and tables it gets a dict of columns. The values are tensors of TensorFlow or arrays of NumPy,
    as the model needs. In PyTorch it gets a list of records, or a dict of arrays. It returns
    (features, labels), or features alone in predictions, with one row for each record. In
    training the records of a task come in an order drawn from its seed.
    """
    feed.is_batched = True  # type: ignore[attr-defined]
    return feed


def is_batched(feed: UserFunction) -> bool:
    """Whether a `feed` was marked by `batched`, or is a partial of one that was."""
    while isinstance(feed, functools.partial) and not hasattr(feed, "is_batched"):
        feed = feed.func
    return bool(getattr(feed, "is_batched", False))


def load_model_spec(section: ModelSection, learning_rate: float | None = None) -> ModelSpec:
    """Import the module of `--model_def` and find the functions that make up a model.

    Raises:
        ModelError: The module or a function is missing. The message names the nearest name.
    """
    if section.statistics is not None:  # without the flag the user's variable stays
        os.environ[STATISTICS_VARIABLE] = str(section.statistics.resolve())
    if section.keras_backend is not None:
        os.environ[KERAS_VARIABLE] = section.keras_backend  # before a model file imports Keras
    module, model_name = _import_module(section)

    def find(name: str, required: bool = False) -> Any:
        found = getattr(module, name, None)
        if found is None and required:
            raise ModelError(_missing(module, name))
        return found

    def function(name: str, required: bool = False) -> Any:
        found = find(name, required)
        if found is not None and not callable(found):
            raise ModelError(
                f"{module.__file__}: expected a function {name}, found an object of "
                f"{type(found).__name__}; write def {name}(): return ..."
            )
        return found

    for name in section.named().values():
        find(name, required=True)
    model = function(model_name, required=True)
    optimizer = find(section.optimizer)
    if not (isinstance(optimizer, str) or hasattr(optimizer, "learning_rate")):
        optimizer = function(section.optimizer)
    if optimizer is not None:
        optimizer = _optimizer_of(optimizer, module.__file__, learning_rate)
    feed = function(section.feed) or function("dataset_fn")
    if feed is None:
        raise ModelError(_missing(module, section.feed))
    eval_metrics_fn = _metrics_of(find(section.eval_metrics_fn))
    params = parse_params(section.model_params)
    if section.negative_sampling_rate is not None:
        _add_rate(params, section.negative_sampling_rate, model, model_name)
    spec = ModelSpec(
        model=(lambda: model(**params)) if params else model,
        loss=find(section.loss),
        optimizer=optimizer,
        feed=feed,
        eval_metrics_fn=eval_metrics_fn,
        callbacks=function(section.callbacks),
        prediction_outputs_processor=find(section.prediction_outputs_processor),
        custom_data_reader=function(section.custom_data_reader),
        weighted_metrics_fn=_metrics_of(find(section.weighted_metrics_fn)),
        table=_table_of(module, feed, model),
        loss_weights=find("loss_weights"),
    )
    for adapts in _adapters():
        spec = adapts.adapted(spec, module.__file__)
    return spec


def _optimizer_of(found: Any, file: str | None, learning_rate: float | None) -> Any:
    """Return a function that makes the optimizer, with `--learning_rate` if it is given.

    The model file has a function, a class, or what `compile` of Keras takes: an optimizer or its
    name.
    """
    if callable(found):
        if learning_rate is None:
            return found
        takes = inspect.signature(found).parameters
        name = "learning_rate" if "learning_rate" in takes and "lr" not in takes else "lr"
        return functools.partial(found, **{name: learning_rate})
    if isinstance(found, str) and learning_rate is not None:
        found = {"class_name": found, "config": {"learning_rate": learning_rate}}
    elif learning_rate is not None and hasattr(found, "learning_rate"):
        raise ModelError(
            f"{file}: --learning_rate={learning_rate:g}: expected a function or a class as "
            f"optimizer, found an object of {type(found).__name__}, which has its rate already"
        )
    return lambda *parameters: found


def _metrics_of(found: Any) -> UserFunction | None:
    """Return a function that returns metrics, made from any form that Keras' `compile` takes."""
    is_metric = hasattr(found, "update_state") and not isinstance(found, type)
    if isinstance(found, str) or is_metric:
        return lambda: [found]
    return (lambda: found) if isinstance(found, list | tuple | Mapping) else found


def _add_rate(params: dict[str, Any], rate: float, model: UserFunction, name: str) -> None:
    """Add the rate of `--negative_sampling_rate` to the arguments of the model function."""
    if RATE in params:
        raise ModelError(f"--{RATE} and --model_params={RATE}=...: give one of them")
    takes = inspect.signature(model).parameters.values()
    if not any(each.name == RATE or each.kind is each.VAR_KEYWORD for each in takes):
        raise ModelError(
            f"--{RATE}={rate:g}: expected a model function that takes it, def {name}({RATE}=1.0), "
            f"and gives it to elasticdl.layers.SamplingCorrection; found {name} without it"
        )
    params[RATE] = rate


def _table_of(module: ModuleType, feed: UserFunction, model: UserFunction) -> Any:
    """Return the `Table` that has this feed, or else the only one in the model file, or None."""
    tabular = sys.modules.get("elasticdl.preprocessing.tabular")
    if tabular is None:
        return None
    own = getattr(feed, "__self__", None)
    if isinstance(own, tabular.Table):
        return own
    names = (vars(module), *(getattr(each, "__globals__", {}) for each in (feed, model)))
    values = [value for each in names for value in each.values()]
    found = {id(value): value for value in values if isinstance(value, tabular.Table)}
    return next(iter(found.values())) if len(found) == 1 else None


def parse_params(text: str) -> dict[str, Any]:
    """Return the arguments in `--model_params`, with the values that references to secrets name.

    Raises:
        ModelError: An item has no `=`, or refers to what does not exist.
    """
    with _of_params():
        return reader_params.parse(text, _PARAMS)


def check_params(text: str) -> None:
    """Check the form of `--model_params`. Its references may point to things elsewhere.

    Raises:
        ModelError: An item has no `=`; names the flag and the item.
    """
    with _of_params():
        reader_params.words_of(text, _PARAMS)


@contextmanager
def _of_params() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ModelError(str(error)) from error


def model_key(section: ModelSection, *values: bytes) -> str:
    """Return a key of a model: a hash of its settings, its code and its first values.

    The code is that of all modules below --model_zoo that are imported so far.
    """
    zoo = section.model_zoo.resolve()
    settings = section.model_dump(mode="json", exclude={"model_zoo", "model_changes"})
    found = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    paths = [Path(file) for file in files if file is not None]
    for path in sorted(path for path in paths if path.is_relative_to(zoo) and path.is_file()):
        content = path.read_bytes()
        # The length shows where a file ends, so text cannot move from one file to the next.
        found.update(f"{path.relative_to(zoo)} {len(content)} ".encode() + content)
    for value in values:
        found.update(value)
    return found.hexdigest()


def _import_module(section: ModelSection) -> tuple[ModuleType, str]:
    module_name, _, function = section.model_def.rpartition(".")
    if not module_name:
        raise ModelError(
            f"--model_def={section.model_def}: expected package.module.function, "
            "for example mnist.model.forward"
        )
    zoo = section.model_zoo.resolve()
    if not zoo.is_dir():
        raise ModelError(f"--model_zoo={section.model_zoo}: no such folder")
    if str(zoo) not in sys.path:
        sys.path.insert(0, str(zoo))
    path = zoo.joinpath(*module_name.split("."))
    for adapts in _adapters():
        adapts.before_import()
    try:
        with without_collection():
            return importlib.import_module(module_name), function
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise ModelError(
                f"--model_def={section.model_def}: no module {module_name} in {zoo} "
                f"(expected {path}.py)"
            ) from error
        hint = ""
        if error.name and error.name.split(".")[0] == zoo.name:
            hint = f"; what is in {zoo} is imported without {zoo.name!r}"
        elif error.name and (remedy := how_to_get(error.name, sys.version_info[:2])):
            hint = f"; {remedy}"
        raise ModelError(
            f"{path}.py imports {error.name!r}, which is not installed{hint}"
        ) from error
    except ImportError as error:
        raise ModelError(f"{path}.py: {error}") from error
    except SyntaxError as error:
        raise ModelError(f"{error.filename}:{error.lineno}: {error.msg}") from error


def _missing(module: ModuleType, name: str) -> str:
    functions = [n for n, value in inspect.getmembers(module) if callable(value)]
    near = difflib.get_close_matches(name, functions, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{module.__file__}: expected a function {name!r}, found none{hint}"

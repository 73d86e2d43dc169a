"""Adapts model files for earlier versions to the present calls."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from elasticdl.errors import ModelError
from elasticdl.model_spec import ModelSpec
from elasticdl.packages.earlier.modules import (
    BasePredictionOutputsProcessor,
    offer_earlier_modules,
)


class _ModelFiles:
    """Adapts model files of ElasticDL 0.x; see `model_spec.AdaptsModelFiles`."""

    def before_import(self) -> None:
        """Let the file import modules by their names of then."""
        offer_earlier_modules()

    def adapted(self, spec: ModelSpec, file: str | None) -> ModelSpec:
        """Return the functions of a file as they are called now."""
        check_metrics_fn(spec.eval_metrics_fn, file)
        make = spec.prediction_outputs_processor
        if isinstance(make, type) and issubclass(make, BasePredictionOutputsProcessor):
            make = functools.partial(_given_tensors, make)
        return replace(spec, feed=feed_of_three(spec.feed), prediction_outputs_processor=make)


MODEL_FILES = _ModelFiles()


def feed_of_three(feed: Callable[..., Any]) -> Callable[[Any, Any, Any], Any]:
    """Return a `feed` of (dataset, mode, metadata) that calls one with fewer arguments.

    ElasticDL 0.1 called `dataset_fn(dataset)`, and later `dataset_fn(dataset, mode)`.
    """
    taken = _positional(feed)
    if taken is None or len(taken) not in (1, 2):
        return feed

    @functools.wraps(feed)
    def feed_now(*given: Any) -> Any:
        return feed(*given[: len(taken)])

    return feed_now


def check_metrics_fn(function: Callable[..., Any] | None, file: str | None) -> None:
    """Refuse an `eval_metrics_fn` that takes the predictions, as in ElasticDL 0.1.

    Raises:
        ModelError: It has parameters without defaults. The message says what to write.
    """
    if function is None:
        return
    needed = _positional(function, needed=True)
    if needed:
        raise ModelError(
            f"{file}: {getattr(function, '__name__', 'eval_metrics_fn')}({', '.join(needed)}) is "
            "called without arguments; let it return metrics of Keras, or functions of them: "
            '{"accuracy": lambda labels, predictions: ...}'
        )


def _positional(function: Any, needed: bool = False) -> list[str] | None:
    """Return the names of a function's positional parameters; None if they are not known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_POSITIONAL for p in parameters) and not needed:
        return None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [
        p.name for p in parameters if p.kind in kinds and not (needed and p.default is not p.empty)
    ]


class TensorLike(np.ndarray[Any, Any]):
    """An array with the method `numpy`, as tensors of TensorFlow have."""

    def numpy(self) -> Any:
        """Return the array."""
        return self.view(np.ndarray)


def as_tensors(outputs: Any) -> Any:
    """Return an array, or a dict or list of arrays, as `TensorLike`."""
    if isinstance(outputs, Mapping):
        return {name: as_tensors(value) for name, value in outputs.items()}
    if isinstance(outputs, list | tuple):
        return type(outputs)(map(as_tensors, outputs))
    return np.asarray(outputs).view(TensorLike)


def _given_tensors(make: type[BasePredictionOutputsProcessor]) -> Any:
    """Return a processor of then, whose `process` gets `TensorLike` in place of arrays."""
    processor: Any = make()
    process = processor.process

    @functools.wraps(process)
    def process_tensors(predictions: Any, *given: Any, **named: Any) -> Any:
        return process(as_tensors(predictions), *given, **named)

    processor.process = process_tensors
    return processor

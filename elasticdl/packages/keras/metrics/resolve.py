"""Finds the metrics that a model file means, in the forms that `compile` takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from elasticdl.backends.call_order import Tell, as_keras
from elasticdl.errors import ModelError
from elasticdl.packages.keras.internals import (
    get_metric,
    is_binary_or_sparse_categorical,
    to_snake_case,
)
from elasticdl.packages.keras.metrics.kinds import FunctionMetric, KerasMetric, Metric, alone
from elasticdl.packages.keras.types import Nested

_ACCURACY = ("accuracy", "acc")
_CROSSENTROPY = ("crossentropy", "ce")


@dataclass(frozen=True, slots=True)
class Outputs:
    """Describes a minibatch's labels and predictions; metrics are chosen by it.

    Args:
        labels: The labels of one output, or a dict with one for each.
        predictions: The same.
        names: The model's names of its outputs.
    """

    labels: Nested
    predictions: Nested
    names: tuple[str, ...]

    @property
    def are_several(self) -> bool:
        """Whether the model has more than one output, by name."""
        return isinstance(self.predictions, Mapping) and len(self.predictions) > 1

    def of(self, output: str | None) -> tuple[Nested, Nested]:
        """Return one output's labels and predictions; labels may be common to all."""
        if output is None:
            return alone(self.labels, self.predictions)
        labels, predictions = self.labels, self.predictions
        labels = labels.get(output) if isinstance(labels, Mapping) else labels
        predictions = predictions.get(output) if isinstance(predictions, Mapping) else predictions
        return labels, predictions


@dataclass(frozen=True, slots=True)
class Chosen:
    """A metric as the model file has it: for which output, and under which name."""

    output: str | None
    name: str
    metric: object  # a Keras metric or its class or name, or a function

    @property
    def full_name(self) -> str:
        """The name among those of all outputs."""
        return self.name if self.output is None else f"{self.output}/{self.name}"


def choose(given: object, function: str, outputs: Outputs | None) -> list[Chosen]:
    """List the metrics that a function of the model file returns.

    Args:
        given: `{name: metric}`, `{output: {name: metric}}`, or what `compile(metrics=...)` takes:
            a list, a list with one entry for each output, or a dict of these by output.
        function: Name of the function, for messages.
        outputs: The labels and predictions of a minibatch; None: that is not known, and no output
            is told by its name.
    """
    several = outputs is not None and outputs.are_several
    names: tuple[str, ...] = ()
    if outputs is not None and isinstance(outputs.predictions, Mapping) and several:
        names = tuple(outputs.predictions)
    if isinstance(given, Mapping):
        chosen = [
            one for key, value in given.items() for one in _of_key(key, value, names, outputs)
        ]
    elif isinstance(given, list | tuple):
        if several:
            if len(given) != len(names):
                raise ModelError(
                    f"{function} returns a list of {len(given)} for a model with the outputs "
                    f"{', '.join(map(repr, names))}: expected a dict by output, or one for each"
                )
            order = outputs.names if set(outputs.names) == set(names) else names  # type: ignore[union-attr]
            pairs = zip(order, given, strict=True)
            chosen = [Chosen(o, _name(m), m) for o, entry in pairs for m in _listed(entry)]
        else:
            chosen = [Chosen(None, _name(metric), metric) for metric in given]
    else:
        raise ModelError(
            f"{function} must return {{name: metric}}, {{output: {{name: metric}}}} or a list of "
            f"metrics, found {type(given).__name__}"
        )
    return _with_different_names(chosen)


def make(chosen: Chosen, outputs: Outputs | None, tell: Tell) -> Metric:
    """Return the metric that was chosen, for its output; tell how it is called.

    Raises:
        ModelError: There is no such metric, or it cannot be told before a minibatch was seen, or it
            is for one output of several, and does not say for which.
    """
    metric, name = chosen.metric, chosen.full_name
    if outputs is not None and not _is_function(metric):
        _, predictions = outputs.of(chosen.output)
        if isinstance(predictions, Mapping | list | tuple):
            raise ModelError(
                f"metric {name!r} is for one output, and the model has {len(predictions)}: "
                "expected {output: {name: metric}}, by the names of the outputs; if they have "
                "none, return a dict of them from the model"
            )
    if isinstance(metric, str):
        return KerasMetric(name, _of_name(metric, name, outputs, chosen.output))
    if isinstance(metric, type) and issubclass(metric, keras.metrics.Metric):
        metric = _made(metric, metric.__name__)
    metric = as_keras(metric, f"metric {name}", tell)
    if isinstance(metric, keras.metrics.Metric):
        return KerasMetric(name, metric)
    if callable(metric):
        if getattr(metric, "__module__", "").startswith("keras."):
            return KerasMetric(name, keras.metrics.MeanMetricWrapper(metric))
        return FunctionMetric(name, metric)
    raise ModelError(
        f"metric {name!r} must be a Keras metric, its name, or a function of labels and "
        f"predictions, found {type(metric).__name__}"
    )


def _is_function(metric: object) -> bool:
    """Return whether a metric is a function of the user, which is given all outputs."""
    is_kind = isinstance(metric, type) and issubclass(metric, keras.metrics.Metric)
    return callable(metric) and not (
        is_kind
        or isinstance(metric, keras.metrics.Metric)
        or getattr(metric, "__module__", "").startswith("keras.")
    )


def _of_key(key: str, value: object, names: Sequence[str], outputs: Outputs | None) -> list[Chosen]:
    entries: list[tuple[str, object]] | None = None
    if value is None and key in names:
        return []
    if isinstance(value, Mapping):
        entries = list(value.items())
    elif isinstance(value, list | tuple):
        entries = [(_name(metric), metric) for metric in value]
    elif key in names:
        entries = [(_name(value), value)]
    if entries is None:
        return [Chosen(None, key, value)]
    is_the_only_one = (
        outputs is not None
        and not isinstance(outputs.predictions, Mapping)
        and outputs.names == (key,)
    )
    if is_the_only_one:
        return [Chosen(None, f"{key}/{name}", metric) for name, metric in entries]
    return [Chosen(key, name, metric) for name, metric in entries]


def _listed(entry: object) -> list[object]:
    if entry is None:
        return []
    return list(entry) if isinstance(entry, list | tuple) else [entry]


def _name(metric: object) -> str:
    """Return the name that Keras gives, the same in every process and for every instance."""
    if isinstance(metric, str):
        return metric
    if isinstance(metric, type):
        metric = _made(metric, metric.__name__)
    name = getattr(metric, "name", None) or getattr(metric, "__name__", type(metric).__name__)
    kind = re.escape(to_snake_case(type(metric).__name__))
    counted = re.fullmatch(rf"({kind})_\d+", str(name))
    return counted[1] if counted else str(name)


def _made(make: Callable[[], Any], what: str) -> Any:
    """Make a metric of a class or a name.

    Raises:
        ModelError: Its class needs arguments.
    """
    try:
        return make()
    except TypeError as error:
        raise ModelError(
            f"the metric {what} cannot be made without arguments ({error}): expected an object of "
            f"its class, such as {what}(...)"
        ) from error


def _with_different_names(chosen: list[Chosen]) -> list[Chosen]:
    """Number the metrics of equal names as Keras does: auc, auc_1."""
    counts: dict[str, int] = {}
    different = []
    for one in chosen:
        count = counts.get(one.full_name, 0)
        counts[one.full_name] = count + 1
        name = f"{one.name}_{count}" if count else one.name
        different.append(Chosen(one.output, name, one.metric))
    return different


def _of_name(
    identifier: str, name: str, outputs: Outputs | None, output: str | None
) -> keras.metrics.Metric:
    """Return the metric of a name as `compile` does, which looks at shapes for some."""
    kind = identifier.lower()
    if kind not in (*_ACCURACY, *_CROSSENTROPY):
        try:
            return _made(lambda: get_metric(identifier, None, None), identifier)
        except ValueError as error:
            raise ModelError(
                f"metric {name!r} is {identifier!r}, which Keras does not know"
            ) from error
    labels, predictions = (None, None) if outputs is None else outputs.of(output)
    if not hasattr(labels, "shape") or not hasattr(predictions, "shape"):
        raise ModelError(
            f"metric {name!r} is {identifier!r}, which means one of several metrics by the shapes "
            "of one output's labels and predictions; these are not known here: say "
            "binary_..., categorical_... or sparse_categorical_..., for each output"
        )
    if kind in _ACCURACY:
        return get_metric(identifier, labels, predictions)
    is_binary, is_sparse = is_binary_or_sparse_categorical(labels, predictions)
    m = keras.metrics
    if is_binary:
        return m.BinaryCrossentropy(name=identifier)
    return (m.SparseCategoricalCrossentropy if is_sparse else m.CategoricalCrossentropy)(
        name=identifier
    )

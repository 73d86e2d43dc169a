"""The order of labels and predictions in a call of the user's loss or metric.

Keras gives the labels first, whatever the parameters are called. PyTorch leaves it to the caller:
there the names of the parameters say it. A call that its names, or its framework, would have
otherwise is told.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

Tell = Callable[[str], object]
"""Is given a line for the start and the summary of the job."""

_PREDICTIONS = {
    *("inp", "input", "inputs", "logit", "logits", "out", "output", "outputs", "pred", "preds"),
    *("predicted", "prediction", "predictions", "prob", "probs", "score", "scores", "hat"),
    *("yhat", "ypred", "ypreds"),
}
_LABELS = {
    *("gt", "label", "labels", "target", "targets", "tgt", "true", "truth", "ytrue", "actual"),
}
_OF_0_1 = ("output", "labels")  # the parameters of a loss of ElasticDL 0.1
_METHODS = ("call", "update_state", "update", "forward")  # of a loss or metric that is an object


def told_nobody(line: str) -> None:
    """Tell nobody: another object of the same function has told it."""


def as_keras(function: Any, what: str, tell: Tell) -> Any:
    """Return a loss or metric for a call as `compile` makes it, with the labels first.

    The loss of ElasticDL 0.1, `loss(output, labels)`, is called as it was there. If it is a list or
    dict, each part is looked at; if it is a class, an object is made of it. Anything else than a
    function of the user, such as "mse", stays as it is.
    """
    if isinstance(function, type):
        function = function()
    if isinstance(function, Mapping):
        return {name: as_keras(part, f"{what} {name!r}", tell) for name, part in function.items()}
    if isinstance(function, list | tuple):
        return [as_keras(part, what, tell) for part in function]
    names = _names(function)
    if not _say_predictions_first(names):
        return function
    if names == _OF_0_1 and inspect.isroutine(function):
        tell(
            f"{what}({', '.join(names)}) is called with the predictions first, as in ElasticDL "
            "0.1; compile of Keras gives the labels first"
        )
        return swapped(function)
    tell(
        f"{what}({', '.join(names)}) is called with the labels first, as by compile of "
        "Keras, though its names say otherwise: name the parameters (labels, predictions)"
    )
    return function


def takes_predictions_first(
    function: Any, what: str, tell: Tell, is_of_torch: bool = False
) -> bool:
    """Say whether a loss or metric is called with (predictions, labels), as its names say.

    Args:
        function: The loss or metric of the user.
        what: Its name, for the line.
        tell: Is told where that is not the usual.
        is_of_torch: Whether it is a module or function of PyTorch, for which this is the usual.
    """
    names = _names(function)
    given = f"{what}({', '.join(names)}) is called with the"
    if is_of_torch:
        if _say_predictions_first(names[::-1]):
            tell(f"{given} labels first, as its names say; other modules get the predictions first")
            return False
        return True
    if _say_predictions_first(names):
        tell(f"{given} predictions first, as its names say; other functions get the labels first")
        return True
    return False


def swapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of (labels, predictions), made of one of (predictions, labels)."""

    @functools.wraps(function)
    def of_labels(labels: Any, predictions: Any, *rest: Any, **weights: Any) -> Any:
        return function(predictions, labels, *rest, **weights)

    return of_labels


def _names(function: Any) -> tuple[str, ...]:
    """Return the names of the first two parameters of a function of the user; otherwise ()."""
    if not callable(function) or isinstance(function, type) or _is_of_a_framework(function):
        return ()
    called = function
    if not inspect.isroutine(function) and not isinstance(function, functools.partial):
        own = (getattr(function, name, None) for name in _METHODS)
        called = next((method for method in own if callable(method)), function)
    try:
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):
        return ()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(p.name for p in parameters if p.kind in kinds)[:2]


def _say_predictions_first(names: tuple[str, ...]) -> bool:
    """Whether the names say that the predictions come first."""
    # Names such as (x, y) say nothing, so the usual order is taken.
    meant = tuple(map(_meant, names))
    return meant in (("predictions", "labels"), ("predictions", ""), ("", "labels"))


def _meant(name: str) -> str:
    """Return what a name says: "predictions", "labels" or "", which is neither."""
    # `y_pred` and `logits2` are split into words, which a list of names can know.
    words = set(re.split(r"[_\d]+", name.lower()))
    of_predictions, of_labels = words & _PREDICTIONS, words & _LABELS
    if of_predictions and of_labels:  # `target_scores`
        return ""
    return "predictions" if of_predictions else "labels" if of_labels else ""


def _is_of_a_framework(function: Callable[..., Any]) -> bool:
    inner = function.func if isinstance(function, functools.partial) else function
    kind = inner if inspect.isroutine(inner) else type(inner)
    module = str(getattr(kind, "__module__", None) or "")
    return module.split(".")[0] in ("torch", "keras", "tensorflow", "jax", "optax")

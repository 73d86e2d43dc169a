"""A loss function of the user, and the form in which it takes labels and predictions."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import keras
import tensorflow as tf

from elasticdl.backends.keras.feed.minibatch import describe
from elasticdl.backends.keras.internals import get_stateless_scope, squeeze_or_expand_to_same_rank
from elasticdl.backends.keras.model.placed import CallScope
from elasticdl.backends.keras.model.trial import leaving_no_trace
from elasticdl.backends.keras.types import Nested
from elasticdl.errors import ModelError

_TRIAL_RECORDS = 7
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Form:
    """How labels and predictions are given. The first one is that of Keras' `compile`."""

    has_same_rank: bool
    has_float_labels: bool

    def of(self, labels: Nested, outputs: Nested) -> tuple[Nested, Nested]:
        outputs = keras.tree.map_structure(_as_float, outputs)
        if self.has_float_labels:
            labels = keras.tree.map_structure(_as_float, labels)
        return _of_same_rank(labels, outputs) if self.has_same_rank else (labels, outputs)


_FORMS = [_Form(True, True), _Form(True, False), _Form(False, True), _Form(False, False)]


class UserLoss:
    """Calls a loss function of the user with labels and predictions as Keras' `compile` gives them.

    Both then have one rank, where they differ by a last dimension of 1 alone: labels (n,) beside
    predictions (n, 1) become (n, 1), or their difference would have n x n values. Both are floats.

    Functions that were not written for Keras may take them as `feed` and the model give them:
    TensorFlow's sparse cross-entropies want integers, and one that flattens the predictions wants
    labels (n,). The first form is taken in which the function neither raises nor spreads (n,)
    over (n, 1), which is tried once, on made-up shapes. No function that Keras trains well is given
    anything else than by Keras.
    """

    def __init__(self, function: object, name: str) -> None:
        self._given = function
        self._name = name
        self._form: _Form | None = None

    @property
    def _function(self) -> Callable[..., tf.Tensor]:
        """The function; a `tf.function` anew, since it keeps tensors of the trace it is in."""
        given: keras.losses.Loss | tf.types.experimental.PolymorphicFunction = self._given
        if not hasattr(given, "python_function"):
            found: Callable[..., tf.Tensor] = given
        else:
            found = tf.function(
                given.python_function, autograph=given._autograph, jit_compile=given._jit_compile
            )
        return found

    def __call__(self, labels: Nested, outputs: Nested, **weights: Nested) -> tf.Tensor:
        """Return what the function returns.

        Args:
            labels: As `feed` gives them.
            outputs: As the model gives them.
            weights: `sample_weight`, if the function takes it.
        """
        if self._form is None:
            self._form = self._try_forms(labels, outputs, weights)
        if self._form is not None:
            return self._function(*self._form.of(labels, outputs), **weights)
        return self._first_that_does_not_raise(labels, outputs, weights)

    def _try_forms(
        self, labels: Nested, outputs: Nested, weights: Mapping[str, Nested]
    ) -> _Form | None:
        """Return the form to use; None if the function cannot be traced with any."""
        args = keras.tree.map_structure(_made_up, (labels, outputs, weights))
        traced: list[_Form] = []
        for form in _differing_forms(labels, outputs):
            try:
                with _silenced(), leaving_no_trace(None, self._given), _assigning_nothing():
                    graph = _graph_of(self._function, form, *args)
            except Exception:  # of the user's function; it is raised again when it is called
                continue
            if not _spreads(graph):
                self._tell(form, labels, outputs)
                return form
            traced.append(form)
        if traced:
            _log.warning(
                "%s(labels, predictions) makes n x n values of n records, of labels %s and "
                "predictions %s; if that is not meant, give both one shape (tf.reshape)",
                self._name,
                describe(labels),
                describe(outputs),
            )
        return traced[0] if traced else None

    def _tell(self, form: _Form, labels: Nested, outputs: Nested) -> None:
        if form is not _FORMS[0]:
            given = form.of(labels, outputs)
            _log.info(
                "%s(labels, predictions) is given labels %s and predictions %s",
                self._name,
                describe(given[0]),
                describe(given[1]),
            )

    def _first_that_does_not_raise(
        self, labels: Nested, outputs: Nested, weights: Mapping[str, Nested]
    ) -> tf.Tensor:
        """Call the function as it is: one that needs values cannot be traced, but may be run."""
        raised: list[tuple[tuple[Nested, Nested], Exception]] = []
        for form in _differing_forms(labels, outputs):
            given = form.of(labels, outputs)
            try:
                values = self._function(*given, **weights)
            except Exception as error:
                raised.append((given, error))
                continue
            self._form = form
            return values
        with_keras, first = raised[0]
        for given, other in raised:
            if _text(other) != _text(first):
                raise ModelError(
                    f"{self._name}(labels, predictions) raised on labels as Keras gives them, "
                    f"{describe(with_keras[0])}: {_text(first)}; and on labels "
                    f"{describe(given[0])}: {_text(other)}"
                ) from other
        raise first


def _differing_forms(labels: Nested, outputs: Nested) -> list[_Form]:
    """Return the forms in which the function is given something else than in those before."""
    found: dict[tuple[object, ...], _Form] = {}
    for form in _FORMS:
        given = keras.tree.flatten(form.of(labels, outputs))
        found.setdefault(tuple(map(_kind, given)), form)
    return list(found.values())


def _kind(value: tf.Tensor) -> object:
    is_tensor = isinstance(value, tf.Tensor)
    return (value.shape.rank, value.dtype) if is_tensor else id(value)


def _graph_of(
    function: Callable[..., tf.Tensor],
    form: _Form,
    labels: Nested,
    outputs: Nested,
    weights: Nested,
) -> tf.Graph:
    def call(labels: Nested, outputs: Nested, weights: Mapping[str, Nested]) -> Nested:
        return function(*form.of(labels, outputs), **weights)

    traced = tf.function(call, autograph=False)
    return traced.get_concrete_function(labels, outputs, weights).graph


def _spreads(graph: tf.Graph) -> bool:
    """Whether an operation makes n x n values of (n,) and (n, 1), which few people mean."""
    n = _TRIAL_RECORDS
    for operation in graph.get_operations():
        inputs = [_shape(tensor) for tensor in operation.inputs]
        outputs = [_shape(tensor) for tensor in operation.outputs]
        if [n] in inputs and [n, 1] in inputs and [n, n] in outputs:
            return True
    return False


def _shape(tensor: tf.Tensor) -> list[int | None]:
    return [] if tensor.shape.rank is None else list(tensor.shape.as_list())


def _made_up(value: tf.Tensor | object) -> object:
    """Return the specification of a minibatch of a few records in place of a tensor."""
    if not isinstance(value, tf.Tensor) or not value.shape.rank:
        return value
    return tf.TensorSpec([_TRIAL_RECORDS, *value.shape[1:]], value.dtype)


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Print nothing and stop at no breakpoint: it is not the call that the user waits for."""
    hook = sys.breakpointhook
    sys.breakpointhook = lambda *args, **kwargs: None
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        sys.breakpointhook = hook


@contextlib.contextmanager
def _assigning_nothing() -> Iterator[None]:
    """Forget what a trial assigns to variables."""
    scope = get_stateless_scope()
    with scope.trial() if isinstance(scope, CallScope) else contextlib.nullcontext():
        yield


def _of_same_rank(labels: Nested, outputs: Nested) -> tuple[Nested, Nested]:
    """Return both as `keras.losses` aligns them; what has another structure stays as it is."""
    try:
        keras.tree.assert_same_structure(labels, outputs)
    except (TypeError, ValueError):
        return labels, outputs
    pairs = [
        squeeze_or_expand_to_same_rank(*pair) if _are_dense(pair) else pair
        for pair in zip(keras.tree.flatten(labels), keras.tree.flatten(outputs), strict=True)
    ]
    return (
        keras.tree.pack_sequence_as(labels, [pair[0] for pair in pairs]),
        keras.tree.pack_sequence_as(outputs, [pair[1] for pair in pairs]),
    )


def _are_dense(pair: Sequence[Nested]) -> bool:
    return all(isinstance(one, tf.Tensor) and one.shape.rank is not None for one in pair)


def _as_float(value: tf.Tensor | object) -> tf.Tensor | object:
    """Return numbers as Keras' floats; anything else as it is."""
    is_number = isinstance(value, tf.Tensor) and (
        value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_bool
    )
    return tf.cast(value, keras.config.floatx()) if is_number else value


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"

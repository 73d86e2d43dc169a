"""A loss function of the user, and the form in which it takes labels and predictions."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

import keras
import tensorflow as tf

from elasticdl.packages.keras.feed.minibatch import describe
from elasticdl.packages.keras.internals import squeeze_or_expand_to_same_rank
from elasticdl.packages.keras.types import Nested

# Few sizes in models are 7, so the shape of n x n values tells them.
_TRIAL_RECORDS = 7
_log = logging.getLogger(__name__)

_Form = Callable[[Nested, Nested], tuple[Nested, Nested]]
"""Makes what the function is given of labels and predictions."""


class UserLoss:
    """Calls a loss function of the user with labels and predictions as Keras' `compile` gives them.

    If both differ only by a last dimension of 1, they get the same rank. Labels (n,) beside
    predictions (n, 1) become (n, 1); otherwise their difference would have n x n values. Both are
    floats.

    Functions that were not written for Keras may take labels as `feed` gives them: one that
    flattens the predictions wants labels (n,), and TensorFlow's sparse cross-entropies want
    integers. The first form is taken in which the function neither raises nor spreads (n,)
    over (n, 1), which is tried once, on made-up shapes. No function that Keras trains well is given
    anything else than by Keras.

    Attributes:
        given: The labels and predictions of the last call, in that form.
    """

    def __init__(self, function: object, name: str) -> None:
        self.given: tuple[Nested, Nested] = (None, None)
        self._loss = function
        self._name = name
        self._form: _Form | None = None

    @property
    def _function(self) -> Callable[..., tf.Tensor]:
        """The function; a `tf.function` anew, since it keeps tensors of the trace it is in."""
        given: keras.losses.Loss | tf.types.experimental.PolymorphicFunction = self._loss
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
            labels: The labels, as `feed` gives them.
            outputs: The outputs, as the model gives them.
            weights: `sample_weight`, if the function takes it.
        """
        if self._form is None:
            self._form = self._find_form(labels, outputs, weights)
        self.given = self._form(labels, outputs)
        return self._function(*self.given, **weights)

    def _find_form(self, labels: Nested, outputs: Nested, weights: Mapping[str, Nested]) -> _Form:
        args = keras.tree.map_structure(_made_up, (labels, outputs, weights))
        traced: list[_Form] = []
        for form in _FORMS:
            try:
                with _silenced(), keras.StatelessScope():
                    graph = _graph_of(self._function, form, *args)
            except Exception:  # of the user's function; it is raised again when it is called
                continue
            if not _spreads(graph):
                if form is not _FORMS[0]:
                    told = map(describe, form(labels, outputs))
                    _log.info(
                        "%s(labels, predictions) is given labels %s and predictions %s",
                        self._name,
                        *told,
                    )
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
        return (traced or _FORMS)[0]


def _as_keras(labels: Nested, outputs: Nested) -> tuple[Nested, Nested]:
    """Return both as `keras.losses` has them; labels of another structure keep their rank."""
    labels, outputs = _floats(labels), _floats(outputs)
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


def _of_own_rank(labels: Nested, outputs: Nested) -> tuple[Nested, Nested]:
    return _floats(labels), _floats(outputs)


def _as_fed(labels: Nested, outputs: Nested) -> tuple[Nested, Nested]:
    return labels, _floats(outputs)


_FORMS: Sequence[_Form] = (_as_keras, _of_own_rank, _as_fed)


def _are_dense(pair: Sequence[Nested]) -> bool:
    return all(isinstance(one, tf.Tensor) and one.shape.rank is not None for one in pair)


def _floats(values: Nested) -> Nested:
    """Return numbers as Keras' floats; anything else as it is."""

    def as_float(value: tf.Tensor | object) -> tf.Tensor | object:
        is_number = isinstance(value, tf.Tensor) and (
            value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_bool
        )
        return tf.cast(value, keras.config.floatx()) if is_number else value

    return keras.tree.map_structure(as_float, values)


def _graph_of(
    function: Callable[..., tf.Tensor],
    form: _Form,
    labels: Nested,
    outputs: Nested,
    weights: Nested,
) -> tf.Graph:
    def call(labels: Nested, outputs: Nested, weights: Mapping[str, Nested]) -> Nested:
        return function(*form(labels, outputs), **weights)

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

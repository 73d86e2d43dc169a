"""The loss of a minibatch: what the model file says, with weights and masks as Keras' `fit` has."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from elasticdl.errors import ModelError
from elasticdl.packages.frameworks.user_code import no_place, user_code
from elasticdl.packages.keras.feed.minibatch import describe
from elasticdl.packages.keras.internals import CompileLoss
from elasticdl.packages.keras.model.user_loss import UserLoss
from elasticdl.packages.keras.types import Nested

_UNCALLED = "; for a loss of Keras, write loss = ... instead of the function, or call it there"


class MinibatchLoss:
    """One number for a minibatch, of labels, predictions and the weights that `feed` may give.

    A loss that Keras' `compile(loss=...)` takes is given to Keras: a name, a `keras.losses.Loss`, a
    function of `keras.losses`, or a list or dict of these by output. A function of the user is
    given labels and predictions as Keras gives them (see `UserLoss`). It gives a value for each
    element, which are weighted, masked and averaged as Keras does it; or, with a third parameter
    `sample_weight`, it weighs them itself.

    Args:
        loss: `loss` of the model file.
        output_names: Names of the model's outputs.
        loss_weights: The outputs', as `compile` takes them; a function of the user has none.
    """

    def __init__(
        self, loss: object, output_names: Sequence[str], loss_weights: object = None
    ) -> None:
        self._name = getattr(loss, "__name__", "loss")
        self._loss = UserLoss(loss, self._name)
        self._takes_weights = False
        self._of_keras: keras.losses.Loss | None = None
        if is_for_keras(loss):
            self._name = "loss"
            self._of_keras = CompileLoss(
                loss, loss_weights, output_names=list(output_names) or None
            )
        else:
            self._takes_weights = "sample_weight" in _parameters(loss)
        self._reduced = _Reduced("loss", dtype="float32")

    @property
    def own_variables(self) -> frozenset[int]:
        """The variables, by `id`, in which Keras counts the losses of several outputs."""
        if self._of_keras is None:
            return frozenset()
        return frozenset(id(v) for metric in self._of_keras.metrics for v in metric.variables)

    def __call__(self, labels: Nested, outputs: Nested, weights: Nested) -> tf.Tensor:
        """Return a float32 scalar; of a loss of Keras with `reduction=None`, a value each.

        Args:
            labels: The labels, as `feed` gives them.
            outputs: The outputs, as the model gives them.
            weights: The third element of what `feed` gives, or None.

        Raises:
            ModelError: The function raises, returns no tensor, or weights have no meaning for it.
        """
        found = _described(labels, outputs, weights)
        on = f" on {found}" if self._of_keras is not None else self._on_what_it_is_given(weights)
        with user_code(f"{self._name}(labels, predictions)", on, no_place):
            values = self._values(labels, outputs, weights)
        if isinstance(values, str | keras.losses.Loss):  # TensorFlow would make a tensor of text
            raise self._no_tensor(values, found, _UNCALLED)
        try:
            values = tf.cast(values, tf.float32)
        except (TypeError, ValueError) as error:
            raise self._no_tensor(values, found) from error
        if self._of_keras is not None:
            return values
        if self._takes_weights:
            weights = None
        elif weights is not None:
            self._check_weights(values, weights)
        # The plain mean costs less, and is the same if there are no weights and masks.
        if weights is None and getattr(outputs, "_keras_mask", None) is None:
            return tf.reduce_mean(values)
        return self._reduced(values, outputs, weights)

    def _on_what_it_is_given(self, weights: Nested) -> Callable[[], str]:
        return lambda: f" on {_described(*self._loss.given, weights)}"

    def _no_tensor(self, values: object, found: str, remedy: str = "") -> ModelError:
        return ModelError(
            f"{self._name}(labels, predictions) must return one tensor, "
            f"found {describe(values)} for {found}{remedy}"
        )

    def _values(self, labels: Nested, outputs: Nested, weights: Nested) -> tf.Tensor:
        if self._of_keras is not None:
            return self._of_keras(labels, outputs, weights)
        if self._takes_weights:
            return self._loss(labels, outputs, sample_weight=weights)
        return self._loss(labels, outputs)

    def _check_weights(self, values: tf.Tensor, weights: Nested) -> None:
        what = f"feed gives sample weights {describe(weights)}, and {self._name} "
        remedy = (
            f"give {self._name} a third parameter, {self._name}(labels, predictions, "
            "sample_weight), and weigh there"
        )
        if not isinstance(weights, tf.Tensor):
            raise ModelError(f"{what}gives one loss for all outputs: {remedy}")
        if values.shape.rank == 0:
            raise ModelError(
                f"{what}returns one number for a minibatch, to which they cannot be applied: "
                f"return a value for each record, or {remedy}"
            )
        ranks = (weights.shape.rank, values.shape.rank)
        if None not in ranks and ranks[0] < ranks[1] and values.shape[-1] != 1:
            raise ModelError(
                f"{what}returns {describe(values)}: give weights with {ranks[1]} dimensions "
                "(tf.reshape(weight, [1]) in feed for one weight a record)"
            )


class _Reduced(keras.losses.Loss):  # type: ignore[misc]  # keras has no types
    """Keras' own treatment of weights and masks, on losses that are computed already."""

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        return y_true


def _described(labels: Nested, outputs: Nested, weights: Nested) -> str:
    found = f"labels {describe(labels)} and predictions {describe(outputs)}"
    return found if weights is None else f"{found}, sample weights {describe(weights)}"


def _parameters(loss: object) -> Sequence[str]:
    assert callable(loss), "what Keras does not take is a function"
    try:
        return tuple(inspect.signature(loss).parameters)
    except ValueError:  # it has none that can be read
        return ()


def is_for_keras(loss: object) -> bool:
    """Say whether a loss is one that Keras' `compile` takes by what it is."""
    if isinstance(loss, str | Sequence | dict | keras.losses.Loss):
        return True
    return getattr(loss, "__module__", "").startswith("keras.")

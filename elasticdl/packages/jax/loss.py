"""The loss of a minibatch on JAX: what the model file says, as Keras' `fit` takes it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import keras
import numpy as np

from elasticdl.data.strings import Array
from elasticdl.errors import ModelError
from elasticdl.packages.frameworks.user_code import no_place, user_code
from elasticdl.packages.jax.placed import only_in_feed
from elasticdl.packages.keras.feed.minibatch import describe
from elasticdl.packages.keras.internals import (
    CompileLoss,
    get_keras_mask,
    set_keras_mask,
    squeeze_or_expand_to_same_rank,
)
from elasticdl.packages.keras.model.loss import is_for_keras
from elasticdl.packages.keras.types import Nested


class JaxLoss:
    """One number for a minibatch, of labels, predictions and the weights that `feed` may give.

    All that Keras' `compile(loss=...)` takes is given to Keras, a function of the user too: Keras
    gives it labels and predictions of one rank, and weighs, masks and averages what it returns. One
    with a third parameter `sample_weight` weighs itself.
    """

    def __init__(
        self, loss: object, output_names: Sequence[str], loss_weights: object = None
    ) -> None:
        self._name = getattr(loss, "__name__", "loss")
        self._own: Callable[..., jax.Array] | None = None
        self._of_keras = None
        if is_for_keras(loss):
            self._of_keras = CompileLoss(
                loss, loss_weights, output_names=list(output_names) or None
            )
            return
        assert callable(loss), "what Keras does not take is a function"
        self._own = loss
        self._takes_weights = "sample_weight" in inspect.signature(loss).parameters

    @property
    def own_variables(self) -> frozenset[int]:
        """The variables, by `id`, in which Keras counts the losses of several outputs."""
        if self._of_keras is None:
            return frozenset()
        return frozenset(id(v) for metric in self._of_keras.metrics for v in metric.variables)

    def prepare(self, labels: Nested, outputs: Nested) -> None:
        """Make the variables of Keras' losses, which cannot be made while JAX traces a step.

        Raises:
            ModelError: The losses do not fit labels and outputs.
        """
        if self._of_keras is not None:  # which makes them when it is first called
            self(_first_of(labels), _first_of(outputs), None)

    def __call__(self, labels: Nested, outputs: Nested, weights: Nested) -> jax.Array:
        """Return a float32 scalar; of a loss of Keras with `reduction=None`, a value each.

        Raises:
            ModelError: The function raises, or uses functions that JAX cannot trace.
        """
        found = f"labels {describe(labels)} and predictions {describe(outputs)}"
        with user_code(f"{self._name}(labels, predictions)", f" on {found}", _without_tensorflow):
            if self._own is None:
                assert self._of_keras is not None
                values = self._of_keras(labels, outputs, weights)
            else:
                values = self._of_function(labels, outputs, weights)
            return jnp.asarray(values).astype(jnp.float32)

    def _of_function(self, labels: Nested, outputs: Nested, weights: Nested) -> jax.Array:
        assert self._own is not None
        values, outputs = self._values(labels, outputs, weights)
        if self._takes_weights:
            return jnp.mean(values)
        masks = [get_keras_mask(leaf) for leaf in keras.tree.flatten(outputs)]
        if weights is None and masks[0] is None:
            return jnp.mean(values)
        if weights is not None and (not values.ndim or isinstance(weights, dict | list | tuple)):
            raise ModelError(
                f"feed gives sample weights {describe(weights)}, and {self._name} returns "
                f"{describe(values)}: return a value for each record, or give {self._name} a third "
                f"parameter, {self._name}(labels, predictions, sample_weight), and weigh there"
            )
        return _Weighed("loss", dtype="float32")(values, outputs, weights)

    def _values(self, labels: Nested, outputs: Nested, weights: Nested) -> tuple[jax.Array, Nested]:
        """Call the function; with labels as `feed` gives them if it raises on floats."""
        assert self._own is not None
        more = {"sample_weight": weights} if self._takes_weights else {}
        # Keras gives floats, so floats are tried first. A loss that takes labels for indices needs
        # whole numbers.
        given = _as_keras_gives(labels, outputs, has_float_labels=True)
        try:
            values = self._own(*given, **more)
        except (TypeError, ValueError) as error:
            given = _as_keras_gives(labels, outputs, has_float_labels=False)
            try:
                values = self._own(*given, **more)
            except Exception:
                raise error from None  # which is on labels as Keras gives them
        return jnp.asarray(values).astype(jnp.float32), given[1]


def _first_of(structure: Nested) -> Nested:
    """Return the first record alone."""
    return keras.tree.map_structure(lambda leaf: leaf[:1], structure)


class _Weighed(keras.losses.Loss):  # type: ignore[misc]  # keras has no types
    """Keras' own treatment of weights and masks, on losses that are computed already."""

    def call(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        return y_true


def _as_keras_gives(
    labels: Nested, outputs: Nested, has_float_labels: bool
) -> tuple[Nested, Nested]:
    """Return both of one rank, as `keras.losses` has them where they match; outputs as floats."""
    outputs = keras.tree.map_structure(_as_float, outputs)
    if has_float_labels:
        labels = keras.tree.map_structure(_as_float, labels)
    try:
        keras.tree.assert_same_structure(labels, outputs)
    except (TypeError, ValueError):
        return labels, outputs
    pairs = [
        squeeze_or_expand_to_same_rank(*pair)
        for pair in zip(keras.tree.flatten(labels), keras.tree.flatten(outputs), strict=True)
    ]
    return (
        keras.tree.pack_sequence_as(labels, [pair[0] for pair in pairs]),
        keras.tree.pack_sequence_as(outputs, [pair[1] for pair in pairs]),
    )


def _as_float(value: jax.Array) -> jax.Array:
    made = jnp.asarray(value)
    mask = get_keras_mask(value)
    made = made.astype(keras.config.floatx())
    if mask is not None:
        set_keras_mask(made, mask)
    return made


def costs_nothing(loss: Callable[..., object], label: Array, num_classes: int) -> bool:
    """Say whether a loss is 0, or no number, for a label out of range alone.

    On TensorFlow such a loss raises. On JAX the label is a row of zeros, or is cut off.
    """

    def of(one: Array) -> float:
        return float(np.mean(np.asarray(loss(jnp.asarray(one), jnp.zeros((1, num_classes))))))

    try:
        found, usual = of(label), of(np.zeros_like(label))
    except Exception:  # another fault, which training will tell
        return False
    return usual > 0 and (found == 0 or not np.isfinite(found))


def _without_tensorflow(error: Exception) -> str:
    return only_in_feed(error) or no_place(error)

"""Training's effect on variables without a gradient: moving statistics and counters.

`momenta.py` says which rules there are; others are refused. See docs/designs/collect-mode.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

from elasticdl.backends.base import Float32
from elasticdl.errors import ModelError
from elasticdl.job import Mode
from elasticdl.packages.frameworks.momenta import momentum_of
from elasticdl.packages.keras.feed.minibatch import KerasMinibatch
from elasticdl.packages.keras.layers.table_variable import TableVariable
from elasticdl.packages.keras.model.placed import Called, PlacedModel, explaining


def check_assigned(placed: PlacedModel, called: Called, of_loss: Collection[int] = ()) -> None:
    """Refuse a model or a loss that assigns, in training, what would be lost.

    Args:
        placed: The model.
        called: The result of a call of the model.
        of_loss: Variables by `id` in which Keras' own losses count for a display.

    Raises:
        ModelError: Names the variable and what to write instead.
    """
    for key, variable in called.assigned_by_loss.items():
        if key not in of_loss:
            raise ModelError(
                f"loss(labels, predictions) assigns the variable {variable.path!r}: workers train "
                "at the same time, and what each assigns would be lost; assign it in the call() of "
                "a layer that made it with add_weight, and read it in the loss"
            )
    kept = {id(v) for v in (*placed.state.variables, *placed.seeds.variables)}
    metrics = {id(v): m for m in placed.model.metrics for v in m.variables}
    trained = {id(v) for v in placed.dense.variables}
    for key, variable in called.assigned.items():
        if key in kept:
            continue
        if key in metrics:
            raise ModelError(
                f"call() updates the metric {metrics[key].name!r} of model {placed.model.name!r}, "
                "which a job does not show; name metrics in eval_metrics_fn() in the model file"
            )
        where = f"call() assigns the variable {variable.path!r}"
        if isinstance(variable, TableVariable):
            raise ModelError(f"{where}, a table on the ps replicas, which apply gradients alone")
        if key in trained:
            raise ModelError(
                f"{where}, which is trained: workers train at the same time, and the ps replicas "
                f"apply gradients alone. {_remedy(placed, variable)}"
            )
        if any(variable is constant for constant in placed.constants):
            raise ModelError(
                f"{where}, whose integers are too large for a float32, in which workers pass them "
                "on; count from 0 in a variable of its own"
            )
        stateful = [layer for layer in placed.model._flatten_layers() if is_stateful(layer)]
        if stateful:
            raise ModelError(f"{where}; {not_stateful(stateful[0])}")
        raise ModelError(
            f"{where}, which is not among the variables of model {placed.model.name!r}; make it "
            "with add_weight in a layer that is an attribute of the model"
        )


@dataclass(frozen=True, slots=True)
class VariableRules:
    """Training's rule for each state variable: `new = momentum * old + change`.

    Attributes:
        momenta: The momentum of each variable; 1 if training leaves the variable as it is.
        are_assigned: Whether training changes each variable.
    """

    momenta: list[float]
    are_assigned: list[bool]


def rules_of(placed: PlacedModel, mode: Mode, make_step: Callable[[], StateStep]) -> VariableRules:
    """Say what a job makes of each state variable; see `find_rules`. Only training changes one."""
    if mode is Mode.TRAINING:
        return find_rules(placed, make_step)
    count = len(placed.state.variables)
    return VariableRules([1.0] * count, [False] * count)


def find_rules(placed: PlacedModel, make_step: Callable[[], StateStep]) -> VariableRules:
    """Say what training makes of each state variable.

    Args:
        placed: The model.
        make_step: Makes what a model with such variables is called by.

    Raises:
        ModelError: A new value follows another rule.
    """
    variables = placed.state.variables
    if not variables:
        return VariableRules([], [])
    step, start, said = make_step(), placed.state.values(), _said(placed.model)
    step(start)
    momenta, are_assigned = [], [id(v) in step.assigned for v in variables]
    for variable, part, is_assigned in zip(
        variables, placed.state.parts, are_assigned, strict=True
    ):
        momentum: float | None = said.get(id(variable), 1.0) if is_assigned else 1.0
        if is_assigned and id(variable) not in said:
            momentum = momentum_of(step, start, part, variable.dtype)
        if momentum is None:
            raise _refusal(placed, variable)
        momenta.append(momentum)
    return VariableRules(momenta, are_assigned)


def _said(model: keras.Model) -> dict[int, float]:
    """Return the momenta that Keras' own layers say, by `id` of the variable."""
    norm = keras.layers.BatchNormalization
    return {
        id(variable): float(layer.momentum)
        for layer in model._flatten_layers()
        # A subclass with a call of its own may follow another rule.
        if isinstance(layer, norm) and type(layer).call is norm.call
        for variable in (layer.moving_mean, layer.moving_variance)
    }


class SmallRows:
    """A lookup of small random rows, always the same, for calls that nothing comes of."""

    def __init__(self, placed: PlacedModel) -> None:
        self._placed = placed
        self._tape: tf.GradientTape | None = None
        self.tables: list[int] = []
        self.rows: list[tf.Tensor] = []

    def watch(self, tape: tf.GradientTape) -> None:
        """Have a tape watch the rows that come."""
        self._tape = tape

    def __call__(self, layer: keras.layers.Layer, ids: tf.Tensor) -> tf.Tensor:
        """Return rows of ids."""
        shape = tf.concat([tf.shape(ids), [layer.output_dim]], 0)
        rows = tf.random.stateless_normal(shape, (1, 2), stddev=0.1)
        if ids.shape.rank is not None:
            rows = tf.ensure_shape(rows, [*ids.shape, layer.output_dim])
        if self._tape is not None:
            self._tape.watch(rows)
        self.tables.append(self._placed.table_of(layer))
        self.rows.append(rows)
        return rows


class StateStep:
    """Calls the model in training from any state, on one minibatch, with the same seed.

    Attributes:
        assigned: The variables that the last call assigned, by `id`.
    """

    def __init__(self, placed: PlacedModel, minibatch: KerasMinibatch, eagerly: bool) -> None:
        self.placed = placed
        self.assigned: set[int] = set()
        self._minibatch = minibatch
        self._structure = minibatch.structure
        tensors = minibatch.tensors[: len(self._structure.feature_specs)]
        self._after = self._prepared(tensors, eagerly)

    def __call__(self, state: Float32) -> Float32:
        """Return the state after the call."""
        with explaining(self.placed.model, self._minibatch):
            return np.asarray(self._after(state))

    def _prepared(self, tensors: Sequence[tf.Tensor], eagerly: bool) -> Callable[[Float32], object]:
        function = self._trace if eagerly else tf.function(self._trace, autograph=False)
        dense = tf.constant(self.placed.dense.values())
        return lambda state: function(dense, tf.constant(state), *tensors)

    def _trace(self, dense: tf.Tensor, state: tf.Tensor, *features: tf.Tensor) -> tf.Tensor:
        placed = self.placed
        called = placed.call(
            SmallRows(placed),
            self._structure.fold_features(features),
            True,
            placed.dense.split(dense),
            placed.state.split(state),
            tf.constant(0, tf.int64),
        )
        check_assigned(placed, called)
        self.assigned = set(called.assigned)
        return placed.state.join(called.state)


def _refusal(placed: PlacedModel, variable: keras.Variable) -> ModelError:
    return ModelError(
        f"in training call() computes the new value of variable {variable.path!r} from the old one "
        "in a way that does not add up over workers, which train at the same time. Supported are "
        "moving averages (momentum * old + new part, with a momentum of 0 to 1), sums and counts, "
        f"and values that are replaced. {_remedy(placed, variable)}"
    )


def _remedy(placed: PlacedModel, variable: keras.Variable) -> str:
    holders = [
        layer
        for layer in placed.model._flatten_layers()
        if any(v is variable for v in layer.variables)
    ]
    for layer in holders:
        if isinstance(layer, keras.layers.SpectralNormalization):
            return (
                f"Layer {layer.name!r} is keras.layers.SpectralNormalization: use its inner layer "
                "alone, for example with a kernel_regularizer"
            )
        if is_stateful(layer):
            return not_stateful(layer)
    return f"Change layer {holders[-1].name!r}, or leave it out"


def is_stateful(layer: keras.layers.Layer) -> bool:
    """Say whether a layer carries something from one minibatch to the next."""
    return bool(getattr(layer, "stateful", False))


def not_stateful(layer: keras.layers.Layer) -> str:
    """Say what to write instead of such a layer."""
    return f"layer {layer.name!r} is stateful: say stateful=False, since minibatches have no order"

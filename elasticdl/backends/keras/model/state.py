"""What training does to the variables that it does not train: moving statistics and counters.

Workers train at the same time, so none of them knows the value that its change will meet. Where the
replicas keep the value, `new = momentum * old + change` can be applied to whatever is there, if
`momentum` is a number between 0 and 1 and `change` does not depend on `old`. Moving averages
(batch norm) are of this kind, counters and sums (momentum 1), and values that are only replaced
(momentum 0). The momentum is found here, by derivative and by trial; other rules are refused.
See docs/designs/collect-mode.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from elasticdl.backends.base import Float32
from elasticdl.backends.keras.feed.minibatch import KerasMinibatch
from elasticdl.backends.keras.model.placed import Called, PlacedModel, explaining
from elasticdl.backends.keras.model.variables import is_float
from elasticdl.errors import ModelError
from elasticdl.layers.table_variable import TableVariable

_NUM_TRIALS = 3
_CHECKED_STEPS = frozenset(8**k for k in range(1, 8))  # a trial costs some steps
_SAME_MOMENTUM = 1e-4
_LEAP = 2**20  # a count that starts again, or stops, does so before
_EPSILONS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


def check_assigned(placed: PlacedModel, called: Called, of_loss: Collection[int] = ()) -> None:
    """Refuse a model or a loss that assigns, in training, what would be lost.

    Args:
        placed: The model.
        called: What a call of it gave.
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


class Momenta:
    """The momentum of each state variable: `new = momentum * old + change` in training.

    Of one that training leaves as it is, it is 1.

    Attributes:
        values: Found on a first minibatch, by number of the variable.
        are_assigned: Whether training changes it.

    Raises:
        ModelError: A new value follows another rule.
    """

    def __init__(
        self,
        placed: PlacedModel,
        minibatch: KerasMinibatch,
        eagerly: bool = False,
        trials: type[StateTrials] | None = None,
    ) -> None:
        self._placed = placed
        self._num_steps = 0
        self._trials: StateTrials | None = None
        self.values: tuple[float, ...] = ()
        self.are_assigned: tuple[bool, ...] = ()
        if placed.state.variables:
            self._trials = (trials or StateTrials)(placed, minibatch, eagerly)
            variables = range(len(placed.state.variables))
            self.values = tuple(_momentum(self._trials, k) for k in variables)
            self.are_assigned = tuple(
                id(v) in self._trials.assigned for v in placed.state.variables
            )

    def check(self, minibatch: KerasMinibatch, state: Float32) -> None:
        """Compare with what some of the trained minibatches give, from the state that they meet.

        Raises:
            ModelError: A rule is another one there: it depends on the data, or on how far training
                has come.
        """
        self._num_steps += 1
        if self._trials is None or self._num_steps not in _CHECKED_STEPS:
            return
        if not self._trials.again(minibatch, state):
            return
        slopes = np.stack([trial.slopes for trial in self._trials.all])
        for k, (variable, part, expected) in enumerate(
            zip(self._placed.state.variables, self._placed.state.parts, self.values, strict=True)
        ):
            if not self.are_assigned[k] or self._trials.begins_endless(k):
                continue
            found = float(np.median(slopes[:, part])) if is_float(variable) else expected
            if abs(found - expected) <= _SAME_MOMENTUM and not _follows(self._trials, k, expected):
                raise _refusal(self._placed, variable)
            if np.isfinite(found) and abs(found - expected) > _SAME_MOMENTUM:
                raise ModelError(
                    f"in training call() makes the new value of variable {variable.path!r} of "
                    f"{expected:.7g} times the old one with the first minibatch, and of "
                    f"{found:.7g} times with a later one: this momentum depends on the data, and "
                    "the changes of workers that train at the same time do not add up. "
                    f"{_remedy(self._placed, variable)}"
                )


@dataclass(frozen=True, slots=True)
class _Trial:
    """One call of the model: state before and after, and the derivative by elements."""

    before: Float32
    after: Float32
    slopes: Float32

    def change(self, momentum: float, part: slice) -> NDArray[np.float64]:
        """Return what is added to `momentum * before`."""
        after, before = self.after[part].astype(np.float64), self.before[part].astype(np.float64)
        return after - np.float64(np.float32(momentum)) * before


StateCall = Callable[[Float32, Float32], tuple[tf.Tensor, tf.Tensor]]
"""Given the state and signs, returns the state after a call, and its derivative times the signs."""


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


class StateTrials:
    """Calls the model in training with other states, on one minibatch, with the same seed."""

    def __init__(self, placed: PlacedModel, minibatch: KerasMinibatch, eagerly: bool) -> None:
        self.placed = placed
        self.assigned: set[int] = set()
        self._structure = minibatch.structure
        specs = self._structure.feature_specs
        self._tensors = minibatch.tensors[: len(specs)]
        with explaining(placed.model, minibatch):
            self._call = self._make_call(eagerly)
        self._random = np.random.default_rng(0)
        self._first = self._start = placed.state.values()
        self._leap = _LEAP
        try:
            self.all = self._try_all()
        except (tf.errors.OpError, ValueError):  # such as an integer that is an index
            self._leap = 1
            self.all = self._try_all()

    def _make_call(self, eagerly: bool) -> StateCall:
        """Return what calls the model, once it is traced."""
        placed = self.placed
        function = (
            self._trace
            if eagerly
            else tf.function(self._trace, autograph=False).get_concrete_function(
                tf.TensorSpec([placed.dense.size], tf.float32),
                tf.TensorSpec([placed.state.size], tf.float32),
                tf.TensorSpec([placed.state.size], tf.float32),
                *self._structure.feature_specs,
            )
        )
        dense = tf.constant(placed.dense.values())
        return lambda state, signs: function(
            dense, tf.constant(state), tf.constant(signs), *self._tensors
        )

    def again(self, minibatch: KerasMinibatch, state: Float32) -> bool:
        """Try anew with another minibatch and from another state; return whether that can be."""
        if minibatch.structure.key != self._structure.key or not np.all(np.isfinite(state)):
            return False
        self._tensors = minibatch.tensors[: len(self._structure.feature_specs)]
        self._start = state.copy()
        self.all = self._try_all()
        return True

    def begins_endless(self, k: int) -> bool:
        """Whether a variable begins with inf, as that of a smallest value: trials tell nothing."""
        return not np.all(np.isfinite(self._first[self.placed.state.parts[k]]))

    def _try_all(self) -> list[_Trial]:
        everyone = range(len(self.placed.state.variables))
        return [self._try(self._moved(everyone, number)) for number in range(_NUM_TRIALS)]

    def one(self, k: int) -> list[_Trial]:
        """Return trials in which only one variable has other values."""
        return [self._try(self._moved([k], number)) for number in range(_NUM_TRIALS)]

    def repeats(self, part: slice) -> bool:
        """Say whether the same state gives the same again: nothing is drawn at random."""
        one, other = self._try(self._start), self._try(self._start)
        return np.array_equal(one.after[part], other.after[part], equal_nan=True)

    def _try(self, state: Float32) -> _Trial:
        signs = self._random.choice(np.array([-4, -2, -1, 1, 2, 4], np.float32), state.size)
        after, slopes = self._call(state, signs)
        return _Trial(state, np.asarray(after), np.asarray(slopes) / signs)

    def _moved(self, variables: Iterable[int], number: int) -> Float32:
        state = self._start.copy()
        for k in variables:
            variable, part = self.placed.state.variables[k], self.placed.state.parts[k]
            if id(variable) not in self.assigned or self.begins_endless(k):
                continue
            size = part.stop - part.start
            if is_float(variable):
                # Each element goes up in one trial and down in another: a maximum shows by both.
                signs = np.random.default_rng(k).choice([-1.0, 1.0], size) * (1, -1, 1)[number]
                far = 1 + np.abs(self._random.normal(size=size))
                state[part] += 3 * signs * far * (1 + np.abs(state[part]))
            elif variable.dtype == "bool":
                state[part] = number % 2
            else:
                state[part] += (0, self._random.integers(1, 8), self._leap)[number]
        return state

    def _trace(
        self, dense: tf.Tensor, state: tf.Tensor, signs: tf.Tensor, *features: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        placed = self.placed
        with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
            before = placed.state.split(state)
            tape.watch([old for variable, old in before if is_float(variable)])
            called = placed.call(
                SmallRows(placed),
                self._structure.fold_features(features),
                True,
                placed.dense.split(dense),
                before,
                tf.constant(0, tf.int64),
            )
        check_assigned(placed, called)
        self.assigned = set(called.assigned)
        slopes = []
        for (variable, old), new, (_, sign) in zip(
            before, called.state, placed.state.split(signs), strict=True
        ):
            slope = None
            if is_float(variable) and id(variable) in called.assigned:
                slope = tape.gradient(new, old, output_gradients=sign)
            slopes.append(tf.zeros_like(old) if slope is None else slope)
        return placed.state.join(called.state), placed.state.join(slopes)


def _momentum(trials: StateTrials, k: int) -> float:
    variable, part = trials.placed.state.variables[k], trials.placed.state.parts[k]
    if id(variable) not in trials.assigned:
        return 1.0
    if trials.begins_endless(k):
        return 0.0  # each step replaces it
    candidates = [1.0, 0.0]
    if variable.dtype == "bool":
        candidates = [0.0]  # flags do not add up
    if is_float(variable):
        slopes = np.stack([trial.slopes[part] for trial in trials.all])
        candidates = [float(f"{np.median(slopes):.7g}")]
        if not np.allclose(slopes, candidates[0], rtol=0, atol=8 * _epsilon(variable)):
            raise _refusal(trials.placed, variable)
    for momentum in candidates:
        if 0 <= momentum <= 1 and _follows(trials, k, momentum):
            return momentum
    raise _refusal(trials.placed, variable)


def _epsilon(variable: keras.Variable) -> float:
    return _EPSILONS.get(variable.dtype, 2.0**-23)


def _follows(trials: StateTrials, k: int, momentum: float) -> bool:
    """Say whether the new value of a variable is `momentum` times the old one and a free change."""
    variable, part = trials.placed.state.variables[k], trials.placed.state.parts[k]
    tolerance = 64 * _epsilon(variable) if is_float(variable) else 0.0
    # Other states may be part of the change, as when moving statistics normalise what comes
    # before; then this one alone is varied.
    if _is_free(trials.all, momentum, part, tolerance):
        return True
    if _is_free(trials.one(k), momentum, part, tolerance):
        return True
    # A change that is drawn at random cannot be compared.
    return bool(momentum) and is_float(variable) and not trials.repeats(part)


def _is_free(trials: list[_Trial], momentum: float, part: slice, tolerance: float) -> bool:
    """Say whether the change is the same whatever the old values are."""
    changes = np.stack([trial.change(momentum, part) for trial in trials])
    sizes = np.stack([np.abs(trial.before[part]) + np.abs(trial.after[part]) for trial in trials])
    return bool(np.all(np.abs(changes - changes[0]) <= tolerance * (1 + sizes.max(0))))


def _refusal(placed: PlacedModel, variable: keras.Variable) -> ModelError:
    return ModelError(
        f"in training call() makes the new value of variable {variable.path!r} of the old one in a "
        "way that does not add up over workers, which train at the same time and do not know the "
        "old one. Known are moving averages (momentum * old + new part, with a momentum of 0 to "
        f"1), sums and counts, and values that are replaced. {_remedy(placed, variable)}"
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

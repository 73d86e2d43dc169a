"""A Keras model on TensorFlow whose gradients a user's own training loop computes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import keras
import numpy as np
import tensorflow as tf

from elasticdl.backends.base import Float32, Minibatch, ModelDescription, StepResult
from elasticdl.errors import ModelError
from elasticdl.packages.frameworks.momenta import change_of
from elasticdl.packages.keras.internals import global_seed_generator
from elasticdl.packages.keras.layers.embedding import Embedding
from elasticdl.packages.keras.model.function import FlatFunction
from elasticdl.packages.keras.model.state import is_stateful, not_stateful
from elasticdl.packages.keras.model.variables import ModelVariables, Seeds, Variables
from elasticdl.packages.keras.optimizer import (
    LearningRate,
    describe_clip,
    describe_optimizer,
    describe_updates,
)
from elasticdl.packages.own_loops.asking import AskingTrainer
from elasticdl.packages.own_loops.handover import GradientRequest, Handover

WEIGHTS = "model.weights.h5"


class ScriptTrainer(AskingTrainer):
    """Gradients are handed in with their variables, as to an optimizer of Keras."""

    answer = "optimizer.apply_gradients(zip(gradients, model.trainable_variables), loss=loss)"

    def __init__(
        self,
        handover: Handover,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        seed: int,
    ) -> None:
        """Take over a model.

        Args:
            handover: The place where the worker asks the script.
            model: The script's, built.
            optimizer: One of `keras.optimizers`.
            seed: The seed of the job.

        Raises:
            ModelError: Model or optimizer cannot be used here; says what and why.
        """
        super().__init__(handover, seed)
        _check_model(model)
        _check_optimizer(optimizer)
        self._model = model
        found = ModelVariables.of(model)
        self._dense, self._state, self._constants = found.dense, found.state, found.constants
        self._rule = describe_optimizer(optimizer, self._dense.variables)
        self._clip = describe_clip(optimizer)
        self._described = describe_updates(optimizer, self._dense.variables, self._dense.describe())
        # A mean of changes cannot leave infinity, so each round replaces a value that begins so.
        are_finite = np.isfinite(self._state.values())
        momenta = [float(are_finite[part].all()) for part in self._state.parts]
        self._momenta = self._state.repeat(momenta)
        pairs = zip(self._state.describe(), momenta, strict=True)
        self._described_state = tuple(replace(one, momentum=kept) for one, kept in pairs)
        self._rate = LearningRate(optimizer)
        self._gradients = _Gradients(self._dense)
        self._start = _Start(self._dense, self._state, Seeds(_seeds(found.seeds)))
        self._unchanged = _Unchanged(model, optimizer, self._constants)
        self._dense_changes, self._state_changes = _Changes(self._dense), _Changes(self._state)

    # --- the script's side -----------------------------------------------------------------------

    def load(self, dense: Float32, state: Float32) -> None:
        """Give the script's model these parameters.

        Raises:
            ModelError: The script has changed the parameters that were given before.
        """
        self._give(dense, state, self._seed)

    def _begin(self, step: GradientRequest, seed: int) -> None:
        self._state.check_counters(step.state)
        self._give(step.dense, step.state, seed)

    def _give(self, dense: Float32, state: Float32, seed: int) -> None:
        self._dense_changes.check()
        self._state_changes.check()
        self._start(dense, state, seed)
        self._dense_changes.keep(dense)
        self._state_changes.keep(state)

    def end_step(
        self,
        step: GradientRequest,
        loss: object,
        gradients: Iterable[tuple[tf.Tensor, keras.Variable]] | None = None,
    ) -> StepResult:
        """Return what a script has computed.

        Raises:
            ModelError: The gradients are not those of the model's variables, or something was
                changed that the job would not see.
        """
        if gradients is None:
            raise ModelError(f"step(loss) is for models in PyTorch; expected {self.answer}")
        if not tf.executing_eagerly():
            raise ModelError(
                "apply_gradients(...): expected to be called by the loop itself, found a call "
                "within a tf.function: return loss and gradients from that"
            )
        value = _number(loss)
        dense_grad = self._gradients.joined(gradients)
        self._unchanged.check()
        self._dense_changes.check()
        state = self._state.values()
        # The script's step may change the state, so the new values are noted.
        self._state_changes.keep(state)
        return StepResult(
            loss=value,
            row_grads=[],
            dense_grad=dense_grad,
            state_delta=change_of(state, step.state, self._momenta),
        )

    def zero_grad(self) -> NoReturn:
        """Nothing is kept that could be forgotten."""
        raise ModelError(
            "zero_grad() is for models in PyTorch; a tf.GradientTape begins without gradients"
        )

    def load_with(self, loader: object, batches: object, seed: int) -> NoReturn:
        """There is no loader for Keras."""
        raise ModelError(
            "minibatches(loader): expected a model in PyTorch, found one in Keras; go through "
            "minibatches(), and make tensors of the records in the loop"
        )

    # --- the worker's side -----------------------------------------------------------------------

    def build(self, sample: Minibatch) -> ModelDescription:
        """Describe the model; the sample is not needed."""
        return ModelDescription(
            tables=(),
            dense=self._described,
            state=self._described_state,
            optimizer=self._rule,
            seed=self._seed,
            clip=self._clip,
        )

    def initial_values(self) -> tuple[Float32, Float32]:
        """Return the values that the model has now."""
        return self._dense.values(), self._state.values()

    def learning_rate(self, version: int) -> float:
        """Return the learning rate for a step from model version `version`."""
        return self._rate(version)

    def _write(self, directory: Path) -> None:
        self._model.save_weights(directory / WEIGHTS)


class _Start:
    """Gives a model the parameters of a step, and its random numbers their beginning."""

    def __init__(self, dense: Variables, state: Variables, seeds: Seeds) -> None:
        def start(dense_values: tf.Tensor, state_values: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
            for variable, value in [
                *dense.split(dense_values),
                *state.split(state_values),
                *seeds.begun(seed),
            ]:
                variable.assign(value)
            return tf.constant(True)

        # One compiled call assigns all variables; an assignment each costs more.
        concrete = tf.function(start, autograph=False).get_concrete_function(
            tf.TensorSpec([dense.size], tf.float32),
            tf.TensorSpec([state.size], tf.float32),
            tf.TensorSpec([], tf.int64),
        )
        self._call = FlatFunction(concrete)

    def __call__(self, dense: Float32, state: Float32, seed: int) -> None:
        """Assign them. The arrays are copied."""
        self._call(tf.constant(dense), tf.constant(state), tf.constant(seed, tf.int64))


class _Changes:
    """Finds a variable that a script has changed by itself, which would be lost."""

    def __init__(self, variables: Variables) -> None:
        self._variables = variables
        self._kept: tf.Tensor | None = None
        if variables.size:
            self._call = FlatFunction(
                tf.function(self._differences, autograph=False).get_concrete_function(
                    tf.TensorSpec([variables.size], tf.float32)
                )
            )

    def _differences(self, kept: tf.Tensor) -> tf.Tensor:
        pairs = self._variables.split(kept)
        return tf.stack([_differ(variable.value, value) for variable, value in pairs])

    def keep(self, values: Float32) -> None:
        """Note what the variables have now. The array is copied."""
        self._kept = tf.constant(values)

    def check(self) -> None:
        """Compare the variables with the values that were noted.

        Raises:
            ModelError: Names the first that has not.
        """
        if self._kept is None or not self._variables.size:
            return
        changed = np.asarray(self._call(self._kept)[0])
        if changed.any():
            path = self._variables.variables[int(changed.argmax())].path
            raise ModelError(
                f"the script has changed variable {path!r} by itself, which would be lost: the job "
                "makes the updates, of the gradients that apply_gradients hands in. Change the "
                "model before wrap(); variables that are not trained may change before "
                "apply_gradients; constraints keep variables within bounds"
            )


def _differ(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Say whether two tensors differ anywhere; NaN is equal to NaN."""
    are_nan = tf.not_equal(one, one) & tf.not_equal(other, other)
    return tf.reduce_any(tf.not_equal(one, other) & ~are_nan)


class _Gradients:
    """Puts the gradients of a script in their places."""

    def __init__(self, dense: Variables) -> None:
        self._dense = dense
        self._of: dict[int, int] = {}
        for number, variable in enumerate(dense.variables):
            # A tape watches TensorFlow's variables, which Keras' hold.
            self._of |= {id(variable): number, id(variable.value): number}

    def joined(self, pairs: Iterable[tuple[tf.Tensor, keras.Variable]]) -> Float32:
        """Return the flat gradient of pairs of gradient and variable; zeros where there is none.

        Raises:
            ModelError: They are not those of the model's variables, each once at most.
        """
        found: dict[int, tf.Tensor] = {}
        for gradient, variable in _pairs(pairs):
            number = self._of.get(id(variable))
            name = getattr(variable, "path", getattr(variable, "name", type(variable).__name__))
            if number is None:
                raise ModelError(
                    "apply_gradients(...): expected zip(gradients, model.trainable_variables), "
                    f"found {name!r}, which is not a variable of the model"
                )
            if number in found:
                raise ModelError(
                    f"apply_gradients(...): variable {name!r} is given twice; add up its gradients"
                )
            found[number] = gradient
        if all(gradient is None for gradient in found.values()):
            raise ModelError(
                "apply_gradients(...): no variable has a gradient; call model and loss within "
                "the tf.GradientTape"
            )
        flat = np.zeros(self._dense.size, np.float32)
        for number, gradient in found.items():
            if gradient is not None:
                self._put(flat, number, gradient)
        return flat

    def _put(self, flat: Float32, number: int, gradient: tf.Tensor) -> None:
        variable, part = self._dense.variables[number], self._dense.parts[number]
        value = np.asarray(tf.convert_to_tensor(gradient))  # of tf.IndexedSlices the sum
        if value.shape != tuple(variable.shape):
            raise ModelError(
                f"apply_gradients(...): variable {variable.path!r} has shape "
                f"{tuple(variable.shape)}, its gradient {value.shape}"
            )
        flat[part] = value.ravel()


class _Unchanged:
    """Finds what a script changes that the job would not see."""

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        constants: Iterable[keras.Variable],
    ) -> None:
        self._model, self._optimizer = model, optimizer
        self._variables = self._ids()
        self._constants = [(v, np.array(v.numpy())) for v in constants]
        self._rate = _fixed_rate(optimizer)
        self._settings = _settings(optimizer)
        self._num_updates = _num_updates(optimizer)

    def _ids(self) -> list[list[int]]:
        model = self._model
        return [[id(v) for v in of] for of in (model.trainable_variables, model.variables)]

    def check(self) -> None:
        """Look whether model and optimizer are as they were when the model was wrapped.

        Raises:
            ModelError: Names the change.
        """
        if self._ids() != self._variables:
            raise ModelError(
                "the model has other variables than at wrap(model, optimizer), or others are "
                "trainable: call the model once before it, and set layer.trainable before it"
            )
        for variable, value in self._constants:
            if not np.array_equal(variable.numpy(), value):
                raise ModelError(
                    f"the script has changed variable {variable.path!r}, whose integers are too "
                    "large for a float32, in which workers pass them on; count from 0 in a "
                    "variable of its own"
                )
        if _fixed_rate(self._optimizer) != self._rate:
            raise ModelError(
                "the script has changed the learning rate of the optimizer, which the other "
                "workers would not know: give the optimizer a schedule of "
                "keras.optimizers.schedules"
            )
        now = _settings(self._optimizer)
        for name in (name for name in now if now[name] != self._settings.get(name)):
            raise ModelError(
                f"the script has changed {name} of the optimizer from {self._settings.get(name)} "
                f"to {now[name]}, which the job does not read again: expected the same through the "
                "whole job"
            )
        if _num_updates(self._optimizer) != self._num_updates:
            raise ModelError(
                "the script has called the optimizer that it gave to wrap(): call "
                "apply_gradients of what wrap() returned"
            )


def _check_model(model: keras.Model) -> None:
    if not model.built or not model.trainable_variables:
        raise ModelError(
            f"wrap(model, optimizer): model {model.name!r} has no variables yet; begin it with "
            "keras.Input, or call it once before wrap()"
        )
    for layer in model._flatten_layers():
        if isinstance(layer, Embedding):
            raise ModelError(
                f"the model has a table, {layer.name!r}, of elasticdl.layers: a script trains by "
                "all-reduce, without tables; use keras.layers.Embedding, or a model file and "
                "--distribution_strategy=ParameterServerStrategy"
            )
        if is_stateful(layer):
            raise ModelError(f"wrap(model, optimizer): {not_stateful(layer)}")


def _check_optimizer(optimizer: keras.optimizers.Optimizer) -> None:
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ModelError(
            "wrap(model, optimizer): expected a keras.optimizers.Optimizer, found "
            f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        )
    if done := _num_updates(optimizer):
        raise ModelError(
            f"wrap(model, optimizer): expected a new optimizer, found one that has made {done} "
            "updates, which the job would not know; --checkpoint_dir_for_init continues from the "
            "checkpoint of a job"
        )


def _num_updates(optimizer: keras.optimizers.Optimizer) -> int:
    return int(optimizer.iterations.numpy())


def _fixed_rate(optimizer: keras.optimizers.Optimizer) -> float | None:
    rate = optimizer._learning_rate
    return float(rate.numpy()) if isinstance(rate, keras.Variable) else None


def _settings(optimizer: keras.optimizers.Optimizer) -> dict[str, object]:
    """Return what an optimizer was made with, but for its learning rate."""
    return {name: v for name, v in optimizer.get_config().items() if name != "learning_rate"}


def _seeds(of_model: Seeds) -> list[keras.Variable]:
    """Return the states of the model's generators, and of Keras' global generator."""
    return [*of_model.variables, global_seed_generator().state]


def _pairs(
    pairs: Iterable[tuple[tf.Tensor, keras.Variable]],
) -> list[tuple[tf.Tensor, keras.Variable]]:
    try:
        return [(gradient, variable) for gradient, variable in pairs]
    except (TypeError, ValueError) as error:
        raise ModelError(
            "apply_gradients(...): expected pairs of gradient and variable, "
            f"zip(gradients, model.trainable_variables), found {type(pairs).__name__}: {error}"
        ) from None


def _number(loss: object) -> float:
    if loss is None:
        raise ModelError(
            "apply_gradients(...): expected loss=, the mean over the minibatch, which the job shows"
        )
    value = np.asarray(loss)
    if value.size != 1 or value.dtype == object:
        raise ModelError(
            "apply_gradients(..., loss=loss): expected one number, the mean over the minibatch, "
            f"found {type(loss).__name__} of shape {value.shape}"
        )
    return float(value.reshape(()))

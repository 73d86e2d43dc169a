"""A user's Keras model, built so that embedding rows are its inputs. See collect-mode.md."""

from __future__ import annotations

import contextlib
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NoReturn, Protocol

import keras
import tensorflow as tf

from elasticdl.backends.base import ConstraintSpec, Float32, Initializer
from elasticdl.errors import ElasticdlError, ModelError
from elasticdl.layers.row_rules import AdmissionSpec, ExpirySpec, KeptStatistics
from elasticdl.layers.row_statistics import RowStatistics
from elasticdl.packages.frameworks.lookup import looking_up
from elasticdl.packages.frameworks.towers import towers_elsewhere
from elasticdl.packages.frameworks.user_code import user_code
from elasticdl.packages.keras.feed.minibatch import KerasMinibatch, describe
from elasticdl.packages.keras.internals import GLOBAL_SEED_GENERATOR, global_state, reset_uids
from elasticdl.packages.keras.layers.constraint import describe_constraint
from elasticdl.packages.keras.layers.embedding import Embedding, StatisticsTable
from elasticdl.packages.keras.layers.initializer import describe_initializer, has_array
from elasticdl.packages.keras.layers.remote import Remote
from elasticdl.packages.keras.layers.table_variable import TableVariable
from elasticdl.packages.keras.model.hooks import check_hooks
from elasticdl.packages.keras.model.old_calls import remedy_of
from elasticdl.packages.keras.model.placement import (
    MovedEmbedding,
    freeze_what_is_not_in,
    given_rows,
    moving_large_embeddings,
)
from elasticdl.packages.keras.model.trial import COUNT_IN_A_LAYER, note
from elasticdl.packages.keras.model.variables import SEED_NAME, ModelVariables, Values
from elasticdl.packages.keras.types import Lookup, Nested


@dataclass(frozen=True, slots=True)
class LayerTable:
    """The table of one embedding layer, ours or a moved one."""

    name: str
    layer: keras.layers.Layer
    initializer: Initializer
    given: Float32 | None = None  # the row of each key below input_dim, if the model file sets it

    kept: KeptStatistics | None = None  # beside its rows

    @property
    def admission(self) -> AdmissionSpec | None:
        """The rule that gives ids a row; None for a moved layer, in which every id gets one."""
        return AdmissionSpec.of(getattr(self.layer, "admission", None), self.kept)

    @property
    def expiry(self) -> ExpirySpec | None:
        """The rule that removes rows; None for a moved layer, which keeps all."""
        return ExpirySpec.of(getattr(self.layer, "expiry", None), self.kept)

    @property
    def statistics(self) -> RowStatistics | None:
        """The statistics that the rows hold, if they hold any."""
        return self.layer.said if isinstance(self.layer, StatisticsTable) else None

    @property
    def keep_names(self) -> bool:
        """Whether the strings of ids are kept; not those of a moved layer."""
        return bool(getattr(self.layer, "keep_names", False))

    @property
    def constraint(self) -> ConstraintSpec | None:
        """The constraint on each row."""
        constraint = self.layer.embeddings_constraint
        if isinstance(self.layer, MovedEmbedding):  # its variable may have been given another
            constraint = self.layer._embeddings.constraint
        found = describe_constraint(constraint, self.name)
        return found and ConstraintSpec(*found)

    @property
    def path(self) -> str:
        """The path that Keras would give the variable."""
        return f"{self.layer.path}/embeddings"

    @property
    def dim(self) -> int:
        """Width of a row."""
        return int(self.layer.output_dim)

    @property
    def input_dim(self) -> int | None:
        """Number of rows, where it is limited."""
        limit = self.layer.input_dim
        return None if limit is None else int(limit)

    @property
    def wire_dtype(self) -> str:
        """The number type of rows on the wire; a Keras layer that was moved does not set it."""
        return str(getattr(self.layer, "wire_dtype", "float32"))


@dataclass(frozen=True, slots=True)
class TowerOutputs:
    """The outputs of a tower that is computed elsewhere; a model looks them up like rows."""

    name: str
    layer: Remote
    input_dim: int | None = None
    statistics: None = None

    @property
    def dim(self) -> int:
        """Width of an output."""
        return self.layer.output_dim


class SeedStates(Protocol):
    """The states of a model's seed generators; `Seeds` on TensorFlow."""

    @property
    def variables(self) -> tuple[keras.Variable, ...]:
        """The states."""
        ...

    def begun(self, seed: tf.Tensor) -> Values:
        """Give each its own seed mixed with the minibatch's."""
        ...

    def of(self, seed: tf.Tensor, variable: keras.Variable) -> tf.Tensor:
        """Do the same for one that is not the model's own."""
        ...


class CallScope(keras.StatelessScope):  # type: ignore[misc]  # keras has no types
    """Notes which variables are assigned; their new values are `get_current_value`.

    Args:
        mapping: Values of variables.
        begun: Gives the state of a seed generator that is not the model's own.
        refused: Names of variables that nobody may read here, by `id`.
    """

    def __init__(
        self,
        mapping: Values,
        begun: Callable[[keras.Variable], tf.Tensor],
        refused: Mapping[int, str],
    ) -> None:
        super().__init__(state_mapping=mapping, collect_losses=True)
        self.assigned: dict[int, keras.Variable] = {}
        self._refused = refused
        self._begun = begun

    def get_current_value(self, variable: keras.Variable) -> tf.Tensor:
        """Return the value of a variable here; None: it has its own."""
        if id(variable) in self._refused:
            raise ModelError(
                f"the model, or the loss, reads {self._refused[id(variable)]}, which never changes "
                "in a worker: the process that applies the updates counts them and has their rate. "
                f"{COUNT_IN_A_LAYER}, and the loss may read it"
            )
        if isinstance(variable, TableVariable):
            return variable.value  # refuses, where Keras would go on with None
        value = super().get_current_value(variable)
        if value is None and variable.name == SEED_NAME:
            return self._begun(variable)
        return value

    def add_update(self, update: tuple[keras.Variable, tf.Tensor]) -> None:
        """Take the new value of a variable."""
        variable, _ = update
        super().add_update(update)
        if variable.name != SEED_NAME:  # each minibatch begins them anew
            self.assigned[id(variable)] = variable

    def take_assigned(self) -> dict[int, keras.Variable]:
        """Return what was assigned since the last call, by `id`."""
        assigned, self.assigned = self.assigned, {}
        return assigned


@dataclass(frozen=True, slots=True)
class Called:
    """The result of a call of the model.

    Attributes:
        losses: Regularization and added losses.
        state: Values of the state variables after the call, one by one.
        assigned: All variables that the call assigned, by their `id`; no seed generators.
        loss: The result of `loss`.
        assigned_by_loss: All variables that `loss` assigned.
    """

    outputs: Nested
    losses: list[tf.Tensor]
    state: list[tf.Tensor]
    assigned: dict[int, keras.Variable]
    loss: tf.Tensor = None
    assigned_by_loss: Mapping[int, keras.Variable] = field(default_factory=dict)


class PlacedModel:
    """The model, its tables, and its variables by how they travel.

    Attributes:
        dense, state, seeds, constants: See `ModelVariables`.
        sample_outputs: The model's outputs for the first minibatch, before any training.
        towers: The towers that are computed elsewhere.
    """

    def __init__(
        self,
        make_model: Callable[[], object],
        sample: KerasMinibatch,
        seed: int,
        threshold_bytes: int,
    ) -> None:
        self._threshold_bytes = threshold_bytes
        self._tracing = threading.RLock()
        self._refused: dict[int, str] = {}
        self._layers: list[keras.layers.Layer] = []
        self._met: list[
            keras.layers.Layer
        ] = []  # in the first call; a layer as often as it was called
        # This sets the seeds of Python, NumPy and TensorFlow. Initializers draw their own seeds
        # from Python's generator, so every worker builds the same initial values.
        keras.utils.set_random_seed(seed % 2**32)
        _forget_global_generator()
        _restart_names()
        with moving_large_embeddings(threshold_bytes), looking_up(self._meet):
            self.model = _make(make_model)
            self._first_call(sample)
        freeze_what_is_not_in(self.model, self._layers)
        self.tables = _with_statistics(tuple(self._describe_tables()))
        self.towers: tuple[TowerOutputs, ...] = ()
        self._table_of = {id(table.layer): k for k, table in enumerate(self.tables)}
        found = ModelVariables.of(self.model)
        self.dense, self.state = found.dense, found.state
        self.seeds: SeedStates = found.seeds
        self.constants = found.constants

    def refuse_reading(self, variables: Mapping[str, keras.Variable]) -> None:
        """Refuse reads by model or loss of variables whose value no worker has.

        Args:
            variables: The variables by the names that the user knows.
        """
        self._refused = {id(variable): name for name, variable in variables.items()}

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs, where the model says them."""
        return tuple(getattr(self.model, "output_names", None) or ())

    def first_lookups(self) -> list[int]:
        """Return the table of each lookup of the call that built the model."""
        return [self.table_of(layer) for layer in self._met]

    @property
    def sources(self) -> tuple[LayerTable | TowerOutputs, ...]:
        """The sources of rows: the tables, then the towers that are elsewhere."""
        return (*self.tables, *self.towers)

    def remotes(self) -> list[Remote]:
        """Return the towers that the model has."""
        return [layer for layer in self.model._flatten_layers() if isinstance(layer, Remote)]

    def place_towers(self) -> None:
        """Have all towers be computed elsewhere from now on."""
        self.towers = tuple(TowerOutputs(layer.name, layer) for layer in self.remotes())
        self._table_of |= {id(s.layer): k for k, s in enumerate(self.sources)}

    def table_of(self, layer: keras.layers.Layer) -> int:
        """Return the number of a layer's table, or of a tower among `sources`.

        Raises:
            ModelError: The layer was not called when the model was built.
        """
        table = self._table_of.get(id(layer))
        if table is None:
            raise ModelError(
                f"Embedding {layer.name!r} is called now but was not when the model was built; "
                "create layers in __init__ and call the same ones in training and inference"
            )
        return table

    def call(
        self,
        lookup: Lookup,
        features: Nested,
        training: bool,
        dense: Values,
        state: Values,
        seed: tf.Tensor,
        loss: Callable[[Nested], tf.Tensor] | None = None,
    ) -> Called:
        """Run the model on tensors in place of its variables, which stay as they are.

        Args:
            lookup: Gives the rows of ids.
            features: The features, as `feed` gives them.
            training: Whether it is trained.
            dense: The values that `Variables.split` gives.
            state: The same.
            seed: The seed of the minibatch.
            loss: Called with the outputs, in sight of the same values; state as the model left it.
        """
        values = dense + state + self.seeds.begun(seed)
        scope = CallScope(values, partial(self.seeds.of, seed), self._refused)
        elsewhere = towers_elsewhere(bool(self.towers))
        with self._tracing, scope, accepting_dicts(), elsewhere:
            with looking_up(lookup):
                outputs = called_as_by_fit(self.model, features, training)
            assigned = scope.take_assigned()
            with looking_up(_not_in_loss):
                value = None if loss is None else loss(outputs)
            with looking_up(lookup):
                losses = list(self.model.losses)
        after = [scope.get_current_value(v) for v in self.state.variables]
        return Called(outputs, losses, after, assigned, value, scope.take_assigned())

    def _meet(self, layer: keras.layers.Layer, ids: tf.Tensor) -> tf.Tensor:
        """Look up zeros, noting the layer: how the model's embedding layers are found."""
        if tf.executing_eagerly():  # Keras traces a subclassed model first, to build its layers
            self._met.append(layer)
        if not any(known is layer for known in self._layers):
            self._layers.append(layer)
        return zero_rows(ids, layer.output_dim)

    def _first_call(self, sample: KerasMinibatch) -> None:
        """Create the variables that exist only after a call, and the layers' first meeting."""
        known = self.model.built  # otherwise what it makes now stays, as Keras makes it then
        trace = note(self.model, None) if known else contextlib.nullcontext()
        with explaining(self.model, sample), accepting_dicts(), trace:
            self.sample_outputs = called_as_by_fit(self.model, sample.features, False)

    def _describe_tables(self) -> Iterator[LayerTable]:
        names: set[str] = set()
        for layer in self._layers:
            if isinstance(layer, Embedding) and layer.has_own_weight:
                raise ModelError(
                    f"Embedding {layer.name!r} was built before the job's model function ran; "
                    "create the model's layers inside that function"
                )
            name = layer.name
            while name in names:  # two submodels may use one name
                name += "_"
            names.add(name)
            initializer, given = layer.embeddings_initializer, given_rows(layer)
            if given is not None and has_array(initializer):
                initializer = "zeros"  # every row is given
            kind, params = describe_initializer(
                keras.initializers.get(initializer), layer.name, layer.output_dim, layer.input_dim
            )
            yield LayerTable(name, layer, Initializer(kind, params), given)


def _with_statistics(tables: tuple[LayerTable, ...]) -> tuple[LayerTable, ...]:
    """Tell each table where the statistics of its ids are."""
    numbers = {id(table.layer): number for number, table in enumerate(tables)}

    def kept_of(layer: keras.layers.Layer) -> KeptStatistics | None:
        of_layer = getattr(layer, "statistics_table", None)
        return of_layer and KeptStatistics(numbers[id(of_layer)], of_layer.said)

    return tuple(replace(table, kept=kept_of(table.layer)) for table in tables)


def called_as_by_fit(model: keras.Model, features: Nested, training: bool) -> Nested:
    """Call a model as Keras' `fit` and `predict` do: with `training` if its call has it alone."""
    return model(features, training=training) if takes_training(model) else model(features)


def takes_training(model: keras.Model) -> bool:
    """Say whether the call of a model, or of a layer, has a parameter `training`."""
    return bool(model._call_has_training_arg)


@contextmanager
def accepting_dicts() -> Iterator[None]:
    """Keep Keras from warning of a dict for a model of one input, which it finds by its name."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"[\s\S]*The structure of `inputs`", UserWarning)
        yield


@contextmanager
def explaining(model: keras.Model, minibatch: KerasMinibatch) -> Iterator[None]:
    """Turn what a model raises on a minibatch into a message that shows both sides."""
    try:
        yield
    except ElasticdlError as error:
        if words := _within_keras(error):
            raise type(error)(words) from error
        raise
    except Exception as error:
        hint = ""
        if minibatch.structure.labels is None and isinstance(minibatch.features, tuple):
            hint = "; in mode prediction feed gives features only, not (features, labels)"
        raise ModelError(
            f"model {model.name!r} cannot be called on what feed gives in mode {minibatch.mode}, "
            f"{describe(minibatch.features)}{hint}: {_message(error)}{remedy_of(error)}"
        ) from error


def _make(make_model: Callable[[], object]) -> keras.Model:
    with user_code("the model function", after=remedy_of):
        model = make_model()
    if not isinstance(model, keras.Model):
        raise ModelError(
            f"the model function must return a keras.Model, found {type(model).__name__}"
        )
    check_hooks(model)
    return model


def _within_keras(error: Exception) -> str:
    """Return the words of an error to which Keras has added the arguments of a call; else ""."""
    # Keras prints the words of the cause in bold, between these two codes.
    found = re.search(
        r"^Exception encountered when calling .*?\x1b\[1m(.*?)\x1b\[0m", str(error), re.S
    )
    return found[1] if found else ""


def _not_in_loss(layer: keras.layers.Layer, ids: tf.Tensor) -> NoReturn:
    raise ModelError(
        f"loss(labels, predictions) calls Embedding {layer.name!r}, whose table is on the ps "
        "replicas: rows are looked up before the step, for the model's call alone; call the layer "
        "in the model and return its rows as an output, or add the term there by self.add_loss(...)"
    )


def _message(error: BaseException) -> str:
    words = re.sub(r"\x1b\[\d*m", "", str(error))  # Keras prints the cause in bold
    return " ".join(words.split())[:1000]


def _forget_global_generator() -> None:
    """Have Keras make a new global generator for draws without a seed, as in a new process."""
    global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, None)


def _restart_names() -> None:
    """Have Keras count layer names from the start, so that every process gives equal ones."""
    reset_uids()


def zero_rows(ids: tf.Tensor, dim: int) -> tf.Tensor:
    """Return zeros in the shape of the rows of `ids`."""
    zeros = tf.zeros(tf.concat([tf.shape(ids), [dim]], 0), tf.float32)
    if ids.shape.rank is not None:
        zeros = tf.ensure_shape(zeros, [*ids.shape, dim])
    return zeros

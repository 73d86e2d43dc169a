"""A user's Keras model, built so that embedding rows are its inputs. See collect-mode.md."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from elasticdl.backends.base import (
    AdmissionSpec,
    ConstraintSpec,
    Float32,
    Initializer,
)
from elasticdl.backends.keras.feed.minibatch import KerasMinibatch, describe
from elasticdl.backends.keras.model.hooks import check_hooks
from elasticdl.backends.keras.model.old_calls import remedy_of
from elasticdl.backends.keras.model.placement import given_rows, moving_large_embeddings
from elasticdl.backends.keras.model.variables import Mapping, ModelVariables
from elasticdl.errors import ElasticdlError, ModelError
from elasticdl.layers.constraint import describe_constraint
from elasticdl.layers.embedding import Embedding
from elasticdl.layers.initializer import describe_initializer, has_array
from elasticdl.layers.life_cycle import Expiry
from elasticdl.layers.lookup import looking_up


@dataclass(frozen=True, slots=True)
class Table:
    """The table of one embedding layer, ours or a moved one."""

    name: str
    layer: Any
    initializer: Initializer
    given: Float32 | None = None  # the row of each key below input_dim, if the model file sets it

    @property
    def admission(self) -> AdmissionSpec | None:
        """Which ids get a row; all of a moved layer's."""
        return AdmissionSpec.of(getattr(self.layer, "admission", None))

    @property
    def expiry(self) -> Expiry | None:
        """Which rows go; none of a moved layer's."""
        expiry: Expiry | None = getattr(self.layer, "expiry", None)
        return expiry

    @property
    def keep_names(self) -> bool:
        """Whether the strings of ids are kept; not those of a moved layer."""
        return bool(getattr(self.layer, "keep_names", False))

    @property
    def constraint(self) -> ConstraintSpec | None:
        """What each row is held to."""
        found = describe_constraint(self.layer.embeddings_constraint, self.name)
        return found and ConstraintSpec(*found)

    @property
    def path(self) -> str:
        """What Keras would call the variable."""
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
        """How rows travel; a Keras layer that was moved says nothing of it."""
        return str(getattr(self.layer, "wire_dtype", "float32"))


class _Noting(keras.StatelessScope):  # type: ignore[misc]  # keras has no types
    """Notes which variables are assigned; their new values are `get_current_value`."""

    def __init__(self, mapping: Mapping) -> None:
        super().__init__(state_mapping=mapping, collect_losses=True)
        self.assigned: dict[int, Any] = {}

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Take the new value of a variable."""
        self.assigned[id(update[0])] = update[0]
        super().add_update(update)


@dataclass(frozen=True, slots=True)
class Called:
    """What a call of the model gave.

    Attributes:
        losses: Regularization and added losses.
        state: Values of the state variables after the call, one by one.
        assigned: All variables that the call assigned, by their `id`.
    """

    outputs: Any
    losses: list[Any]
    state: list[Any]
    assigned: dict[int, Any]


class PlacedModel:
    """The model, its tables, and its variables by how they travel.

    Attributes:
        dense, state, seeds, constants: See `ModelVariables`.
        sample_outputs: What the model gave for the first minibatch, before any training.
    """

    def __init__(
        self,
        make_model: Callable[[], Any],
        sample: KerasMinibatch,
        seed: int,
        threshold_bytes: int,
    ) -> None:
        self._threshold_bytes = threshold_bytes
        self._tracing = threading.RLock()
        self._layers: list[Any] = []
        self._met: list[Any] = []  # in the first call; a layer as often as it was called
        # Of Python, NumPy and TensorFlow: initializers draw their own seeds from the first.
        keras.utils.set_random_seed(seed % 2**32)
        _restart_names()
        with moving_large_embeddings(threshold_bytes), looking_up(self._meet):
            self.model = _make(make_model)
            self._first_call(sample)
        self.tables = tuple(self._describe_tables())
        self._table_of = {id(table.layer): k for k, table in enumerate(self.tables)}
        found = ModelVariables.of(self.model)
        self.dense, self.state = found.dense, found.state
        self.seeds, self.constants = found.seeds, found.constants

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs, where the model says them."""
        return tuple(getattr(self.model, "output_names", None) or ())

    def first_lookups(self) -> list[int]:
        """Return the table of each lookup of the call that built the model."""
        return [self.table_of(layer) for layer in self._met]

    def table_of(self, layer: Any) -> int:
        """Return the number of a layer's table.

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
        lookup: Callable[[Any, Any], Any],
        features: Any,
        training: bool,
        dense: Mapping,
        state: Mapping,
        seed: Any,
    ) -> Called:
        """Run the model on tensors in place of its variables, which stay as they are.

        `dense` and `state` are what `Variables.split` gives.
        """
        scope = _Noting(dense + state + self.seeds.begun(seed))
        with self._tracing, looking_up(lookup), scope, accepting_dicts():
            outputs = self.model(features, training=training)
            losses = list(self.model.losses)
        after = [scope.get_current_value(v) for v in self.state.variables]
        return Called(outputs, losses, after, scope.assigned)

    def _meet(self, layer: Any, ids: Any) -> Any:
        """Look up zeros, noting the layer: how the model's embedding layers are found."""
        if tf.executing_eagerly():  # Keras traces a subclassed model first, to build its layers
            self._met.append(layer)
        if not any(known is layer for known in self._layers):
            self._layers.append(layer)
        return zero_rows(ids, layer.output_dim)

    def _first_call(self, sample: KerasMinibatch) -> None:
        """Create the variables that exist only after a call, and the layers' first meeting."""
        with explaining(self.model, sample), accepting_dicts():
            self.sample_outputs = self.model(sample.features, training=False)

    def _describe_tables(self) -> Iterator[Table]:
        names: set[str] = set()
        for layer in self._layers:
            if isinstance(layer, Embedding) and layer.variables:
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
            yield Table(name, layer, Initializer(kind, params), given)


@contextmanager
def accepting_dicts() -> Iterator[None]:
    """Keep Keras from warning of a dict for a model of one input, which it finds by its name."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"[\s\S]*The structure of `inputs`", UserWarning)
        yield


@contextmanager
def explaining(model: Any, minibatch: KerasMinibatch) -> Iterator[None]:
    """Turn what a model raises on a minibatch into a message that shows both sides."""
    try:
        yield
    except ElasticdlError:
        raise
    except Exception as error:
        hint = ""
        if minibatch.structure.labels is None and isinstance(minibatch.features, tuple):
            hint = "; in mode prediction feed gives features only, not (features, labels)"
        raise ModelError(
            f"model {model.name!r} cannot be called on what feed gives in mode {minibatch.mode}, "
            f"{describe(minibatch.features)}{hint}: {_message(error)}{remedy_of(error)}"
        ) from error


def _make(make_model: Callable[[], Any]) -> Any:
    try:
        model = make_model()
    except ElasticdlError:
        raise
    except Exception as error:
        raise ModelError(
            f"the model function raised {type(error).__name__}: {_message(error)}{remedy_of(error)}"
        ) from error
    if not isinstance(model, keras.Model):
        raise ModelError(
            f"the model function must return a keras.Model, found {type(model).__name__}"
        )
    check_hooks(model)
    return model


def _message(error: BaseException) -> str:
    return " ".join(str(error).split())[:1000]


def _restart_names() -> None:
    """Have Keras count layer names from the start, so that every process gives equal ones."""
    from keras.src.utils.naming import reset_uids

    reset_uids()


def zero_rows(ids: Any, dim: int) -> Any:
    """Return zeros in the shape of the rows of `ids`."""
    zeros = tf.zeros(tf.concat([tf.shape(ids), [dim]], 0), tf.float32)
    if ids.shape.rank is not None:
        zeros = tf.ensure_shape(zeros, [*ids.shape, dim])
    return zeros

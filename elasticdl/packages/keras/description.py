"""The description of a Keras model: how it is updated, and what the holders of its rows know."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import keras

from elasticdl.backends.base import (
    ClipSpec,
    ModelDescription,
    OptimizerSpec,
    TableDescription,
    VariableDescription,
)
from elasticdl.errors import ModelError
from elasticdl.layers.row_rules import KeptStatistics
from elasticdl.model_spec import ModelSpec
from elasticdl.packages.frameworks.job_callbacks import JobCallbacks
from elasticdl.packages.frameworks.model_notes import of_endless, of_frozen, of_moved
from elasticdl.packages.frameworks.python_state import shown
from elasticdl.packages.frameworks.user_code import user_code
from elasticdl.packages.keras.callbacks import is_scheduled, job_callbacks, learning_rate_of
from elasticdl.packages.keras.group_ftrl import is_table
from elasticdl.packages.keras.model.placed import LayerTable, PlacedModel, takes_training
from elasticdl.packages.keras.model.placement import MovedEmbedding
from elasticdl.packages.keras.model.scaling import LossScale, loss_scale_of
from elasticdl.packages.keras.model.state import VariableRules
from elasticdl.packages.keras.model.trial import is_of_a_library
from elasticdl.packages.keras.optimizer import (
    describe_clip,
    describe_optimizer,
    describe_updates,
    has_schedule,
    make_optimizer,
    rule_of_table,
    what_updates_change,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Updates:
    """The updates of a model: the user's optimizer, if there is one, and what the store is told.

    Attributes:
        rule: The rule of all that has no rule of its own; "sgd" where nothing is trained.
        dense: The dense variables, each with what an update does to it.
        rate: The learning rate by model version.
        has_schedule: The rate follows the version, and callbacks cannot set it.
        scale: The scale of the loss, for a model that computes in float16.
        callbacks: The callbacks that the job calls.
    """

    optimizer: keras.optimizers.Optimizer
    rule: OptimizerSpec
    clip: ClipSpec | None
    dense: Sequence[VariableDescription]
    rate: Callable[[int], float]
    has_schedule: bool
    scale: LossScale | None
    callbacks: JobCallbacks | None

    def check_rate(self) -> None:
        """Compute the first rate of a schedule: one that cannot be computed fails now.

        Raises:
            ModelError: It is of the user, and raises when it is traced, as in `fit`.
        """
        if has_schedule(self.optimizer):
            name = type(self.optimizer._learning_rate).__name__
            with user_code(f"the schedule {name}", " of a tensor", _as_tensors):
                self.rate(0)


def _as_tensors(_error: Exception) -> str:
    return "; the step is a tensor: write keras.ops.where(step < 100, 0.1, 0.01) instead of if"


def read_updates(
    spec: ModelSpec, placed: PlacedModel, metrics: Mapping[str, str | None] | None
) -> Updates:
    """Take from the user's optimizer and callbacks what a step and the job need of them.

    A model file without `optimizer` trains nothing; the description of its model says "sgd".

    Args:
        spec: The functions of the model file.
        placed: The model.
        metrics: Whether more or less is better, by metric; see `Metrics.watched`.
    """
    dense = placed.dense.describe()
    if spec.optimizer is None:
        return Updates(None, OptimizerSpec("sgd"), None, dense, lambda _: 0.0, False, None, None)
    optimizer = make_optimizer(spec.optimizer)
    optimizer, scale = loss_scale_of(optimizer, placed.model)
    placed.refuse_reading(what_updates_change(optimizer, spec.callbacks is not None))
    variables = placed.dense.variables
    return Updates(
        optimizer,
        rule=describe_optimizer(optimizer, variables),
        clip=describe_clip(optimizer),
        dense=describe_updates(optimizer, variables, dense),
        rate=learning_rate_of(optimizer, spec.callbacks, spec.tell),
        has_schedule=is_scheduled(optimizer, spec.callbacks),
        scale=scale,
        callbacks=job_callbacks(spec.callbacks, optimizer, metrics),
    )


# These layers do something else in training than in inference; see `tell_without_training`.
_RESTING = (
    keras.layers.BatchNormalization,
    keras.layers.Dropout,
    keras.layers.GaussianDropout,
    keras.layers.GaussianNoise,
    keras.layers.AlphaDropout,
)


@dataclass(frozen=True, slots=True)
class Untrained:
    """The numbers of the dense variables and of the tables that no gradient reaches."""

    dense: frozenset[int] = frozenset()
    tables: frozenset[int] = frozenset()


def describe(
    placed: PlacedModel, updates: Updates, rules: VariableRules, untrained: Untrained, seed: int
) -> ModelDescription:
    """Describe a model.

    Args:
        placed: The model.
        updates: Its updates.
        rules: The rule by which training changes each state variable.
        untrained: The variables that no gradient reaches.
        seed: The seed of new rows.
    """
    state = zip(placed.state.describe(), rules.momenta, rules.are_assigned, strict=True)
    return ModelDescription(
        tables=tuple(
            _describe_table(k, table, updates, trainable=k not in untrained.tables)
            for k, table in enumerate(placed.tables)
        ),
        dense=tuple(
            replace(variable, trainable=k not in untrained.dense)
            for k, variable in enumerate(updates.dense)
        ),
        state=tuple(
            replace(variable, momentum=momentum, trainable=moves)
            for variable, momentum, moves in state
        ),
        optimizer=updates.rule,
        seed=seed,
        clip=updates.clip,
    )


def _describe_table(
    number: int, table: LayerTable, updates: Updates, trainable: bool
) -> TableDescription:
    if table.statistics is not None:
        kept = KeptStatistics(number, table.statistics)
        return TableDescription.of_statistics(table.name, kept, table.layer.expiry_of_rows)
    return TableDescription(
        table.name,
        table.dim,
        table.initializer,
        rule_of_table(updates.optimizer, updates.rule, table.path),
        table.input_dim,
        table.wire_dtype,
        table.admission,
        table.expiry,
        table.keep_names,
        table.constraint,
        trainable=trainable,
        given_rows=table.given is not None,
    )


def notes_of(placed: PlacedModel, updates: Updates, description: ModelDescription) -> Iterator[str]:
    """Yield what the job says of a model before it trains."""
    moved = [t for t in placed.tables if isinstance(t.layer, MovedEmbedding)]
    names = [t.name for t in moved if t.layer.trainable]
    yield from of_moved(names, updates.rule, type(updates.optimizer).__name__)
    tables = description.tables
    if not any([*(v.trainable for v in description.dense), *(t.trainable for t in tables)]):
        yield "the model has no variable that is trained, so training changes none"
    yield from _of_groups(placed, updates.rule)
    yield from _of_doubles(placed)
    yield from of_frozen(description.tables)
    yield from of_endless(description.state, placed.state.values())


def _of_groups(placed: PlacedModel, rule: OptimizerSpec) -> Iterator[str]:
    """Say which tables of Keras have no groups, as they are no tables of the job."""
    names = [v.path for v in placed.dense.variables if is_table(v)]
    if names and rule.kind == "group_ftrl" and rule.params["l21"]:
        yield (
            f"GroupFtrl updates {', '.join(names)} as Ftrl does: it stays in the model, where rows "
            "are no groups. --embedding_threshold_bytes=0, or elasticdl.layers.Embedding, makes it "
            "a table"
        )


def _of_doubles(placed: PlacedModel) -> Iterator[str]:
    """Say which variables lose digits between two steps."""
    variables = (*placed.dense.variables, *placed.state.variables)
    names = [v.path for v in variables if v.dtype == "float64"]
    if names:
        yield (
            f"{shown(names)}: variables of float64 are kept and updated in float32; a step computes"
            " in float64"
        )


def tell_untrained(placed: PlacedModel, untrained: Untrained) -> None:
    """Say what is never updated, since the loss does not depend on it.

    Raises:
        ModelError: No variable of the model has a gradient.
    """
    dense, tables = untrained.dense, untrained.tables
    names = [v.path for k, v in enumerate(placed.dense.variables) if k in dense]
    names += [t.name for k, t in enumerate(placed.tables) if k in tables and t.layer.trainable]
    if not names:
        return
    if len(dense) + len(tables) == len(placed.dense.variables) + len(placed.tables):
        raise ModelError(
            "loss(labels, predictions) has no gradient for any variable of the model; does it, "
            "or the model, use argmax, a comparison, a cast to integers or stop_gradient?"
        )
    log.warning("the loss does not depend on %s: never updated", ", ".join(names))


def tell_without_training(model: keras.Model) -> None:
    """Say what rests in training because the model's call has no parameter `training`."""
    resting = [
        layer.name
        for layer in model._flatten_layers(include_self=False)
        if takes_training(layer) and (isinstance(layer, _RESTING) or not is_of_a_library(layer))
    ]
    if resting and not takes_training(model):
        log.warning(
            "call() of model %r has no parameter training, so Keras, and this job, call its layers "
            "as in inference: %s. Write call(self, inputs, training=None)",
            model.name,
            ", ".join(resting[:3]),
        )

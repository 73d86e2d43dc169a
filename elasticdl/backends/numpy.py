"""Models given as functions on NumPy arrays: no framework, up in a third of a second."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl._core import keys_of_strings
from elasticdl.backends.average import Average, EvaluationLoss, mean
from elasticdl.backends.base import (
    CallbackNeeds,
    Float32,
    Initializer,
    Int64,
    Lookup,
    Minibatch,
    ModelDescription,
    OptimizerSpec,
    Predictions,
    StepResult,
    TableDescription,
    TableSource,
    VariableDescription,
)
from elasticdl.backends.call_order import swapped, takes_predictions_first
from elasticdl.backends.exported import may_be_loaded
from elasticdl.data.base import Metadata, Records, columns_there_are
from elasticdl.errors import DataError, ModelError, place_of
from elasticdl.job import MetricStates, Mode
from elasticdl.layers.life_cycle import Admission, Expiry, admission_of, expiry_of
from elasticdl.layers.row_rules import AdmissionSpec, ExpirySpec, KeptStatistics
from elasticdl.layers.row_statistics import (
    SHOW,
    RowStatistics,
    statistics_of,
    table_name,
    value_of,
)
from elasticdl.model_spec import ModelSpec, is_batched
from elasticdl.optimizers.update_rule import UpdateRule

Dense = Mapping[str, Float32]
_NO_SAMPLE = Minibatch(None, None, 0)
_Pick = Callable[[Int64], Any]
"""Gives `feed` the records of some places."""
_Gradients = tuple[float, Sequence[Float32], Dense] | tuple[float, Sequence[Float32], Dense, Dense]


@dataclass(frozen=True, slots=True)
class ArrayTable:
    """An embedding table of an `ArrayModel`.

    Attributes:
        keep_names: If the ids are strings, keep these beside the rows, for the export.
        statistics: Keep statistics of the ids too. The first axis of the ids is the record then. If
            `as_features` is set, `predict` and `gradients` get rows whose last floats are the
            statistics. The gradients of these floats are ignored.
    """

    name: str
    dim: int
    initializer: Initializer = field(
        default_factory=lambda: Initializer("uniform", {"low": -0.05, "high": 0.05})
    )
    wire_dtype: str = "float32"  # or "float16", "bfloat16"
    admission: Admission | None = None
    expiry: Expiry | None = None
    keep_names: bool = False
    statistics: RowStatistics | None = None

    def describe(self, optimizer: OptimizerSpec, kept: KeptStatistics | None) -> TableDescription:
        """Return what the store is told."""
        return TableDescription(
            self.name,
            self.dim,
            self.initializer,
            optimizer,
            wire_dtype=self.wire_dtype,
            admission=AdmissionSpec.of(admission_of(self.admission, f"table {self.name!r}"), kept),
            expiry=ExpirySpec.of(expiry_of(self.expiry, f"table {self.name!r}"), kept),
            keep_names=self.keep_names,
        )


@dataclass(frozen=True, slots=True)
class ArrayOptimizer:
    """The result of an array model's `optimizer()`: the store's optimizer and its rate."""

    learning_rate: float
    kind: str = "sgd"
    params: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ArrayModel:
    """The result of the model function of a model file without a framework.

    Attributes:
        ids: A function of the features. It returns the ids of each table, in order, in any shape.
            Ids are numbers or strings; `keys_of_strings` turns strings into numbers.
        predict: A function of (dense by name, rows for each table, features). It returns the
            predictions.
        gradients: A function of (dense by name, rows, features, labels). It returns the mean loss,
            the gradient of the rows given for each table, and the gradient of dense by name. For a
            model with state it also returns the change of each state variable.
        dense: The initial values by name.
        state: The initial values of variables without an optimizer: each step's change is added.
    """

    tables: Sequence[ArrayTable]
    ids: Callable[[Any], Sequence[NDArray[Any]]]
    predict: Callable[[Dense, Sequence[Float32], Any], Any]
    gradients: Callable[[Dense, Sequence[Float32], Any, Any], _Gradients]
    dense: Dense = field(default_factory=dict)
    state: Dense = field(default_factory=dict)


class NumpyTrainer:
    """Runs an `ArrayModel`. `feed(records, mode, metadata)` gets a list of records.

    It returns (features, labels), or features alone in prediction, of one minibatch: an array, or
    a dict of arrays, whose first axis is the record.
    """

    ids_need_parameters = False
    callbacks: CallbackNeeds | None = None
    has_schedule = False

    def __init__(self, spec: ModelSpec, model: ArrayModel, metadata: Metadata, seed: int) -> None:
        self._spec = spec
        self._model = model
        self._metadata = metadata
        self._seed = seed
        if spec.callbacks is not None:
            raise ModelError(
                "callbacks() belongs to models in Keras or PyTorch; an array model has none: leave "
                "it out"
            )
        self._kept = _kept_statistics(model)
        self._rule, self._learning_rate = self._make_optimizer()
        if spec.weighted_metrics_fn is not None:
            raise ModelError(
                "weighted_metrics_fn: an array model has no sample weights; put them beside the "
                "labels, in a dict, and weigh in eval_metrics_fn"
            )
        found = spec.eval_metrics_fn() if spec.eval_metrics_fn else {}
        self._metrics = {
            name: swapped(metric)
            if takes_predictions_first(metric, f"metric {name}", spec.tell)
            else metric
            for name, metric in found.items()
        }
        self._averages: dict[str, Average] = {}
        self._evaluation_loss = EvaluationLoss()
        self._sample: Minibatch | None = None

    def _make_optimizer(self) -> tuple[OptimizerSpec, float]:
        if self._spec.optimizer is None:
            return OptimizerSpec("sgd"), 0.0
        match self._spec.optimizer():
            case ArrayOptimizer(rate, kind, params):
                return OptimizerSpec(kind, dict(params)), rate
            case UpdateRule() as own:
                return OptimizerSpec("own", program=own.program), own.learning_rate
            case other:
                raise ModelError(
                    "optimizer() of an array model: expected an ArrayOptimizer or an UpdateRule, "
                    f"found {type(other).__name__}"
                )

    def minibatches(
        self, records: Iterator[Records], mode: Mode, minibatch_size: int, seed: int
    ) -> Iterator[Minibatch]:
        """Feed the records of one task; in training in an order that is drawn from the seed."""
        chunks = [chunk for chunk in records if len(chunk)]
        if not chunks:
            return
        pick = picker(chunks, is_batched(self._spec.feed))
        all_numbers = np.concatenate([chunk.numbers for chunk in chunks])
        order = np.arange(len(all_numbers))
        if self._metadata.shuffles(mode):
            np.random.default_rng(seed).shuffle(order)
        for start in range(0, len(order), minibatch_size):
            chosen = order[start : start + minibatch_size]
            yield self._feed(pick, chosen, mode, all_numbers[chosen])

    def _feed(self, pick: _Pick, chosen: Int64, mode: Mode, numbers: Int64) -> Minibatch:
        try:
            fed = self._spec.feed(pick(chosen), mode, self._metadata.of(mode))
        except Exception as error:
            # The minibatch is fed record by record, to name the one that is wrong.
            number, error = self._culprit(pick, chosen, mode, numbers, error)
            raise DataError(
                f"feed() failed on record {number}: {type(error).__name__}: {error}"
                f"{columns_there_are(error, self._metadata.of(mode).column_dtypes)} "
                f"({place_of(error)})",
                number,
            ) from error
        if mode is Mode.PREDICTION:
            features, labels = fed if isinstance(fed, tuple) else (fed, None)
        elif isinstance(fed, tuple) and len(fed) == 2:
            features, labels = fed
        else:
            raise ModelError(
                f"feed() in mode {mode}: expected (features, labels), found {_describe(fed)}; an "
                "array model takes sample weights with its labels, in a dict"
            )
        arrays = features.values() if isinstance(features, Mapping) else [features]
        for array in arrays:
            if len(array) != len(numbers):
                raise ModelError(
                    f"feed() was given {len(numbers)} records and gave features of shape "
                    f"{np.shape(array)}; expected {len(numbers)} as the first axis"
                )
        return Minibatch(features, labels, len(numbers), record_numbers=numbers)

    def _culprit(
        self, pick: _Pick, chosen: Int64, mode: Mode, numbers: Int64, error: Exception
    ) -> tuple[int, Exception]:
        """Find the record of a minibatch with which `feed` fails on its own."""
        for place, number in enumerate(numbers.tolist()):
            try:
                self._spec.feed(pick(chosen[place : place + 1]), mode, self._metadata.of(mode))
            except Exception as own:
                return number, own
        return int(numbers[0]), error

    def build(self, sample: Minibatch) -> ModelDescription:
        """Describe the model; the sample is kept for the export."""
        if sample.num_records:
            self._sample = sample
        of_statistics = [
            TableDescription.of_statistics(table_name(table.name), kept, table.expiry)
            for table, kept in ((self._model.tables[k], kept) for k, kept in self._kept.items())
        ]
        tables = enumerate(self._model.tables)
        rows = [table.describe(self._rule, self._kept.get(site)) for site, table in tables]
        return ModelDescription(
            tables=(*rows, *of_statistics),
            dense=_variables(self._model.dense),
            state=_variables(self._model.state),
            optimizer=self._rule,
            seed=self._seed,
        )

    def initial_values(self) -> tuple[Float32, Float32]:
        """Return the values as the model file gives them."""
        dense, state = self._model.dense, self._model.state
        return _flat(dense, dense, "dense values"), _flat(state, state, "state")

    def given_rows(self) -> Sequence[tuple[int, Float32]]:
        """Return nothing: an array model sets no rows."""
        return ()

    def set_lookup(self, pull: Lookup) -> None:
        """Ids of an array model depend on features alone."""

    def id_sites(self) -> Sequence[int]:
        """One site for each table, then one for each that has statistics of another."""
        return range(len(self._model.tables) + len(self._kept))

    def ids(self, minibatch: Minibatch) -> Sequence[Int64]:
        """Ask the model."""
        ids = [_numbers(ids) for ids in self._model.ids(minibatch.features)]
        return ids + [ids[site] for site in self._kept]

    def _given(self, rows: Sequence[Float32]) -> list[Float32]:
        """Return the rows as the model's functions take them: features behind them."""
        given = list(rows[: len(self._model.tables)])
        for site, kept in self._kept.items():
            if count := kept.said.num_features:
                # Statistics lie in a table of their own, whose rows come with the lookup.
                given[site] = np.concatenate([given[site], rows[kept.table][..., :count]], -1)
        return given

    def _amounts(
        self, minibatch: Minibatch, said: RowStatistics, shape: tuple[int, ...]
    ) -> Float32:
        """Return what each of the ids of a minibatch adds to its statistics."""
        amounts = np.ones((*shape, len(said.names)), np.float32)
        for column, name in enumerate(said.names):
            if name != SHOW:
                values = value_of(name, minibatch.labels, minibatch.features, np.ndarray)
                if values.size != shape[0]:
                    raise ModelError(
                        f"statistic {name!r} is counted by record: expected {shape[0]} values of "
                        f"feed for the ids of so many records, found shape {values.shape}"
                    )
                amounts[..., column] = values.reshape(-1, *[1] * (len(shape) - 1))
        return amounts

    def names(self, minibatch: Minibatch, sites: Sequence[int]) -> Sequence[Sequence[str]]:
        """Ask the model again, whose strings they are."""
        found = self._model.ids(minibatch.features)
        return [self._strings(site, np.asarray(found[site])) for site in sites]

    def _strings(self, site: int, ids: NDArray[Any]) -> Sequence[str]:
        if not _are_strings(ids):
            raise ModelError(
                f"table {self._model.tables[site].name!r} has keep_names, so its ids must be "
                f"strings; found an array of {ids.dtype}"
            )
        strings: list[str | bytes] = ids.ravel().tolist()
        return [s if isinstance(s, str) else s.decode(errors="replace") for s in strings]

    def learning_rate(self, version: int) -> float:
        """Return the constant rate of the optimizer."""
        return self._learning_rate

    def train_step(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> StepResult:
        """Ask the model for loss and gradients."""
        loss, row_grads, dense_grads, *changes = self._asked(minibatch, rows, dense)
        pairs = zip(row_grads, self._model.tables, strict=True)
        # The gradients of features behind a row are cut off: these are not trained.
        gradients = [np.ascontiguousarray(g[..., : t.dim], np.float32) for g, t in pairs]
        amounts = [
            self._amounts(minibatch, kept.said, rows[site].shape[:-1])
            for site, kept in self._kept.items()
        ]
        return StepResult(
            loss=float(loss),
            row_grads=gradients + amounts,
            dense_grad=_flat(self._model.dense, dense_grads, "dense gradients"),
            state_delta=_flat(self._model.state, changes[0] if changes else {}, "changes of state"),
        )

    def _asked(self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32) -> _Gradients:
        return self._model.gradients(
            _named(self._model.dense, dense),
            self._given(rows),
            minibatch.features,
            minibatch.labels,
        )

    def measure(self, minibatches: Sequence[Minibatch], predictions: Sequence[Predictions]) -> None:
        """Add nothing: the gradients of an array model come without predictions."""

    def new_metrics(self) -> None:
        """Forget the sums of the metrics. Training adds nothing to them."""
        self._averages = {}
        self._evaluation_loss.reset()

    def evaluate_step(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> None:
        """Add the loss, and each metric's sum and count: of its elements, or of records."""
        outputs = self.predict_step(minibatch, rows, dense, state)
        for name, metric in self._metrics.items():
            values = np.asarray(metric(minibatch.labels, outputs))
            self._averages.setdefault(name, Average(name)).add(values, minibatch.num_records)
        self._evaluation_loss.add(
            lambda: self._asked(minibatch, rows, dense)[0], minibatch.num_records
        )

    def metric_states(self) -> MetricStates:
        """Return the sums of each metric."""
        states = {name: average.state() for name, average in self._averages.items()}
        return {**states, **self._evaluation_loss.states()}

    def metric_results(self, states: MetricStates) -> dict[str, float]:
        """Return the mean of each metric."""
        found = {name: mean(state) for name, state in states.items() if name in self._metrics}
        return EvaluationLoss.beside(found, states)

    def predict_step(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> Predictions:
        """Ask the model."""
        given = self._given(rows)
        return self._model.predict(_named(self._model.dense, dense), given, minibatch.features)

    def export(
        self, directory: Path, dense: Float32, state: Float32, tables: TableSource | None
    ) -> None:
        """Write `model.npz`: `dense/NAME`, `state/NAME`, `table/NAME/keys` (sorted), `.../rows`."""
        arrays: dict[str, Any] = {
            f"dense/{name}": value for name, value in _named(self._model.dense, dense).items()
        }
        for name, value in _named(self._model.state, state).items():
            arrays[f"state/{name}"] = value
        described = self.build(_NO_SAMPLE).tables
        for number, table in enumerate(described if tables is not None else ()):
            assert tables is not None
            chunks = list(tables.scan(number))
            keys = np.concatenate([c[0] for c in chunks] or [np.zeros(0, np.int64)])
            rows = np.concatenate([c[1] for c in chunks] or [np.zeros((0, table.dim), np.float32)])
            # Sorted keys are found by bisection.
            order = np.argsort(keys)
            arrays[f"table/{table.name}/keys"] = keys[order]
            arrays[f"table/{table.name}/rows"] = rows[order]
        np.savez(directory / "model.npz", **arrays)
        if tables is not None and self._sample is not None and may_be_loaded(directory):
            from elasticdl.backends.numpy_predictor import SavedArraysPredictor  # it imports this

            saved = SavedArraysPredictor(self._spec, self._model, self._metadata, directory)
            saved.check(self._sample)


def _kept_statistics(model: ArrayModel) -> dict[int, KeptStatistics]:
    """Return the statistics of each table that has some; their tables follow the model's."""
    said = [statistics_of(t.statistics, f"table {t.name!r}") for t in model.tables]
    have = [(site, each) for site, each in enumerate(said) if each is not None]
    numbers = itertools.count(len(said))
    return {site: KeptStatistics(next(numbers), each) for site, each in have}


def _variables(values: Dense) -> tuple[VariableDescription, ...]:
    offsets = np.cumsum([0, *(np.size(value) for value in values.values())]).tolist()
    return tuple(
        VariableDescription(name, np.shape(value), offset)
        for (name, value), offset in zip(values.items(), offsets, strict=False)
    )


def _named(like: Dense, flat: Float32) -> dict[str, Float32]:
    """Return the parts of a flat vector under the names, and in the shapes, of others."""
    named, offset = {}, 0
    for name, value in like.items():
        size = int(np.size(value))
        named[name] = flat[offset : offset + size].reshape(np.shape(value))
        offset += size
    return named


def _flat(like: Dense, named: Dense, what: str) -> Float32:
    if set(named) != set(like):
        raise ModelError(f"gradients(): expected {what} of {sorted(like)}, found {sorted(named)}")
    parts = [np.ravel(named[name]) for name in like]
    return np.concatenate([np.zeros(0, np.float32), *parts]).astype(np.float32)


def _are_strings(ids: NDArray[Any]) -> bool:
    return ids.dtype.kind in "USTO"


def _numbers(ids: Any) -> Int64:
    ids = np.asarray(ids)
    if _are_strings(ids):
        return keys_of_strings(ids.ravel().tolist()).reshape(ids.shape)
    return np.ascontiguousarray(ids, np.int64)


def picker(chunks: list[Records], as_columns: bool) -> _Pick:
    """Return what gives `feed` the records of some places: a list, or the columns they have."""
    if as_columns and chunks[0].columns:
        columns = {
            name: np.concatenate([np.asarray(chunk.columns[name]) for chunk in chunks])
            for name in chunks[0].columns
        }
        return lambda chosen: {name: column[chosen] for name, column in columns.items()}
    values = [value for chunk in chunks for value in chunk.values or _rows(chunk)]
    return lambda chosen: [values[i] for i in chosen.tolist()]


def _rows(chunk: Records) -> list[dict[str, Any]]:
    names = list(chunk.columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*chunk.columns.values(), strict=True)]


def _describe(fed: Any) -> str:
    if isinstance(fed, tuple):
        return f"a tuple of {len(fed)}"
    return type(fed).__name__

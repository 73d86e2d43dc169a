"""An exported array model: it is evaluated, or predicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from elasticdl.backends.base import Float32, Int64, Minibatch, Predictions, TableDescription
from elasticdl.backends.numpy import ArrayModel, NumpyTrainer
from elasticdl.data.base import Metadata, Records
from elasticdl.data.strings import Array
from elasticdl.errors import ModelError
from elasticdl.job import MetricStates, Mode
from elasticdl.model_spec import ModelSpec

FILE = "model.npz"


class SavedArraysPredictor:
    """A `Predictor` that brings its own parameters: rows, dense and state vectors are empty.

    Args:
        spec: The model file's functions; of these `feed` and `eval_metrics_fn` are used.
        model: The result of the model function.
        metadata: The description of the data, for `feed`.
        directory: What `NumpyTrainer.export` wrote.

    Raises:
        ModelError: The export cannot be read, or is of another model.
    """

    ids_need_parameters = False

    def __init__(
        self, spec: ModelSpec, model: ArrayModel, metadata: Metadata, directory: Path
    ) -> None:
        self._computing = NumpyTrainer(spec, model, metadata, seed=0)
        self._where = f"--saved_model={directory}"
        arrays = _read(directory / FILE, self._where)
        self._described = self._computing.build(Minibatch(None, None, 0)).tables
        self._check_names(arrays, model)
        self._dense = self._vector(arrays, "dense", model.dense)
        self._state = self._vector(arrays, "state", model.state)
        self._tables = [self._table(arrays, table) for table in self._described]

    def check(self, sample: Minibatch) -> None:
        """Call the model once."""
        self.predict_step(sample, (), *_NOTHING)

    def minibatches(
        self, records: Iterator[Records], mode: Mode, minibatch_size: int, seed: int
    ) -> Iterator[Minibatch]:
        """Run the user's `feed`; see `Predictor.minibatches`."""
        return self._computing.minibatches(records, mode, minibatch_size, seed)

    def ids(self, minibatch: Minibatch) -> Sequence[Int64]:
        """Return no ids: the tables are part of the export."""
        return ()

    def new_metrics(self) -> None:
        """Start an evaluation with empty metrics."""
        self._computing.new_metrics()

    def evaluate_step(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> None:
        """Add a minibatch to the metrics."""
        found = self._rows(minibatch)
        self._computing.evaluate_step(minibatch, found, self._dense, self._state)

    def metric_states(self) -> MetricStates:
        """Return the sums since `new_metrics`."""
        return self._computing.metric_states()

    def metric_results(self, states: MetricStates) -> dict[str, float]:
        """Compute the metrics from merged states."""
        return self._computing.metric_results(states)

    def predict_step(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> Predictions:
        """Return what the model predicts."""
        found = self._rows(minibatch)
        return self._computing.predict_step(minibatch, found, self._dense, self._state)

    def _rows(self, minibatch: Minibatch) -> list[Float32]:
        asked = self._computing.ids(minibatch)
        return [table.rows_of(ids) for table, ids in zip(self._tables, asked, strict=True)]

    def _check_names(self, arrays: Mapping[str, Array], model: ArrayModel) -> None:
        expected = {f"dense/{name}" for name in model.dense}
        expected |= {f"state/{name}" for name in model.state}
        for table in self._described:
            expected |= {f"table/{table.name}/keys", f"table/{table.name}/rows"}
        if expected != set(arrays):
            raise ModelError(
                f"{self._where} and the model of the model file differ: "
                f"{', '.join(sorted(expected ^ set(arrays))[:10])} in one of them alone; is it the "
                "file that the export was trained with?"
            )

    def _vector(
        self, arrays: Mapping[str, Array], group: str, like: Mapping[str, Float32]
    ) -> Float32:
        parts = [np.zeros(0, np.float32)]
        for name, value in like.items():
            found = arrays[f"{group}/{name}"]
            self._check_shape(f"{group}/{name}", found.shape, np.shape(value))
            parts.append(np.ravel(found))
        return np.concatenate(parts).astype(np.float32)

    def _table(self, arrays: Mapping[str, Array], table: TableDescription) -> _Table:
        keys, rows = (arrays[f"table/{table.name}/{part}"] for part in ("keys", "rows"))
        self._check_shape(f"table/{table.name}/rows", rows.shape, (len(keys), table.dim))
        if table.statistics is not None and len(keys):
            age = rows[:, -1].max() - rows[:, -1]  # the store gives sums of the newest period
            rows = rows * np.float32(table.statistics.decay) ** age[:, None]
        return _Table(keys, rows, np.float32(table.initializer.centre))

    def _check_shape(self, name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
        if found != expected:
            raise ModelError(
                f"{self._where}: {name} has the shape {found}, expected {expected} as the model of "
                "the model file has it"
            )


@dataclass(frozen=True, slots=True)
class _Table:
    """Keys, ascending, and their rows; of other keys each element reads as `unseen`."""

    keys: Int64
    rows: Float32
    unseen: np.float32

    def rows_of(self, ids: Int64) -> Float32:
        """Return rows for ids of any shape."""
        if not len(self.keys):
            return np.full((*ids.shape, self.rows.shape[1]), self.unseen)
        # A key above all others has its place behind the last one.
        places = np.minimum(np.searchsorted(self.keys, ids), len(self.keys) - 1)
        known = self.keys[places] == ids
        return np.where(known[..., None], self.rows[places], self.unseen)


_NOTHING = (np.zeros(0, np.float32), np.zeros(0, np.float32))


def _read(path: Path, where: str) -> dict[str, Array]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
            return dict(found)
    except Exception as error:  # what NumPy raises of a torn file is of many kinds
        raise ModelError(f"{where}: {path.name} cannot be read: {error}") from error

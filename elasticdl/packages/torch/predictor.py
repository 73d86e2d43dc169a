"""An exported PyTorch model: it is evaluated, or predicts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from elasticdl.backends.base import Float32, Minibatch
from elasticdl.data.base import Metadata
from elasticdl.errors import ModelError
from elasticdl.model_spec import ModelSpec
from elasticdl.packages.frameworks.parts import ComposedPredictor
from elasticdl.packages.torch.device import Device
from elasticdl.packages.torch.export import read_export
from elasticdl.packages.torch.feed import Feed, TorchMinibatch
from elasticdl.packages.torch.metrics import Metrics
from elasticdl.packages.torch.model import PlacedModel
from elasticdl.packages.torch.structures import (
    Nested,
    as_array,
    map_leaves,
    map_outputs,
    without_none,
)
from elasticdl.packages.torch.table_parameter import TableParameter

_CPU = Device()


class ExportedPredictor(ComposedPredictor):
    """A `Predictor` that brings its own parameters: rows, dense and state vectors are empty.

    Args:
        spec: The model file's functions; of these `model`, `feed` and `eval_metrics_fn` are used.
        model: The result of the model function, called with a lookup in force.
        metadata: The description of the data, for `feed`.
        directory: The folder that `TorchTrainer.export` wrote.
        device: The device that computes the model; rows are looked up on the CPU.
    """

    def __init__(
        self,
        spec: ModelSpec,
        model: nn.Module,
        metadata: Metadata,
        directory: Path,
        device: Device = _CPU,
    ) -> None:
        self._device = device
        self._model = model
        self._directory = directory
        self._metrics = Metrics(spec.eval_metrics_fn, spec.tell)
        super().__init__(Feed(spec.feed, metadata), self._metrics)

    def check(self, sample: Minibatch) -> None:
        """Call the model once, and give it the exported values.

        Raises:
            ModelError: It does not take what `feed` gives, or is another one than the exported.
        """
        placed = PlacedModel(self._model, TorchMinibatch.of(sample).features)
        weights, tables = read_export(self._directory)
        names = [table.name for table in placed.tables]
        if sorted(names) != sorted(tables):
            raise ModelError(
                f"--saved_model={self._directory} has the tables {sorted(tables)}, the model of "
                f"the model file {sorted(names)}; is it the file that the export was trained with?"
            )
        self._tables = [tables[name] for name in names]
        for table, found in zip(placed.tables, self._tables, strict=True):
            if found.rows.shape[1] != table.dim:
                raise ModelError(
                    f"--saved_model={self._directory}: rows of table {table.name!r} have "
                    f"{found.rows.shape[1]} elements, the model's {table.dim}"
                )
        ours = {
            name
            for name, value in placed.model.state_dict(keep_vars=True).items()
            if not isinstance(value, TableParameter)
        }
        if ours != set(weights):
            raise ModelError(
                f"--saved_model={self._directory} and the model of the model file differ: "
                f"{sorted(ours ^ set(weights))[:10]} are in one of them alone"
            )
        try:
            placed.model.load_state_dict(weights, strict=False)
        except RuntimeError as error:
            raise ModelError(f"--saved_model={self._directory}: {error}") from error
        placed.move(self._device)
        self._placed = placed
        self._outputs(sample)

    def evaluate_step(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> None:
        """Add a minibatch to the metrics."""
        outputs = self._outputs(minibatch)
        self._metrics.update(minibatch.labels, outputs, minibatch.num_records)

    def predict_step(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> Nested:
        """Return the model's outputs as arrays."""
        return map_leaves(as_array, without_none(self._outputs(minibatch)))

    def _outputs(self, minibatch: Minibatch) -> Nested:
        placed = self._placed

        def look_up(layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
            rows = self._tables[placed.table_of(layer)].lookup(ids.cpu())
            return rows.to(ids.device)

        with torch.no_grad():
            features = TorchMinibatch.of(minibatch).features
            outputs = placed.call(features, look_up, training=False)
        return map_outputs(
            lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf, outputs
        )

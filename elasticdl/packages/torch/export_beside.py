"""The trained model without its rows, which lie beside it. See `docs/serving.md`.

The files are the same as for a Keras model. In place of a SavedModel there are two programs of
`torch.export`: `ids(features)` and `score(features, rows)`.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from torch import nn

from elasticdl.backends.base import Initializer
from elasticdl.data.strings import Array
from elasticdl.errors import ModelError
from elasticdl.packages.frameworks.lookup import looking_up, serving
from elasticdl.packages.frameworks.user_code import user_code
from elasticdl.packages.torch.export import export_weights, twice, without_tables
from elasticdl.packages.torch.feed import TorchMinibatch
from elasticdl.packages.torch.model import PlacedModel
from elasticdl.packages.torch.structures import Nested, leaves, map_leaves

DESCRIPTION, DENSE = "model.json", "dense.npz"
IDS, SCORE = "ids.pt2", "score.pt2"
_FORMAT = 1


def export_beside(
    placed: PlacedModel, sample: TorchMinibatch, staged: bool, directory: Path
) -> None:
    """Write all of the model but its rows, with the values that it has now.

    Args:
        placed: The model, on the CPU.
        sample: Features to trace it with.
        staged: Whether ids depend on rows.
        directory: Where to write.

    Raises:
        ModelError: The rows cannot be looked up before the model is called, or `torch.export`
            cannot trace it.
    """
    programs = make_programs(placed, sample, staged)
    for program, name in zip(programs, (IDS, SCORE), strict=True):
        torch.export.save(program, directory / name)
    export_weights(placed.model, directory, "its rows lie beside it: ids.pt2 and score.pt2")
    np.savez(directory / DENSE, allow_pickle=False, **_values(placed))
    (directory / DESCRIPTION).write_text(json.dumps(_describe(placed), indent=1) + "\n")
    features = map_leaves(twice, sample.features)
    with torch.no_grad(), user_code("the model of the export of --output"):
        asked = torch.export.load(directory / IDS).module()(features)
        torch.export.load(directory / SCORE).module()(features, _zeros(asked, placed))


def make_programs(
    placed: PlacedModel, sample: TorchMinibatch, staged: bool
) -> tuple[torch.export.ExportedProgram, torch.export.ExportedProgram]:
    """Return the programs of ids and of outputs; see `export_beside`."""
    if staged:
        raise ModelError(
            "--output_tables=parquet: ids may depend on rows (--run_eagerly), so rows cannot be "
            "looked up before the model is called; leave the rows inside (--output_tables=inside)"
        )
    features = map_leaves(twice, sample.features)
    if not all(isinstance(leaf, torch.Tensor) for leaf in leaves(features)):
        raise _no_program("it takes tensors alone, and feed gives something else")
    placed.model.eval()
    try:
        with torch.no_grad():
            rows = _zeros(_Ids(placed)(features), placed)
        batch = map_leaves(lambda leaf: {0: torch.export.Dim.DYNAMIC}, features)
        many = [{0: torch.export.Dim.AUTO} for _ in rows]
        ids = torch.export.export(_Ids(placed), (features,), dynamic_shapes=(batch,))
        score = torch.export.export(_Score(placed), (features, rows), dynamic_shapes=(batch, many))
    except Exception as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
        raise _no_program(why) from error
    return ids, score


def _zeros(ids: list[torch.Tensor], placed: PlacedModel) -> list[torch.Tensor]:
    dims = _dims(placed)
    pairs = zip(ids[: len(dims)], dims, strict=True)
    return [torch.zeros(*of_site.shape, dim) for of_site, dim in pairs]


class _Ids(nn.Module):  # type: ignore[misc]  # torch has no types here
    """Features -> the ids of each lookup."""

    def __init__(self, placed: PlacedModel) -> None:
        super().__init__()
        self.model = without_tables(placed)

    def forward(self, features: Nested) -> list[torch.Tensor]:
        """Return the ids, in the order of the lookups; if there are none, an empty tensor."""
        found: list[torch.Tensor] = []

        def note(layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
            found.append(ids.clone())
            return torch.zeros(*ids.shape, layer.embedding_dim)

        with serving(), looking_up(note):
            self.model(features)
        # A program that returns nothing cannot be saved.
        return found or [torch.zeros(0, dtype=torch.int64)]


class _Score(nn.Module):  # type: ignore[misc]  # torch has no types here
    """Features and the rows of each lookup -> the outputs."""

    def __init__(self, placed: PlacedModel) -> None:
        super().__init__()
        self.model = without_tables(placed)
        self._given = placed.given

    def forward(self, features: Nested, rows: list[torch.Tensor]) -> Nested:
        """Return the model's outputs."""
        given = map(self._given, rows)
        with serving(), looking_up(lambda layer, ids: next(given)):
            return self.model(features)


def _dims(placed: PlacedModel) -> list[int]:
    return [placed.tables[site].dim for site in placed.sites]


def _no_program(why: str) -> ModelError:
    return ModelError(
        "--output_tables=parquet: a model with its rows beside it needs a program that returns its "
        f"ids, and torch.export cannot make it for this model ({why}); leave the rows inside "
        "(--output_tables=inside)"
    )


def _values(placed: PlacedModel) -> dict[str, Array]:
    values = {name: p.detach().numpy() for name, p in placed.parameters}
    return values | {b.name: b.current().numpy().reshape(b.value.shape) for b in placed.buffers}


def _describe(placed: PlacedModel) -> dict[str, object]:
    return {
        "format": _FORMAT,
        "tables": [
            {
                "name": table.name,
                "dim": table.dim,
                "unseen": Initializer(*table.weight.table_initializer).centre,
                "input_dim": table.layer.num_embeddings,
            }
            for table in placed.tables
        ],
        "lookups": [placed.tables[site].name for site in placed.sites],
        "dense": {name: list(p.shape) for name, p in placed.parameters},
        "state": {b.name: list(b.value.shape) for b in placed.buffers},
        "outputs": [],
    }

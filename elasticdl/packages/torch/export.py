"""The trained model as files that PyTorch reads without elasticdl.

`model.safetensors` has parameters and buffers as `state_dict` names them, `tables/NAME.safetensors`
the ids of a table (`keys`, ascending) and their rows, `model.pt2` the whole as `torch.export` makes
it, where it can; `elasticdl.json` says what there is.
"""

from __future__ import annotations

import copy
import json
import logging
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from elasticdl.backends.base import Float32, Initializer, TableSource
from elasticdl.backends.exported import may_be_loaded
from elasticdl.distribution import install
from elasticdl.errors import ModelError
from elasticdl.packages.frameworks.lookup import looking_up, serving
from elasticdl.packages.frameworks.user_code import user_code
from elasticdl.packages.torch.feed import TorchMinibatch
from elasticdl.packages.torch.layers import Embedding, EmbeddingBag, StatisticsTable
from elasticdl.packages.torch.model import PlacedModel, explaining
from elasticdl.packages.torch.structures import Nested, leaves, map_leaves
from elasticdl.packages.torch.table_parameter import TableParameter
from elasticdl.packages.torch.tables import LayerTable

log = logging.getLogger(__name__)

NOTES = "elasticdl.json"
WEIGHTS = "model.safetensors"
PROGRAM = "model.pt2"
ASKED = "the export of --output"  # whose model is asked a minibatch when it was written


@dataclass(frozen=True, slots=True)
class ExportedTable:
    """A table as it is exported.

    keys: ascending. unseen: what each element reads as of an id that is not among them.
    """

    name: str
    keys: NDArray[np.int64]
    rows: Float32
    unseen: float

    def lookup(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of a tensor of ids."""
        return _sorted_lookup(
            torch.from_numpy(self.keys), torch.from_numpy(self.rows), self.unseen, ids
        )


def export_model(
    placed: PlacedModel, sample: TorchMinibatch, directory: Path, source: TableSource
) -> None:
    """Write the model, with the values that it has now, into `directory`."""
    save_file = _safetensors().save_file
    tables = [_exported(table, source, k) for k, table in enumerate(placed.tables)]
    save_file(_state_dict(placed.model), directory / WEIGHTS)
    if tables:
        (directory / "tables").mkdir()
    for table in tables:
        arrays = {"keys": torch.from_numpy(table.keys), "rows": torch.from_numpy(table.rows)}
        save_file(arrays, directory / table_file(table.name))
    why_not = _write_program(placed, sample, tables, directory / PROGRAM)
    if why_not:
        log.warning("the export has no %s: torch.export: %s", PROGRAM, why_not)
    _write_notes(directory, tables, why_not)


def export_weights(model: nn.Module, directory: Path, why_no_program: str) -> None:
    """Write parameters and buffers alone, and why there is no program of the whole model."""
    _safetensors().save_file(_state_dict(model), directory / WEIGHTS)
    _write_notes(directory, [], why_no_program)
    check_weights(model, directory)


def check_export(model: nn.Module) -> None:
    """Look whether the model can be exported.

    Raises:
        ModelError: It cannot.
    """
    save = _safetensors().save
    for name, value in _state_dict(model).items():
        try:
            save({name: torch.empty(0, dtype=value.dtype)})
        except Exception as error:
            raise ModelError(
                f"the model's state {name!r} is {value.dtype}, which a safetensors file cannot "
                "hold: convert it, or say register_buffer(..., persistent=False)"
            ) from error


def check_weights(model: nn.Module, directory: Path) -> None:
    """Load the written weights, and compare them with the model's.

    Raises:
        ModelError: It cannot be loaded, or is something else.
    """
    weights, _ = read_export(directory, ASKED)
    for name, value in _state_dict(model).items():
        if name not in weights or not _is_same(value, weights[name]):
            raise ModelError(f"{ASKED} has another {name!r} than the model that was trained")


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.is_floating_point() or one.is_complex():
        # PyTorch says that NaN differs from NaN, and compares no floats of 8 bits.
        kind = torch.complex128 if one.is_complex() else torch.float64
        one, other = one.to(kind).nan_to_num(), other.to(kind).nan_to_num()
    return bool(torch.equal(one, other))


def ask(placed: PlacedModel, sample: TorchMinibatch, directory: Path) -> None:
    """Load an export that was written, and ask it a minibatch.

    Raises:
        ModelError: It cannot be loaded, or does not answer.
    """
    check_weights(placed.model, directory)
    _, tables = read_export(directory, ASKED)

    def look_up(layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        return tables[placed.tables[placed.table_of(layer)].name].lookup(ids)

    # Not by `placed.call`: the export has no model servers, so the towers are computed here.
    placed.model.eval()
    whose = user_code(f"the model of {ASKED}")
    with torch.no_grad(), whose, looking_up(look_up), explaining(sample.features):
        placed.model(placed.device.moved(sample.features))


def _write_notes(directory: Path, tables: list[ExportedTable], why_not: str) -> None:
    notes = {
        "backend": "torch",
        "torch": torch.__version__,
        "tables": {table.name: {"unseen": table.unseen} for table in tables},
        "program": None if why_not else PROGRAM,
        "why_no_program": why_not,
    }
    (directory / NOTES).write_text(json.dumps(notes, indent=2) + "\n")


def table_file(name: str) -> str:
    """Return where in an export a table lies."""
    # The name of a table may have slashes.
    return f"tables/{urllib.parse.quote(name, safe='')}.safetensors"


def read_export(
    directory: Path, named: str = ""
) -> tuple[dict[str, torch.Tensor], dict[str, ExportedTable]]:
    """Return the parameters and buffers, and the tables, of an export.

    Args:
        directory: The folder of the export.
        named: The name of the export in messages; by default `--saved_model`.

    Raises:
        ModelError: A file is missing or no safetensors file.
    """
    load_file = _safetensors().load_file
    tables = {}
    try:
        notes = json.loads((directory / NOTES).read_text())
        weights: dict[str, torch.Tensor] = load_file(directory / WEIGHTS)
        for name, said in notes["tables"].items():
            arrays = load_file(directory / table_file(name))
            keys, rows = arrays["keys"].numpy(), arrays["rows"].numpy()
            tables[name] = ExportedTable(name, keys, rows, float(said["unseen"]))
    except Exception as error:
        raise ModelError(
            f"{named or f'--saved_model={directory}'}: expected what --output of a training job in "
            f"PyTorch writes, found {type(error).__name__}: {error}"
        ) from error
    return weights, tables


def _safetensors() -> ModuleType:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ModelError(
            "the export of a PyTorch model needs the package safetensors, which is not installed; "
            f"{install('torch')} has it"
        ) from error
    module: ModuleType = safetensors.torch
    return module


def _state_dict(model: nn.Module) -> dict[str, torch.Tensor]:
    found = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if isinstance(value, TableParameter):
            continue
        if not isinstance(value, torch.Tensor):
            raise ModelError(
                f"the model's state {name!r} is {type(value).__name__}; an export holds tensors: "
                "let get_extra_state() return one"
            )
        found[name] = value.detach().cpu().clone().contiguous()  # parameters share one memory
    return found


def _exported(table: LayerTable, source: TableSource, number: int) -> ExportedTable:
    chunks = list(source.scan(number))
    keys = np.concatenate([np.zeros(0, np.int64), *(chunk[0] for chunk in chunks)])
    rows = np.concatenate([np.zeros((0, table.dim), np.float32), *(chunk[1] for chunk in chunks)])
    order = np.argsort(keys)
    keys, rows = keys[order], rows[order]
    padding = table.layer.padding_idx
    if padding is not None:
        rows[keys == padding] = 0.0
    return ExportedTable(
        table.name, keys, rows, Initializer(*table.weight.table_initializer).centre
    )


def _write_program(
    placed: PlacedModel, sample: TorchMinibatch, tables: list[ExportedTable], path: Path
) -> str:
    """Write what `torch.export` makes of the model; return why it could not, or ""."""
    features = map_leaves(twice, sample.features)
    if not all(isinstance(leaf, torch.Tensor) for leaf in leaves(features)):
        return "it takes tensors alone, and feed gives something else"
    # A server may give any number of records.
    batch = {0: torch.export.Dim.DYNAMIC}
    shapes = map_leaves(lambda leaf: batch, features)
    try:
        served = _Served(placed, tables).eval()
        program = torch.export.export(served, (features,), dynamic_shapes=(shapes,))
        torch.export.save(program, path)
        # Some programs are written and cannot be loaded; these are left out.
        if may_be_loaded(path.parent):
            torch.export.load(path).module()(features)
    except Exception as error:
        path.unlink(missing_ok=True)
        return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
    return ""


def twice(leaf: torch.Tensor) -> torch.Tensor:
    """Return a sample of at least two: `torch.export` takes a size of 1 for a constant."""
    if isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.shape[0] == 1:
        return torch.cat([leaf, leaf])
    return leaf


class _Served(nn.Module):  # type: ignore[misc]  # torch has no types here
    """The model with its tables in it."""

    def __init__(self, placed: PlacedModel, tables: list[ExportedTable]) -> None:
        super().__init__()
        numbers = {id(m): placed.table_of(m) for m in _embeddings(placed.model)}
        self.model = without_tables(placed)
        self._numbers = {
            id(theirs): numbers[id(ours)]
            for ours, theirs in zip(
                _embeddings(placed.model), _layers_without(self.model), strict=True
            )
        }
        self.tables = nn.ModuleList(_SortedTable(table) for table in tables)

    def forward(self, features: Nested) -> Nested:
        """Return the model's outputs."""
        with serving(), looking_up(lambda layer, ids: self.tables[self._numbers[id(layer)]](ids)):
            return self.model(features)


def _embeddings(model: nn.Module) -> list[nn.Module]:
    return [m for m in model.modules() if isinstance(m._parameters.get("weight"), TableParameter)]


def _layers_without(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a copy whose tables were left out, in the order of `modules`."""
    return [
        m
        for m in model.modules()
        if isinstance(m, Embedding | EmbeddingBag | StatisticsTable)
        and "weight" not in m._parameters
    ]


def without_tables(placed: PlacedModel) -> nn.Module:
    """Return a copy of the model for a program, which gets the rows of tables from elsewhere."""
    # In place of each weight there is an empty tensor, which a model may ask for its device.
    memo = {id(table.weight): torch.empty(0, table.dim) for table in placed.tables}
    model = copy.deepcopy(placed.model, memo)
    empty = {id(tensor) for tensor in memo.values()}
    for module in model.modules():
        if id(weight := module._parameters.get("weight")) in empty:
            del module._parameters["weight"]
            module.weight = weight
    return model


class _SortedTable(nn.Module):  # type: ignore[misc]  # torch has no types here
    """The trained ids in ascending order and their rows; others read as `unseen`."""

    def __init__(self, table: ExportedTable) -> None:
        super().__init__()
        keys, rows = table.keys, table.rows
        if not len(keys):  # a key that no one can ask for keeps the table from being empty
            keys = np.array([-1], np.int64)
            rows = np.full((1, rows.shape[1]), table.unseen, np.float32)
        self.register_buffer("keys", torch.from_numpy(keys))
        self.register_buffer("rows", torch.from_numpy(rows))
        self._unseen = table.unseen

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of ids of any shape."""
        return _sorted_lookup(self.keys, self.rows, self._unseen, ids)


def _sorted_lookup(
    keys: torch.Tensor, rows: torch.Tensor, unseen: float, ids: torch.Tensor
) -> torch.Tensor:
    if not keys.shape[0]:
        return torch.full((*ids.shape, rows.shape[1]), unseen)
    # An id above all keys has its place behind the last key.
    place = torch.searchsorted(keys, ids).clamp(max=keys.shape[0] - 1)
    known = keys[place] == ids
    return torch.where(known.unsqueeze(-1), rows[place], unseen)

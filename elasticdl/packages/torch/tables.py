"""The tables of a user's PyTorch model: one for each weight of an embedding layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn

from elasticdl.backends.base import Initializer, OptimizerSpec, TableDescription
from elasticdl.errors import ModelError
from elasticdl.layers.row_rules import AdmissionSpec, ExpirySpec, KeptStatistics
from elasticdl.layers.row_statistics import table_name
from elasticdl.packages.torch.layers import Embedding, EmbeddingBag, StatisticsTable
from elasticdl.packages.torch.table_parameter import TableParameter


@dataclass(frozen=True, slots=True)
class LayerTable:
    """The table of one embedding layer, or of several that share a weight."""

    name: str
    layer: nn.Module
    kept: KeptStatistics | None = None  # beside its rows, or what its rows are

    @property
    def has_statistics(self) -> bool:
        """Whether its rows are statistics."""
        return isinstance(self.layer, StatisticsTable)

    @property
    def weight(self) -> TableParameter:
        """The parameter that stands for the table in the model."""
        weight: TableParameter = self.layer.weight
        return weight

    @property
    def dim(self) -> int:
        """Width of a row."""
        return int(self.layer.embedding_dim)

    def describe(self, rule: OptimizerSpec, is_trained: bool, rate: float) -> TableDescription:
        """Return what the store is told."""
        if self.has_statistics:
            assert self.kept is not None
            return TableDescription.of_statistics(self.name, self.kept, self.layer.expiry_of_rows)
        kind, params = self.weight.table_initializer
        return TableDescription(
            self.name,
            self.dim,
            Initializer(kind, params),
            rule,
            self.layer.num_embeddings,
            self.layer.wire_dtype,
            AdmissionSpec.of(self.layer.admission, self.kept),
            ExpirySpec.of(self.layer.expiry, self.kept),
            trainable=is_trained and self.weight.requires_grad,
            given_rows=self.weight.given is not None,
            rate=rate,
        )


def tables_of(model: nn.Module) -> tuple[LayerTable, ...]:
    """Return the tables of a model; each knows where the statistics of its ids are.

    Raises:
        ModelError: A layer cannot be a table; names it.
    """
    return _with_statistics(tuple(_tables(model)))


def _tables(model: nn.Module) -> Iterator[LayerTable]:
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError(
            "the model is one of torch.jit, whose parameters cannot be given other values: return "
            "the torch.nn.Module that it was made of; --torch_compile compiles its steps"
        )
    names: set[str] = set()
    seen: set[int] = set()
    names_of: dict[str, str] = {}  # a layer comes before its statistics
    for path, module in model.named_modules():
        if "_orig_mod" in getattr(module, "_modules", {}):
            _refuse_compiled(path, module)
        weight = getattr(module, "_parameters", {}).get("weight")
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            _check_plain(path, module)
        if isinstance(module, Embedding | EmbeddingBag):
            _check_weight(path, module)
        if not isinstance(weight, TableParameter) or id(weight) in seen:
            continue
        seen.add(id(weight))
        if isinstance(module, StatisticsTable):
            name = table_name(names_of[path.rpartition(".")[0]])
        else:
            name = names_of[path] = module.table_name or path or "embedding"
        if name in names:
            raise ModelError(
                f"two embedding layers have the name {name!r}; give them names of their own"
            )
        names.add(name)
        yield LayerTable(name, module)


def _refuse_compiled(path: str, module: nn.Module) -> None:
    """Refuse a result of `torch.compile` that has tables: the tracer reads all that it meets."""
    if any(isinstance(parameter, TableParameter) for parameter in module.parameters()):
        raise ModelError(
            f"{path or 'the model'}: torch.compile was called on a module with tables, whose rows "
            "it would have to read; return the module itself: --torch_compile compiles its steps"
        )


def _with_statistics(tables: tuple[LayerTable, ...]) -> tuple[LayerTable, ...]:
    """Tell each table where the statistics of its ids are."""
    numbers = {id(table.layer): number for number, table in enumerate(tables)}

    def kept_of(layer: nn.Module) -> KeptStatistics | None:
        of_layer = layer if isinstance(layer, StatisticsTable) else layer.statistics
        return of_layer and KeptStatistics(numbers[id(of_layer)], of_layer.said)

    return tuple(replace(table, kept=kept_of(table.layer)) for table in tables)


def _check_weight(path: str, layer: nn.Module) -> None:
    """Refuse rows that the model sets in a way that the table would not have.

    Raises:
        ModelError: The layer has another weight, or a row for its padding.
    """
    weight, padding = layer.weight, layer.padding_idx
    if not isinstance(weight, TableParameter):
        if not layer._is_of_job:
            return  # a script's, which has all rows itself
        raise ModelError(
            f"{path}: the model has replaced the weight of the layer, which stands for the table "
            "on the ps replicas; to set the first values of all rows, use "
            f"{type(layer).__name__}.from_pretrained(rows, freeze=False) or weight.data = rows"
        )
    # In PyTorch a bag leaves padding out, and an Embedding gives the row that it has.
    gives_row = isinstance(layer, nn.Embedding) and padding is not None
    if gives_row and weight.given is not None and weight.given[padding].any():
        raise ModelError(
            f"{path}: padding gives zeros here, and the rows that the model sets have another row "
            f"for padding_idx={padding}; set that row to zeros, or leave padding_idx out"
        )


def _check_plain(path: str, module: nn.Module) -> None:
    if module.sparse and not isinstance(module.weight, TableParameter):
        kind = type(module).__name__
        raise ModelError(
            f"{path}: a torch.nn.{kind} with sparse=True is dense here; use "
            f"elasticdl.layers.torch.{kind}, whose gradients are sparse, or leave sparse out"
        )

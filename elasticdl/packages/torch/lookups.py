"""Finds the ids that a minibatch looks up, by running the model ahead of its step."""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np
import torch
from torch import nn

from elasticdl.backends.base import Float32, Int64, Lookup, Minibatch
from elasticdl.errors import IdError, ModelError
from elasticdl.job import Mode
from elasticdl.layers.row_statistics import SHOW, RowStatistics, value_of
from elasticdl.packages.frameworks.lookup import counting
from elasticdl.packages.torch.device import Device, from_numpy
from elasticdl.packages.torch.feed import TorchMinibatch
from elasticdl.packages.torch.model import Enough, PlacedModel, TowerOutputs
from elasticdl.packages.torch.tables import LayerTable


def amounts(
    said: RowStatistics,
    shape: Sequence[int],
    records: torch.Tensor | None,
    weights: torch.Tensor | None,
    minibatch: TorchMinibatch,
) -> Float32:
    """Return what each id of a lookup adds to its sums.

    Args:
        said: The statistics.
        shape: The shape of the ids.
        records: The record of each id; None: it is their first axis.
        weights: What each counts; None: all count 1.
        minibatch: The minibatch whose labels and features are counted.

    Raises:
        ModelError: `feed` does not give a value that is counted, once for each record.
    """
    added = torch.ones(*shape, len(said.names))
    for column, name in enumerate(said.names):
        if name != SHOW:
            added[..., column] = _of_records(name, shape, records, minibatch)
    if weights is not None:
        added *= weights.cpu().unsqueeze(-1)
    return np.asarray(added.numpy(), np.float32)


def _of_records(
    name: str, shape: Sequence[int], records: torch.Tensor | None, minibatch: TorchMinibatch
) -> torch.Tensor:
    """Return the value of each id's record."""
    given = value_of(name, minibatch.labels, minibatch.features, torch.Tensor)
    if any(size != 1 for size in given.shape[1:]):
        raise ModelError(
            f"statistic {name!r} is counted by record: expected one number of feed for each, found "
            f"shape {tuple(given.shape)}"
        )
    values = given.detach().cpu().reshape(-1).to(torch.float32)
    if records is not None:
        return values[records.cpu()]
    return values.reshape(-1, *[1] * (len(shape) - 1)).expand(*shape)


class Collector:
    """Runs a copy of the model up to its last lookup, in the thread that looks ahead.

    If no ids depend on a looked up row or a parameter, rows are zeros meanwhile. A model is
    otherwise `staged`: each call of an embedding layer gets its real rows, one round trip each. The
    copy stays on the CPU.

    Args:
        placed: The model, still on the CPU.
        staged: Whether ids depend on rows or parameters.
        device: The device that computes the model later.
    """

    def __init__(self, placed: PlacedModel, staged: bool, device: Device) -> None:
        if placed.sites:  # without sites it is never called
            # A staged model loads pulled parameters, which must not overwrite those of a running
            # step.
            placed = placed.copied(shares_values=device.is_cpu and not staged)
        self._placed = placed
        self._staged = staged
        self._pull: Lookup | None = None

    def set_lookup(self, pull: Lookup) -> None:
        """Give the lookup for staged models."""
        self._pull = pull

    def ids(self, minibatch: TorchMinibatch, fill: float = 0.0) -> Sequence[Int64]:
        """Return the ids of each site, and note them in the minibatch.

        Args:
            minibatch: The minibatch that is looked at.
            fill: The value that fills the rows which the model gets meanwhile.

        Raises:
            ModelError: An id is out of range, or there are other sites than at first.
        """
        minibatch.lookups.clear()
        minibatch.counted.clear()
        placed = self._placed
        if not placed.sites:
            return ()
        training = minibatch.mode is Mode.TRAINING
        if self._staged and self._pull is not None:
            pulled = self._pull([], training)
            placed.load(pulled.dense, pulled.state)

        def look_up(layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
            table = placed.table_of(layer)
            _check_range(layer, ids, placed.sources[table].name)
            minibatch.lookups.append((table, ids))
            if len(minibatch.lookups) == len(placed.sites):
                raise Enough
            if self._staged and self._pull is not None:
                rows = self._pull([(table, ids.contiguous().numpy())], training).rows[0]
                return from_numpy(rows)
            return torch.full((*ids.shape, layer.embedding_dim), fill)

        try:
            with torch.no_grad(), counting(lambda *site: minibatch.counted.append(site)):
                # In inference dropout draws no numbers, and batch normalization changes no buffers.
                placed.call(minibatch.features, look_up, training=False)
        except Enough:
            pass
        found = tuple(table for table, _ in minibatch.lookups)
        if found != placed.sites:
            raise ModelError(_other_sites(placed, found))
        return [ids.contiguous().numpy() for _, ids in minibatch.lookups]


class TorchLookups:
    """The `Lookups` of a model.

    Args:
        placed: The model, still on the CPU.
        staged: Whether ids depend on rows or parameters.
        device: The device that computes the model later.

    Attributes:
        need_parameters: See `Lookups`.
    """

    def __init__(self, placed: PlacedModel, staged: bool, device: Device) -> None:
        self.need_parameters = staged
        self._placed = placed
        self._device = device
        self.begin_again()

    def begin_again(self) -> None:
        """Copy the model, which looks up something else from now on."""
        self._collector = Collector(self._placed, self.need_parameters, self._device)

    @property
    def tables(self) -> Sequence[int]:
        """The table of each id site."""
        return self._placed.sites

    def set_lookup(self, pull: Lookup) -> None:
        """Give the lookup for `--run_eagerly`; others never use it."""
        self._collector.set_lookup(pull)

    def ids(self, minibatch: Minibatch) -> Sequence[Int64]:
        """Return the ids that each site looks up."""
        return self._collector.ids(TorchMinibatch.of(minibatch))

    def refuse_staged(self, minibatch: TorchMinibatch) -> None:
        """Refuse ids that depend on rows, unless each is to be looked up with its real ones.

        Raises:
            ModelError: Names the table whose ids do.
        """
        # Ids that depend on rows differ between rows of zeros and rows of ones.
        with_zeros = [ids.copy() for ids in self._collector.ids(minibatch)]
        with_ones = self._collector.ids(minibatch, fill=1.0)
        for site, (one, other) in enumerate(zip(with_zeros, with_ones, strict=True)):
            if one.shape != other.shape or (one != other).any():
                table = self._placed.tables[self._placed.sites[site]].name
                raise ModelError(
                    f"the ids that the model looks up in table {table!r} depend on rows that it "
                    "has looked up before; say --run_eagerly=true, with which each is looked up in "
                    "its turn"
                )


class GivenRows:
    """Gives a step's embedding layers the rows that were pulled for it.

    Raises:
        ModelError: A layer is called with other ids than were pulled.
    """

    def __init__(
        self, placed: PlacedModel, minibatch: TorchMinibatch, rows: Sequence[Float32], grad: bool
    ) -> None:
        self._placed = placed
        self._minibatch = minibatch
        self._next = 0
        self._unchecked: list[tuple[int, torch.Tensor, torch.Tensor]] = []
        self.rows = [placed.device.tensor(part).requires_grad_(grad) for part in rows]

    def __call__(self, layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of the next site."""
        lookups, number = self._minibatch.lookups, self._next
        table = self._placed.table_of(layer)
        if number >= len(lookups) or lookups[number][0] != table:
            found = [t for t, _ in lookups[:number]] + [table]
            raise ModelError(_other_sites(self._placed, found))
        expected = lookups[number][1]
        if self._placed.device.is_cpu or ids.shape != expected.shape:
            self._compare(table, ids, expected)
        else:  # to read them now would have the GPU waited for in the middle of its step
            self._unchecked.append((table, ids, expected))
        self._next += 1
        return self._placed.given(self.rows[number])

    def check(self) -> None:
        """Compare the ids that were not compared when they were asked for.

        Raises:
            ModelError: They differ from the ids that were pulled.
        """
        for table, ids, expected in self._unchecked:
            self._compare(table, ids.cpu(), expected)
        self._unchecked.clear()

    def _compare(self, table: int, ids: torch.Tensor, expected: torch.Tensor) -> None:
        if ids is expected or torch.equal(ids.cpu(), expected.cpu()):
            return
        raise ModelError(
            f"the model looks up other ids in table {self._placed.sources[table].name!r} in its "
            "step than when it was asked for them: they must be a function of the features "
            "(no random numbers, no dependence on self.training); where they depend on rows "
            "or parameters, say --run_eagerly=true"
        )

    def gradients(self, of: Container[int] | None = None) -> Sequence[Float32]:
        """Return the gradient of each site's rows, after a backward pass.

        Args:
            of: The `id`s of weights; gradients of other tables are 0. None: all.
        """
        sources = [self._placed.sources[source] for source in self._placed.sites]
        counted = iter(self._minibatch.counted)
        return [
            amounts(source.kept.said, rows.shape[:-1], *next(counted), self._minibatch)
            if isinstance(source, LayerTable) and source.has_statistics and source.kept is not None
            else self._placed.device.array(
                torch.zeros_like(rows)
                if rows.grad is None or (of is not None and _is_left_out(source, of))
                else _dense(rows.grad)
            )
            for rows, source in zip(self.rows, sources, strict=True)
        ]


def _is_left_out(source: LayerTable | TowerOutputs, of: Container[int]) -> bool:
    return isinstance(source, LayerTable) and id(source.weight) not in of


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def _check_range(layer: nn.Module, ids: torch.Tensor, table: str) -> None:
    if not ids.numel():
        return
    low, high = (int(bound) for bound in torch.aminmax(ids))
    if low < 0 or (layer.num_embeddings is not None and high >= layer.num_embeddings):
        below = "2**63" if layer.num_embeddings is None else layer.num_embeddings
        raise IdError(
            f"table {table!r}: expected ids from 0 to below {below}, found "
            f"{low if low < 0 else high}"
        )


def _other_sites(placed: PlacedModel, found: Sequence[int]) -> str:
    first, now = ([placed.sources[t].name for t in sites] for sites in (placed.sites, found))
    return (
        "the model looks up other embeddings with this minibatch than with the first one: "
        f"{', '.join(first)} at first, now {', '.join(now) or 'none'}; call all layers with each "
        "minibatch, with an empty tensor where there is nothing to look up"
    )

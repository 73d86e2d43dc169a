"""The towers of a PyTorch model, each a copy that is called by itself."""

from __future__ import annotations

import copy
from collections.abc import Container, Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import nn

from elasticdl.backends.base import Float32, Int64
from elasticdl.errors import ModelError
from elasticdl.job import Mode
from elasticdl.packages.torch.device import Device, from_numpy
from elasticdl.packages.torch.feed import TorchMinibatch
from elasticdl.packages.torch.layers import Remote
from elasticdl.packages.torch.lookups import Collector, GivenRows
from elasticdl.packages.torch.model import PlacedModel
from elasticdl.packages.torch.tables import LayerTable

_CPU = Device()
_NO_STATE = np.zeros(0, np.float32)


def towers_of(placed: PlacedModel, clipped: Container[int] | None) -> list[TorchTower]:
    """Return the towers of a model.

    Args:
        placed: The model.
        clipped: The `id`s of parameters that have gradients; None: all.

    Raises:
        ModelError: There is none, or one cannot be computed elsewhere.
    """
    remotes = placed.remotes()
    if not remotes:
        raise ModelError(
            "--num_model_servers: the model has no part in elasticdl.layers.torch.Remote that they "
            "could compute; leave the flag out, or put a tower into that module"
        )
    return [TorchTower(placed, remote, clipped) for remote in remotes]


class TorchTower:
    """A `Tower` of a PyTorch model.

    Args:
        placed: The whole model.
        remote: The module with the tower.
        clipped: The `id`s of the model's parameters that have gradients; None: all.

    Attributes:
        name, dim, dense, tables: See `Tower`.
    """

    def __init__(self, placed: PlacedModel, remote: Remote, clipped: Container[int] | None) -> None:
        self.name = remote.name
        names = {id(p): name for name, p in placed.parameters}
        own = [p for p in remote.parameters() if id(p) in names]
        ends = list(accumulate((int(p.numel()) for _, p in placed.parameters), initial=0))
        parameters = zip(placed.parameters, pairwise(ends), strict=True)
        parts = {id(p): slice(*between) for (_, p), between in parameters}
        self.dense = [parts[id(p)] for p in own]
        # The tower gets parameters of its own; the weights of tables have no values to copy.
        memo = {id(table.weight): table.weight for table in placed.tables}
        self._placed = PlacedModel(_Alone(copy.deepcopy(remote, memo)), torch.zeros(1).long())
        copied = [p for _, p in self._placed.parameters]
        self._clipped: set[int] | None = None
        if clipped is not None:
            self._clipped = {id(c) for c, p in zip(copied, own, strict=True) if id(p) in clipped}
            weights = [table.weight for table in self._placed.tables]
            self._clipped |= {id(weight) for weight in weights if id(weight) in clipped}
        self.dim = _checked(remote, self._placed)
        self._collector = Collector(self._placed, False, _CPU)
        numbers = {id(table.weight): k for k, table in enumerate(placed.tables)}
        inner = [self._placed.sources[site] for site in self._placed.sites]
        self.tables = [numbers[id(t.weight)] for t in inner if isinstance(t, LayerTable)]

    def ids(self, ids: Int64) -> Sequence[Int64]:
        """Return the ids that each site looks up."""
        return self._collector.ids(_minibatch(ids))

    def forward(
        self, ids: Int64, rows: Sequence[Float32], dense: Float32, training: bool
    ) -> Float32:
        """Return what the tower gives; see `Tower.forward`."""
        with torch.no_grad():
            outputs, _ = self._outputs(ids, rows, dense, training, grad=False)
        return np.asarray(outputs.numpy(), np.float32)

    def backward(
        self, ids: Int64, gradients: Float32, rows: Sequence[Float32], dense: Float32
    ) -> tuple[Sequence[Float32], Float32]:
        """Return gradients; see `Tower.backward`."""
        outputs, given = self._outputs(ids, rows, dense, training=True, grad=True)
        # A tower in which nothing is trained has no gradient to compute.
        if outputs.requires_grad:
            outputs.backward(torch.tensor(gradients))
        return given.gradients(self._clipped), self._placed.gradient(self._clipped)

    def _outputs(
        self, ids: Int64, rows: Sequence[Float32], dense: Float32, training: bool, grad: bool
    ) -> tuple[torch.Tensor, GivenRows]:
        minibatch = _minibatch(ids)
        self._collector.ids(minibatch)
        self._placed.load(dense, _NO_STATE)
        given = GivenRows(self._placed, minibatch, rows, grad)
        outputs = self._placed.call(minibatch.features, given, training)
        assert isinstance(outputs, torch.Tensor)
        return outputs, given


class _Alone(nn.Module):  # type: ignore[misc]  # torch has no types here
    """A tower as a model of ids."""

    def __init__(self, remote: Remote) -> None:
        super().__init__()
        self.remote = remote

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return what the tower gives for ids of shape (n,)."""
        return self.remote.of_ids(ids)


def _minibatch(ids: Int64) -> TorchMinibatch:
    return TorchMinibatch(from_numpy(ids), None, len(ids), mode=Mode.TRAINING)


def _checked(remote: Remote, placed: PlacedModel) -> int:
    """Return the width of a tower's output.

    A tower is refused if its output depends on more than an id and trained parameters.

    Raises:
        ModelError: Names the tower and the fault.
    """
    what = f"Remote {remote.name!r}: with --num_model_servers a tower "
    if any(isinstance(module, Remote) for module in remote.tower.modules()):
        raise ModelError(f"{what}may have no other Remote within it")
    kept = [*(b.name for b in placed.buffers), *(c.name for c in placed.constants)]
    if kept:
        raise ModelError(
            f"{what}keeps no state, since each id is computed once for several workers: found the "
            f"buffer {kept[0]!r}; take batch normalization and the like to the rest of the model"
        )
    if any(table.layer.admission is not None for table in placed.tables):
        raise ModelError(f"{what}has tables without admission: ids are not counted there")

    def ones(layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        return torch.ones(*ids.shape, layer.embedding_dim)

    drawn = []
    # A tower that draws random numbers gives something else with another seed.
    for seed in (1, 2):
        torch.manual_seed(seed)
        with torch.no_grad():
            outputs = placed.call(torch.zeros(1).long(), ones, training=True)
            assert isinstance(outputs, torch.Tensor)
            drawn.append(outputs)
    if not torch.equal(*drawn):
        raise ModelError(
            f"{what}draws nothing, since each id is computed once for several workers: take "
            "dropout and the like to the rest of the model"
        )
    return int(drawn[0].shape[1])

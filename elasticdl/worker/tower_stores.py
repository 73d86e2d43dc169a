"""Stores for a model with towers on model servers.

For a step nothing changes. The outputs of a tower are looked up as rows are. Before a push, the
model servers compute the gradients within the tower. They are pushed with the gradients of the
worker, in one frame to each replica. So a minibatch is counted once, by the worker's own push, and
a model server keeps nothing that could be lost.

In a hybrid job the workers have the dense parameters. These are known when a step begins, so the
towers are asked then, with their dense parameters in the request. The dense gradients within the
towers are needed before the dense half of the minibatch goes around the ring. The gradients of rows
wait in the worker for the other half. See docs/designs/model-servers.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from elasticdl._core import PsClient, Pulled
from elasticdl.backends.base import (
    Float32,
    HasTowers,
    Int64,
    ModelDescription,
    StepResult,
    Tower,
    Trainer,
)
from elasticdl.errors import ModelError, NonFiniteLossError
from elasticdl.job import Lease
from elasticdl.worker.parameters import Committed, ComputedMinibatch, PendingPull, Step
from elasticdl.worker.route import Route
from elasticdl.worker.stores import StoreExchange


@dataclass(frozen=True, slots=True)
class SiteGradient:
    """The gradient of the rows of some ids of a table, shape `ids.shape + (dim,)`."""

    table: int
    ids: Int64
    gradient: Float32


@dataclass(frozen=True, slots=True)
class TowerGradients:
    """The gradients within a tower: of its dense variables, and of rows."""

    dense: Float32
    sites: Sequence[SiteGradient]


@dataclass(frozen=True, slots=True)
class Question:
    """A request for the outputs of ids, each of them once.

    tower: The number of the tower.
    ids: Shape (n,), in order.
    training: Whether missing rows are created.
    dense: The tower's dense parameters, if the worker has them.
    """

    tower: int
    ids: Int64
    training: bool
    dense: Float32 | None = None


@dataclass(frozen=True, slots=True)
class TowerAnswer:
    """The answer to a question.

    values: Shape (n, dim).
    windows: For each part of the ids, the number of the window of its server.
    """

    values: Float32
    windows: Sequence[int]


class AsksTowers(Protocol):
    """The model servers, as a worker uses them."""

    def forward(self, questions: Sequence[Question]) -> Sequence[TowerAnswer]:
        """Return the outputs of towers."""
        ...

    def backward(
        self, questions: Sequence[tuple[Question, TowerAnswer, Float32]]
    ) -> Sequence[TowerGradients]:
        """Return the gradients within towers, given those of their outputs, shape (n, dim)."""
        ...


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question to one tower for a minibatch; `sites` are the sites of the model, in order."""

    question: Question
    outputs: TowerAnswer
    sites: Sequence[int]
    places: Int64  # of each id of these sites among those of the question

    def merged(self, row_grads: Sequence[Float32]) -> Float32:
        """Return the gradient of each id's output, from the gradients of its occurrences."""
        dim = self.outputs.values.shape[1]
        merged = np.zeros((len(self.question.ids), dim), np.float32)
        given = np.concatenate([row_grads[site].reshape(-1, dim) for site in self.sites])
        np.add.at(merged, self.places, given)
        return merged


class PulledWithTowers:
    """A pull of rows and vectors with the outputs of towers; see `Pulled`.

    sites: The (table, ids) of each site, those of towers among them.
    completed: The bare pull and the gradients of the minibatch, once its dense half went to another
        holder.
    """

    def __init__(
        self,
        pulled: Pulled,
        sites: Sequence[tuple[int, Int64]],
        training: bool,
        asked: Sequence[_Asked] = (),
    ) -> None:
        self.pulled = pulled
        self.sites = sites
        self.training = training
        self.asked = asked
        self.completed: tuple[Pulled, StepResult] | None = None
        self.dense, self.state, self.version = pulled.dense, pulled.state, pulled.version

    @property
    def of_towers(self) -> set[int]:
        """The sites of towers."""
        return {site for asked in self.asked for site in asked.sites}

    @property
    def rows(self) -> list[Float32]:
        """The rows of each site, shape `ids.shape + (dim,)`."""
        found: dict[int, Float32] = {}
        for asked in self.asked:
            values, at = asked.outputs.values, 0
            for site in asked.sites:
                _, ids = self.sites[site]
                places = asked.places[at : at + ids.size]
                found[site] = values[places].reshape(*ids.shape, values.shape[1])
                at += ids.size
        rows = iter(self.pulled.rows)
        return [found[site] if site in found else next(rows) for site in range(len(self.sites))]


class TowerStores(StoreExchange):
    """A worker's exchange with stores and model servers.

    With `is_half`, the worker has the dense parameters, so `with_dense` asks the towers, not
    `pull`.
    """

    def __init__(
        self,
        client: PsClient,
        trainer: Trainer,
        servers: AsksTowers,
        towers: Sequence[Tower],
        route: Route | None = None,
        get_model_steps: int = 1,
        is_half: bool = False,
    ) -> None:
        super().__init__(client, trainer, route, get_model_steps)
        self._servers = servers
        self._towers = towers
        self._is_half = is_half
        self._num_tables = 0

    def declare(self, model: ModelDescription) -> None:
        """Declare the model, towers and all; see `StoreExchange.declare`.

        Raises:
            ModelError: The model keeps statistics of ids.
        """
        if any(table.statistics for table in model.tables):
            raise ModelError(
                "the model keeps statistics of ids (statistics=RowStatistics(...)), which count "
                "labels, and with --num_model_servers towers know none: expected one of the two"
            )
        self._num_tables = len(model.tables)
        super().declare(model)

    def pull(self, ids: Sequence[Int64], step: Step | None = None) -> Pulled:
        """Pull rows and vectors, then ask towers, which compute on the same or newer ones.

        So the staleness of their outputs is at most the one that is counted.
        """
        sites = list(zip(self._tables, ids, strict=True)) if ids else []
        return self._with_towers(super().pull(ids, step), sites, step is not None)

    def look_up(self, sites: Sequence[tuple[int, Int64]], training: bool) -> Pulled:
        """Pull the rows for (table, ids) of each site, and the vectors."""
        pulled = super().look_up([s for s in sites if s[0] < self._num_tables], training)
        return self._with_towers(pulled, sites, training)

    def with_dense(self, pulled: Pulled, dense: Float32) -> Pulled:
        """Return a pull with the outputs of towers for these dense parameters and newer rows."""
        if (found := _with_towers_of(pulled)) is None:
            return pulled
        asked = self._ask(found.sites, found.training, dense)
        return _as_pulled(PulledWithTowers(found.pulled, found.sites, found.training, asked))

    def completed(self, pulled: Pulled, result: StepResult) -> StepResult:
        """Return the gradients with those within towers; `push` sends the rows' half of them later.

        Raises:
            NonFiniteLossError: A gradient within a tower is not finite.
        """
        found = _with_towers_of(pulled)
        assert found is not None
        found.completed = self._completed(found, result)
        return found.completed[1]

    def push(
        self,
        pulled: Pulled,
        result: StepResult,
        learning_rate: float,
        lease: Lease,
        index: int,
        num_records: int,
        pending: PendingPull | None = None,
    ) -> Committed:
        """Push all gradients of a minibatch; nothing is pulled with it. See `StoreExchange.push`.

        Raises:
            NonFiniteLossError: A gradient within a tower is not finite.
        """
        found = _with_towers_of(pulled)
        assert found is not None
        if found.completed is None:
            bare, result = self._completed(found, result)
        else:
            bare, whole = found.completed
            result = replace(result, row_grads=whole.row_grads)
        return super().push(bare, result, learning_rate, lease, index, num_records)

    def push_several(
        self,
        minibatches: Sequence[ComputedMinibatch],
        learning_rate: float,
        lease: Lease,
        index: int,
    ) -> Committed:
        """Push the sum of the gradients of minibatches; see `StoreExchange.push_several`."""
        completed = []
        for each in minibatches:
            assert each.given.of_stores is not None
            found = _with_towers_of(each.given.of_stores)
            assert found is not None
            pulled, result = self._completed(found, each.result)
            given = replace(each.given, of_stores=pulled)
            completed.append(ComputedMinibatch(given, result, each.num_records))
        return super().push_several(completed, learning_rate, lease, index)

    def _sites(self, ids: Sequence[Int64]) -> list[tuple[int, Int64]]:
        return [site for site in super()._sites(ids) if site[0] < self._num_tables]

    def _with_towers(
        self, pulled: Pulled, sites: Sequence[tuple[int, Int64]], training: bool
    ) -> Pulled:
        """Add the outputs of towers, or leave that to `with_dense`."""
        if not sites:
            return pulled
        asked = [] if self._is_half else self._ask(sites, training, None)
        return _as_pulled(PulledWithTowers(pulled, sites, training, asked))

    def _ask(
        self, sites: Sequence[tuple[int, Int64]], training: bool, dense: Float32 | None
    ) -> list[_Asked]:
        """Ask each tower that is looked up, once for each id."""
        questions, sites_of, places = [], [], []
        for number, tower in enumerate(self._towers):
            own = [k for k, (table, _) in enumerate(sites) if table == self._num_tables + number]
            if not own:
                continue
            flat = np.concatenate([sites[k][1].ravel() for k in own])
            unique, inverse = np.unique(flat, return_inverse=True)
            brought = None if dense is None else dense_part(tower, dense)
            questions.append(Question(number, unique, training, brought))
            sites_of.append(own)
            places.append(inverse.ravel())
        outputs = self._servers.forward(questions)
        return [_Asked(*each) for each in zip(questions, outputs, sites_of, places, strict=True)]

    def _completed(self, pulled: PulledWithTowers, result: StepResult) -> tuple[Pulled, StepResult]:
        """Return the pull and the gradients of a minibatch with those within its towers."""
        asked = pulled.asked
        found = self._servers.backward(
            [(one.question, one.outputs, one.merged(result.row_grads)) for one in asked]
        )
        dense = np.array(result.dense_grad)
        for one, gradients in zip(asked, found, strict=True):
            _check_finite(self._towers[one.question.tower], gradients)
            at = 0
            for part in self._towers[one.question.tower].dense:
                size = part.stop - part.start
                dense[part] += gradients.dense[at : at + size]
                at += size
        of_towers = pulled.of_towers
        rows = [grad for k, grad in enumerate(result.row_grads) if k not in of_towers]
        sites = [site for gradients in found for site in gradients.sites]
        bare = pulled.pulled
        if sites:
            bare = self._joined(pulled, of_towers, sites)
            rows += [site.gradient for site in sites]
        return bare, replace(result, row_grads=rows, dense_grad=dense)

    def _joined(
        self, pulled: PulledWithTowers, of_towers: set[int], sites: Sequence[SiteGradient]
    ) -> Pulled:
        """Return a pull that also has the sites within towers."""
        own = [site for k, site in enumerate(pulled.sites) if k not in of_towers]
        within = [(site.table, site.ids) for site in sites]
        return self._declared(lambda: self.client.with_sites(pulled.pulled, [*own, *within]))


def dense_part(tower: Tower, dense: Float32) -> Float32:
    """Return the dense parameters of a tower, one after the other."""
    parts = [dense[part] for part in tower.dense]
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def _as_pulled(pulled: PulledWithTowers) -> Pulled:
    return pulled  # type: ignore[return-value]  # it has all that a pull has


def _with_towers_of(pulled: object) -> PulledWithTowers | None:
    return pulled if isinstance(pulled, PulledWithTowers) else None


def _check_finite(tower: Tower, gradients: TowerGradients) -> None:
    arrays = [gradients.dense, *(site.gradient for site in gradients.sites)]
    if not all(np.isfinite(array).all() for array in arrays):
        raise NonFiniteLossError(
            f"the gradient within the tower of Remote {tower.name!r} has NaN or infinity"
        )


def having_towers(trainer: Trainer) -> HasTowers:
    """Return a trainer as one whose towers may be computed elsewhere.

    Raises:
        ModelError: Its framework has no towers.
    """
    if not isinstance(trainer, HasTowers):
        raise ModelError(
            "--num_model_servers is for models in Keras and PyTorch, with a part in "
            "elasticdl.layers.Remote; leave the flag out"
        )
    return trainer

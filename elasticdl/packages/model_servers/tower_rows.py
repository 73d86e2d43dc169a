"""The source of the rows that towers on model servers compute.

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

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from elasticdl.backends.base import (
    Float32,
    Int64,
    ModelDescription,
    StepResult,
    Trainer,
)
from elasticdl.errors import ModelError, NonFiniteLossError
from elasticdl.packages.frameworks.towers import HasTowers, Tower
from elasticdl.worker.row_source import Site, SiteGradient


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
    """A question to one tower for a minibatch; `sites` are the places of its sites, in order."""

    question: Question
    outputs: TowerAnswer
    sites: Sequence[int]
    shapes: Sequence[tuple[int, ...]]  # of the ids of each of these sites
    places: Int64  # of each id of these sites among those of the question

    def rows(self) -> Iterator[tuple[int, Float32]]:
        """Yield the place of each site, and its rows."""
        values, at = self.outputs.values, 0
        for site, shape in zip(self.sites, self.shapes, strict=True):
            size = math.prod(shape)
            yield site, values[self.places[at : at + size]].reshape(*shape, values.shape[1])
            at += size

    def merged(self, row_grads: Sequence[Float32]) -> Float32:
        """Return the gradient of each id's output, from the gradients of its occurrences."""
        dim = self.outputs.values.shape[1]
        merged = np.zeros((len(self.question.ids), dim), np.float32)
        given = np.concatenate([row_grads[site].reshape(-1, dim) for site in self.sites])
        np.add.at(merged, self.places, given)
        return merged


class TowerResults:
    """The outputs of towers for a minibatch, as `ComputedRows`.

    rows: The outputs of each site of a tower, by place among all sites.
    """

    def __init__(
        self, servers: AsksTowers, towers: Sequence[Tower], asked: Sequence[_Asked]
    ) -> None:
        self.rows = dict(each for one in asked for each in one.rows())
        self._servers = servers
        self._towers = towers
        self._asked = asked

    def gradients(self, result: StepResult) -> tuple[Float32, Sequence[SiteGradient]]:
        """Return the gradients within the towers; see `ComputedRows.gradients`.

        Raises:
            NonFiniteLossError: A gradient within a tower is not finite.
        """
        if not self._asked:
            return result.dense_grad, []
        dense, sites = np.array(result.dense_grad), list[SiteGradient]()
        found = self._servers.backward(
            [(one.question, one.outputs, one.merged(result.row_grads)) for one in self._asked]
        )
        for one, gradients in zip(self._asked, found, strict=True):
            tower, at = self._towers[one.question.tower], 0
            _check_finite(tower, gradients)
            for part in tower.dense:
                size = part.stop - part.start
                dense[part] += gradients.dense[at : at + size]
                at += size
            sites += gradients.sites
        return dense, sites


class TowerRows:
    """The outputs of towers on model servers, as a `RowSource`."""

    def __init__(self, servers: AsksTowers, towers: Sequence[Tower]) -> None:
        self._servers = servers
        self._towers = towers
        self._num_tables = 0

    def declare(self, model: ModelDescription) -> None:
        """Get to know the model: tower k is number `len(model.tables) + k`.

        Raises:
            ModelError: The model keeps statistics of ids.
        """
        if any(table.statistics for table in model.tables):
            raise ModelError(
                "the model keeps statistics of ids (statistics=RowStatistics(...)), which count "
                "labels, and with --num_model_servers towers know none: expected one of the two"
            )
        self._num_tables = len(model.tables)

    def compute(self, sites: Sequence[Site], training: bool, dense: Float32 | None) -> TowerResults:
        """Ask each tower that is looked up, once for each id; see `RowSource.compute`."""
        questions, places_of = list[Question](), list[tuple[Sequence[int], Int64]]()
        for number, tower in enumerate(self._towers):
            own = [at for at, (table, _) in enumerate(sites) if table == self._num_tables + number]
            if not own:
                continue
            flat = np.concatenate([sites[at][1].ravel() for at in own])
            unique, inverse = np.unique(flat, return_inverse=True)
            brought = None if dense is None else dense_part(tower, dense)
            questions.append(Question(number, unique, training, brought))
            places_of.append((own, inverse.ravel()))
        answers = self._servers.forward(questions) if questions else ()
        asked = [
            _Asked(question, answer, own, [sites[at][1].shape for at in own], places)
            for question, answer, (own, places) in zip(questions, answers, places_of, strict=True)
        ]
        return TowerResults(self._servers, self._towers, asked)


def dense_part(tower: Tower, dense: Float32) -> Float32:
    """Return the dense parameters of a tower, one after the other."""
    parts = [dense[part] for part in tower.dense]
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


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
            "--num_model_servers: expected a model in Keras on TensorFlow, or in PyTorch, with a "
            "part in elasticdl.layers.Remote; leave the flag out"
        )
    return trainer

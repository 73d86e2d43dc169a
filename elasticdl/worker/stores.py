"""Parameters that live in stores: on ps replicas, or in this process."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import TypeVar

import numpy as np

from elasticdl._core import PsClient, Pulled
from elasticdl.backends.base import (
    Float32,
    Int64,
    Minibatch,
    ModelDescription,
    StatisticsSpec,
    StepResult,
    Trainer,
)
from elasticdl.errors import NotDeclaredError
from elasticdl.job import Lease
from elasticdl.worker.parameters import (
    Committed,
    ComputedMinibatch,
    Parameters,
    PendingPull,
    Step,
)
from elasticdl.worker.route import Route

log = logging.getLogger(__name__)
T = TypeVar("T")


class StoreExchange:
    """A worker's exchange with the stores: rows, and dense parameters unless they are elsewhere.

    A replica that was lost before any checkpoint comes back empty. Whoever meets it declares the
    model to it again, with the values that were declared at first, and repeats the call.

    client: Reads whole tables too. route: Where the replicas are.
    """

    def __init__(
        self,
        client: PsClient,
        trainer: Trainer,
        route: Route | None = None,
        get_model_steps: int = 1,
        minibatches_per_task: int = 1,
    ) -> None:
        self._minibatches_per_task = minibatches_per_task
        self._statistics: Sequence[StatisticsSpec | None] = ()  # by site
        self.client = client
        self._trainer = trainer
        self.route = route or Route()
        self._tables: Sequence[int] = ()
        self._named_sites: Sequence[int] = ()
        self._declare: Callable[[], None] = lambda: None
        self._get_model_steps = get_model_steps
        self._steps_since_dense = 0
        self._dense_of: Pulled | None = None  # the last training pull that brought them

    def declare(self, model: ModelDescription) -> None:
        """Declare the trainer's model and initial values to every replica.

        Raises:
            ModelMismatchError: Another worker, or the checkpoint, has a different model.
        """
        self._tables = self._trainer.id_sites()
        self._named_sites = [
            site
            for site, table in enumerate(self._tables)
            if table < len(model.tables) and model.tables[table].keep_names
        ]
        self._statistics = [
            model.tables[table].statistics if table < len(model.tables) else None
            for table in self._tables
        ]
        # Of a model that is described without them, somebody else holds them.
        dense, state = (
            values.copy() if described else np.zeros(0, np.float32)
            for values, described in zip(
                self._trainer.initial_values(), (model.dense, model.state), strict=True
            )
        )
        given = list(self._trainer.given_rows())
        self._declare = partial(self.client.declare, json.dumps(asdict(model)), dense, state, given)
        self._declare()

    def start_index(self, lease: Lease) -> int:
        """Fence off older leases at every replica; the one that has applied the least decides.

        Raises:
            StaleLeaseError: A newer lease of the task has begun.
        """
        return self._declared(lambda: self.client.begin_task(lease.task.id, lease.number))

    def end_task(self, lease: Lease) -> None:
        """Let go of what was pulled and never pushed, if their synchrony makes anybody wait."""
        if self._named_sites:
            self._declared(lambda: self.client.name_keys([]))
        self.client.end_task(lease.task.id, lease.number)

    def pull(self, ids: Sequence[Int64], step: Step | None = None) -> Pulled:
        """Pull rows and vectors, one frame to each replica."""
        sites = self._sites(ids)
        if step is None:
            return self.look_up(sites, training=False)
        if self._steps_since_dense == 0:
            self._dense_of = None
        self._steps_since_dense = (self._steps_since_dense + 1) % self._get_model_steps
        minibatch, earlier = _numbers(step), self._dense_of
        pulled = self._declared(
            lambda: self.client.pull(sites, training=True, step=minibatch, vectors_of=earlier)
        )
        self._dense_of = pulled if self._get_model_steps > 1 else None
        return pulled

    def _sites(self, ids: Sequence[Int64]) -> list[tuple[int, Int64]]:
        return list(zip(self._tables, ids, strict=True)) if ids else []

    def look_up(self, sites: Sequence[tuple[int, Int64]], training: bool) -> Pulled:
        """Pull the rows for (table, ids) of each site, and the vectors."""
        return self._declared(lambda: self.client.pull(sites, training))

    def with_dense(self, pulled: Pulled, dense: Float32) -> Pulled:
        """Return a pull with what is computed of it elsewhere: here there is nothing.

        Args:
            pulled: The rows.
            dense: The dense parameters, which somebody else holds.
        """
        return pulled

    def completed(self, pulled: Pulled, result: StepResult) -> StepResult:
        """Return gradients with those that are computed elsewhere, of which here are none.

        Before the dense ones are handed in to somebody else; `push` is for the rows then.
        """
        return result

    def name(self, minibatch: Minibatch, ids: Sequence[Int64]) -> None:
        """Before a push: send the replicas the strings of the ids that they do not have yet."""
        if not self._named_sites:
            return
        names = self._trainer.names(minibatch, self._named_sites)
        sites = [
            (self._tables[site], ids[site], strings)
            for site, strings in zip(self._named_sites, names, strict=True)
        ]
        self._declared(lambda: self.client.name_keys(sites))

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
        """Push gradients, one frame to each replica; what is pending is pulled with it if it can.

        Raises:
            StaleLeaseError: The task has been given to somebody else.
            GapError: A replica has lost minibatches before this one.
            StaleParametersError: The parameters are too old; nothing has changed.
        """
        push = (
            pulled,
            self._row_grads(result, lease, index),
            result.dense_grad,
            result.state_delta,
            learning_rate,
            lease.task.id,
            lease.number,
            index,
            num_records,
        )
        # Vectors that are used for several steps are not pulled each time.
        if pending is None or self._get_model_steps > 1:
            return Committed(*self._declared(lambda: self.client.push(*push)))
        sites, step = self._sites(pending.ids), _numbers(pending.step)
        version, staleness, brought = self._declared(
            lambda: self.client.push_pull(*push, sites=sites, step=step)
        )
        pending.parameters = None if brought is None else Parameters(brought)
        return Committed(version, staleness)

    def push_several(
        self,
        minibatches: Sequence[ComputedMinibatch],
        learning_rate: float,
        lease: Lease,
        index: int,
    ) -> Committed:
        """Push the sum of the gradients of minibatches that follow each other, as one update.

        Args:
            minibatches: One after the other.
            learning_rate: Of the update.
            lease: Theirs.
            index: The number of the first one.

        Raises:
            StaleLeaseError: The task has been given to somebody else.
            GapError: A replica has lost minibatches before these, or has only some of them.
        """
        steps = []
        for at, each in enumerate(minibatches):
            assert each.given.of_stores is not None
            result = each.result
            row_grads = self._row_grads(result, lease, index + at)
            gradients = (row_grads, result.dense_grad, result.state_delta)
            steps.append((each.given.of_stores, *gradients, each.num_records))
        push = (steps, learning_rate, lease.task.id, lease.number, index)
        return Committed(*self._declared(lambda: self.client.push_several(*push)))

    def _row_grads(self, result: StepResult, lease: Lease, index: int) -> Sequence[Float32]:
        """Return what is pushed of each site: what statistics count has its period behind it."""
        if not any(self._statistics):
            return result.row_grads
        step = lease.place * self._minibatches_per_task + index
        return [
            amounts if of_site is None else _with_period(amounts, of_site.period(step))
            for amounts, of_site in zip(result.row_grads, self._statistics, strict=True)
        ]

    def skip(self, lease: Lease, index: int) -> None:
        """Advance every replica past the minibatch; raises what `push` does."""
        self._declared(lambda: self.client.skip(lease.task.id, lease.number, index))

    def expire(self) -> None:
        """Have every replica remove the rows that have come to their end."""
        self._declared(lambda: self.client.expire(int(time.time())))

    def _declared(self, call: Callable[[], T]) -> T:
        while True:
            try:
                return call()
            except NotDeclaredError:
                log.info("a ps replica came back empty: the model is declared to it again")
                self._declare()


def _with_period(amounts: Float32, period: int) -> Float32:
    periods = np.full((*amounts.shape[:-1], 1), period, np.float32)
    return np.concatenate([amounts, periods], -1)


def _numbers(step: Step) -> tuple[int, int, int]:
    return step.lease.task.id, step.lease.number, step.index

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
    KeepsNames,
    Minibatch,
    ModelDescription,
    StepResult,
    Trainer,
)
from elasticdl.errors import NotDeclaredError
from elasticdl.job import Lease
from elasticdl.layers.row_rules import StatisticsSpec
from elasticdl.worker.parameters import (
    Committed,
    ComputedMinibatch,
    Parameters,
    PendingPull,
    Step,
)
from elasticdl.worker.route import Route
from elasticdl.worker.row_source import Site

log = logging.getLogger(__name__)
T = TypeVar("T")


class StoreExchange:
    """A worker's exchange with the stores: rows, and dense parameters unless a ring has them.

    A replica that was lost before any checkpoint comes back empty. A worker that meets it declares
    the model again, with the first initial values, and repeats the call.

    client: Reads whole tables too.
    route: The addresses of the replicas.
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
        self._tables: Sequence[int] = ()  # of each site; beyond `_num_tables`: of a row source
        self._num_tables = 0
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
        self._tables, self._num_tables = self._trainer.id_sites(), len(model.tables)
        self._named_sites = [
            site
            for site, table in enumerate(self._tables)
            if table < len(model.tables) and model.tables[table].keep_names
        ]
        self._statistics = [
            model.tables[table].statistics if table < len(model.tables) else None
            for table in self._tables
        ]
        # If the model is described without dense parameters, another holder has them.
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
        """Fence off older leases at every replica; return the lowest minibatch that one needs.

        Raises:
            StaleLeaseError: A newer lease of the task has begun.
        """
        return self._declared(lambda: self.client.begin_task(lease.task.id, lease.fence))

    def settle_task(self, lease: Lease) -> None:
        """Have every replica hear of all minibatches of a lease that were pushed.

        Raises:
            StaleLeaseError: Another worker has the task.
            GapError: A replica has lost minibatches of the task.
        """
        self._declared(lambda: self.client.settle_task(lease.task.id, lease.fence))

    def end_task(self, lease: Lease) -> None:
        """Drop what was pulled and not pushed, if other workers wait for it."""
        if self._named_sites:
            self._declared(lambda: self.client.name_keys([]))
        self.client.end_task(lease.task.id, lease.fence)

    def pull(self, ids: Sequence[Int64], step: Step | None = None) -> Pulled:
        """Pull rows and vectors, with one frame to each replica."""
        sites = self.sites(ids)
        if step is None:
            return self.look_up(sites, training=False)
        sites = self._own(sites)
        minibatch, earlier = _numbers(step), self._dense_for(1)
        pulled = self._declared(
            lambda: self.client.pull(sites, training=True, step=minibatch, vectors_of=earlier)
        )
        self._dense_of = pulled if self._get_model_steps > 1 else None
        return pulled

    def pull_several(self, ids: Sequence[Sequence[Int64]], first: Step) -> list[Pulled]:
        """Pull for training steps that follow each other, with one frame to each replica.

        An id that several of them have is pulled once. A step computes on the rows as they were
        pulled: the worker does not apply its own gradients to them, as it has no optimizer's slots.
        """
        sites = [site for each in ids for site in self._own(self.sites(each))]
        minibatch, earlier, count = _numbers(first), self._dense_for(len(ids)), len(ids)
        pulled = self._declared(
            lambda: self.client.pull_several(sites, count, step=minibatch, vectors_of=earlier)
        )
        self._dense_of = pulled[0] if self._get_model_steps > 1 else None
        return pulled

    def _dense_for(self, num_steps: int) -> Pulled | None:
        """Return the pull whose vectors the next steps use; None: they are to be pulled."""
        earlier = self._dense_of if self._steps_since_dense else None
        used = self._steps_since_dense + num_steps
        self._steps_since_dense = used if used < self._get_model_steps else 0
        return earlier

    def sites(self, ids: Sequence[Int64]) -> list[Site]:
        """Return the (table, ids) of each site, those of row sources too."""
        return list(zip(self._tables, ids, strict=True)) if ids else []

    def _own(self, sites: Sequence[Site]) -> list[Site]:
        return [site for site in sites if site[0] < self._num_tables]

    def look_up(self, sites: Sequence[Site], training: bool) -> Pulled:
        """Pull the rows for (table, ids) of each site of a table, and the vectors."""
        own = self._own(sites)
        return self._declared(lambda: self.client.pull(own, training))

    def with_sites(self, pulled: Pulled, sites: Sequence[Site]) -> Pulled:
        """Return a pull with other sites, as far as a push of their gradients needs it."""
        return self._declared(lambda: self.client.with_sites(pulled, sites))

    def name(self, minibatch: Minibatch, ids: Sequence[Int64]) -> None:
        """Send the replicas the strings of ids that they lack; called before a push."""
        if not self._named_sites:
            return
        assert isinstance(self._trainer, KeepsNames), "it has described such tables"
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
        """Push gradients, with one frame to each replica; a pending pull goes with them if it can.

        Raises:
            StaleLeaseError: Another worker has the task.
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
            lease.fence,
            index,
            num_records,
        )
        # Vectors that are used for several steps are not pulled with each push.
        if pending is None or self._get_model_steps > 1:
            return Committed(*self._declared(lambda: self.client.push(*push)))
        sites = self._own(self.sites(pending.ids))
        step = _numbers(pending.step)
        version, staleness, brought = self._declared(
            lambda: self.client.push_pull(*push, sites=sites, step=step)
        )
        if brought is not None:
            pending.parameters = Parameters(brought, sites=sites)
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
            learning_rate: The learning rate of the update.
            lease: The lease of the minibatches.
            index: The number of the first one.

        Raises:
            StaleLeaseError: Another worker has the task.
            GapError: A replica has lost minibatches before these, or has only some of them.
        """
        steps = self._computed(minibatches, lease, index)
        push = (steps, learning_rate, lease.task.id, lease.fence, index)
        return Committed(*self._declared(lambda: self.client.push_several(*push)))

    def push_each(
        self,
        minibatches: Sequence[ComputedMinibatch],
        learning_rates: Sequence[float],
        lease: Lease,
        index: int,
    ) -> list[Committed]:
        """Push the gradients of minibatches that follow each other, with one frame to each replica.

        Each is an update of its own.

        Args:
            minibatches: One after the other.
            learning_rates: The learning rate of each.
            lease: The lease of the minibatches.
            index: The number of the first one.

        Raises:
            StaleLeaseError: Another worker has the task.
            GapError: A replica has lost minibatches before one of these.
        """
        steps = self._computed(minibatches, lease, index)
        push = (steps, learning_rates, lease.task.id, lease.fence, index)
        pushed = self._declared(lambda: self.client.push_each(*push))
        return [Committed(*each) for each in pushed]

    def _computed(
        self, minibatches: Sequence[ComputedMinibatch], lease: Lease, index: int
    ) -> list[tuple[Pulled, Sequence[Float32], Float32, Float32, int]]:
        """Return of each minibatch its pull, its gradients and its records, as the client asks."""
        steps = []
        for at, each in enumerate(minibatches):
            result = each.result
            row_grads = self._row_grads(result, lease, index + at)
            gradients = (row_grads, result.dense_grad, result.state_delta)
            steps.append((each.given.stored, *gradients, each.num_records))
        return steps

    def _row_grads(self, result: StepResult, lease: Lease, index: int) -> Sequence[Float32]:
        """Return the gradients to push for each site; amounts for statistics get their period."""
        if not any(self._statistics):
            return result.row_grads
        step = lease.place * self._minibatches_per_task + index
        return [
            amounts if of_site is None else _with_period(amounts, of_site.period(step))
            for amounts, of_site in zip(result.row_grads, self._statistics, strict=True)
        ]

    def skip(self, lease: Lease, index: int) -> None:
        """Move every replica past the minibatch; raises what `push` raises."""
        self._declared(lambda: self.client.skip(lease.task.id, lease.fence, index))

    def expire(self) -> None:
        """Have every replica remove its expired rows."""
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
    return step.lease.task.id, step.lease.fence, step.index

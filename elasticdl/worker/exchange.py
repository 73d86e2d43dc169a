"""Where parameters come from and where a gradient goes."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from elasticdl._core import PsClient, Pulled
from elasticdl.backends.base import (
    Float32,
    Int64,
    Minibatch,
    ModelDescription,
    StepResult,
    Trainer,
)
from elasticdl.checkpoints.exports import write_tables
from elasticdl.config import CheckpointSection
from elasticdl.errors import NotDeclaredError
from elasticdl.job import Lease
from elasticdl.worker.route import Route

log = logging.getLogger(__name__)
T = TypeVar("T")

_REACH_SECONDS = 60.0


class Parameters(Protocol):
    """What one pull brought: all that a step computes on.

    rows: for each id site, shape `ids.shape + (dim,)`. dense, state: flat vectors.
    """

    @property
    def rows(self) -> list[Float32]:
        """See the class."""
        ...

    @property
    def dense(self) -> Float32:
        """See the class."""
        ...

    @property
    def state(self) -> Float32:
        """See the class."""
        ...

    @property
    def version(self) -> int:
        """See the class."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """One minibatch of one lease."""

    lease: Lease
    index: int


@dataclass(slots=True)
class PendingPull:
    """The pull of a step that has to wait for the push before it.

    parameters: Set by that push if they came with its answer; if not, they are to be pulled.
    """

    ids: Sequence[Int64]
    step: Step
    parameters: Parameters | None = None


class ParameterSource(Protocol):
    """Where the parameters of a step come from.

    A holder that is lost and comes back is waited for; see docs/designs/ps-recovery.md.
    """

    @property
    def generation(self) -> int:
        """Which `PsRoute` is followed; the same before and after reads: none met a successor."""
        ...

    def reach(self, generation: int) -> None:
        """Wait until a route at least this new is followed."""
        ...

    def pull(self, ids: Sequence[Int64], step: Step | None = None) -> Parameters:
        """Fetch parameters for a minibatch, given the ids of each site.

        Args:
            ids: For each id site, of any shape.
            step: The training step that will push a gradient of them, or call `end_task`.
        """
        ...


class Exchange(ParameterSource, Protocol):
    """What training asks of those who hold the parameters."""

    def declare(self, model: ModelDescription) -> None:
        """Agree with the other workers on the model; the first one's initial values count.

        Raises:
            ModelMismatchError: Another worker, or the checkpoint, has a different model.
        """
        ...

    def start_index(self, lease: Lease) -> int:
        """Fence off older leases of the task; return the minibatch at which to go on.

        Raises:
            StaleLeaseError: A newer lease of the task has begun.
        """
        ...

    def ends_at(self, lease: Lease, end: int) -> None:
        """Say how many minibatches a task has, before the last one is pushed or skipped.

        Of deterministic jobs alone.
        """
        ...

    def end_task(self, lease: Lease) -> None:
        """Let go of what a lease pulled and never pushed; nobody waits for it any more."""
        ...

    def name(self, minibatch: Minibatch, ids: Sequence[Int64]) -> None:
        """Say of which strings the ids are made, where that is kept; before each push."""
        ...

    def push(
        self,
        pulled: Parameters,
        result: StepResult,
        learning_rate: float,
        lease: Lease,
        index: int,
        num_records: int,
        pending: PendingPull | None = None,
    ) -> Committed:
        """Hand in the gradients of one minibatch, exactly once.

        What is pending may be pulled with it; that saves a round trip.

        Raises:
            StaleLeaseError: The task has been given to somebody else.
            GapError: A holder has lost minibatches before this one.
            StaleParametersError: The parameters are too old; nothing has changed.
        """
        ...

    def skip(self, lease: Lease, index: int) -> None:
        """Leave a minibatch out for good; raises what `push` does."""
        ...

    def when_settled(self, lease: Lease, end: int, tell: Callable[[bool], None]) -> None:
        """Call a function once all that was pushed so far cannot be lost with this worker alone.

        In the order of the calls, perhaps from another thread. It is told whether the first `end`
        minibatches of the task are there.
        """
        ...

    def settle(self) -> None:
        """Return when all functions given to `when_settled` have been called."""
        ...

    def out_of_work(self, is_out_of_work: bool) -> None:
        """Say whether the master has no task for this worker just now; after each answer of it."""
        ...

    def rest(self) -> None:
        """Nothing more will be pushed but what is computed: nobody need wait for this worker."""
        ...

    def scan(self, table: int) -> Iterator[tuple[Int64, Float32]]:
        """Read a whole table, for the export."""
        ...

    def expire(self) -> None:
        """Have the rows removed that have come to their end, before they are exported."""
        ...

    def export_tables(self, directory: Path, settings: CheckpointSection, attempt: int) -> None:
        """Have the tables written as Parquet; a new attempt begins anew.

        Raises:
            CheckpointError: A file cannot be written.
        """
        ...


@dataclass(frozen=True, slots=True)
class Training:
    """What a worker of a training job has beside."""

    trainer: Trainer
    exchange: Exchange


@dataclass(frozen=True, slots=True)
class Committed:
    """An update that every holder of parameters has applied."""

    version: int
    staleness: int


class StoreExchange:
    """Parameters live in stores: on ps replicas, or in this process.

    A replica that was lost before any checkpoint comes back empty. Whoever meets it declares the
    model to it again, with the values that were declared at first, and repeats the call.
    """

    def __init__(
        self,
        client: PsClient,
        trainer: Trainer,
        route: Route | None = None,
        get_model_steps: int = 1,
    ) -> None:
        self._client = client
        self._trainer = trainer
        self._route = route or Route()
        self._tables: Sequence[int] = ()
        self._named_sites: Sequence[int] = ()
        self._declare: Callable[[], None] = lambda: None
        self._get_model_steps = get_model_steps
        self._steps_since_dense = 0
        self._dense_of: Pulled | None = None  # the last training pull that brought them

    @property
    def generation(self) -> int:
        """Which route the client follows."""
        return self._route.generation

    def reach(self, generation: int) -> None:
        """Wait for the heartbeat to learn of the route, which takes no longer than a few beats."""
        self._route.reach(generation, _REACH_SECONDS)

    def declare(self, model: ModelDescription) -> None:
        """Declare the trainer's model and initial values to every replica."""
        self._tables = self._trainer.id_sites()
        self._named_sites = [
            site for site, table in enumerate(self._tables) if model.tables[table].keep_names
        ]
        # Of a model that is described without them, somebody else holds them.
        dense, state = (
            values.copy() if described else np.zeros(0, np.float32)
            for values, described in zip(
                self._trainer.initial_values(), (model.dense, model.state), strict=True
            )
        )
        given = list(self._trainer.given_rows())
        self._declare = partial(
            self._client.declare, json.dumps(asdict(model)), dense, state, given
        )
        self._declare()

    def start_index(self, lease: Lease) -> int:
        """Ask every replica; the one that has applied the least decides."""
        return self._declared(lambda: self._client.begin_task(lease.task.id, lease.number))

    def ends_at(self, lease: Lease, end: int) -> None:
        """Stores need not know."""

    def end_task(self, lease: Lease) -> None:
        """Tell the replicas, if their synchrony makes anybody wait."""
        if self._named_sites:
            self._declared(lambda: self._client.name_keys([]))
        self._client.end_task(lease.task.id, lease.number)

    def pull(self, ids: Sequence[Int64], step: Step | None = None) -> Parameters:
        """Pull rows and vectors, one frame to each replica."""
        sites = self._sites(ids)
        if step is None:
            return self.look_up(sites, training=False)
        if self._steps_since_dense == 0:
            self._dense_of = None
        self._steps_since_dense = (self._steps_since_dense + 1) % self._get_model_steps
        minibatch, earlier = _numbers(step), self._dense_of
        pulled = self._declared(
            lambda: self._client.pull(sites, training=True, step=minibatch, vectors_of=earlier)
        )
        self._dense_of = pulled if self._get_model_steps > 1 else None
        return pulled

    def _sites(self, ids: Sequence[Int64]) -> list[tuple[int, Int64]]:
        return list(zip(self._tables, ids, strict=True)) if ids else []

    def look_up(self, sites: Sequence[tuple[int, Int64]], training: bool) -> Pulled:
        """Pull the rows for (table, ids) of each site, and the vectors."""
        return self._declared(lambda: self._client.pull(sites, training))

    def name(self, minibatch: Minibatch, ids: Sequence[Int64]) -> None:
        """Send the replicas the strings that they do not have yet."""
        if not self._named_sites:
            return
        names = self._trainer.names(minibatch, self._named_sites)
        sites = [
            (self._tables[site], ids[site], strings)
            for site, strings in zip(self._named_sites, names, strict=True)
        ]
        self._declared(lambda: self._client.name_keys(sites))

    def push(
        self,
        pulled: Parameters,
        result: StepResult,
        learning_rate: float,
        lease: Lease,
        index: int,
        num_records: int,
        pending: PendingPull | None = None,
    ) -> Committed:
        """Push gradients, one frame to each replica."""
        assert isinstance(pulled, Pulled)
        push = (
            pulled,
            result.row_grads,
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
            return Committed(*self._declared(lambda: self._client.push(*push)))
        sites, step = self._sites(pending.ids), _numbers(pending.step)
        version, staleness, pending.parameters = self._declared(
            lambda: self._client.push_pull(*push, sites=sites, step=step)
        )
        return Committed(version, staleness)

    def skip(self, lease: Lease, index: int) -> None:
        """Advance every replica past the minibatch."""
        self._declared(lambda: self._client.skip(lease.task.id, lease.number, index))

    def when_settled(self, lease: Lease, end: int, tell: Callable[[bool], None]) -> None:
        """Call it: what is pushed is on the replicas."""
        tell(True)

    def settle(self) -> None:
        """Nothing is under way."""

    def out_of_work(self, is_out_of_work: bool) -> None:
        """Nobody waits for anything here."""

    def rest(self) -> None:
        """Replicas are told with `end_task`."""

    def scan(self, table: int) -> Iterator[tuple[Int64, Float32]]:
        """Read the rows of every replica."""
        return self._client.scan(table)

    def expire(self) -> None:
        """Ask every replica."""
        self._declared(lambda: self._client.expire(int(time.time())))

    def export_tables(self, directory: Path, settings: CheckpointSection, attempt: int) -> None:
        """Have every replica write its part, all at the same time."""
        num_rows = write_tables(
            directory,
            self._client.export,
            settings.export_threshold,
            settings.export_since_version,
            attempt,
        )
        log.info("%d rows are exported to %s", num_rows, directory)

    def _declared(self, call: Callable[[], T]) -> T:
        while True:
            try:
                return call()
            except NotDeclaredError:
                log.info("a ps replica came back empty: the model is declared to it again")
                self._declare()


def _numbers(step: Step) -> tuple[int, int, int]:
    return step.lease.task.id, step.lease.number, step.index


@dataclass(frozen=True, slots=True)
class NoParameters:
    """A saved model brings its own parameters."""

    rows: list[Float32]
    dense: Float32
    state: Float32
    version: int = 0


class NoParameterSource:
    """For evaluation and prediction with an exported model, which holds its own parameters."""

    generation = 0

    def reach(self, generation: int) -> None:
        """Nobody needs to be reached."""

    def pull(self, ids: Sequence[Int64], step: Step | None = None) -> Parameters:
        """Return empty parameters."""
        empty = np.zeros(0, np.float32)
        return NoParameters(rows=[], dense=empty, state=empty)

"""Where parameters come from and where a gradient goes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

import numpy as np

from elasticdl._core import PsClient, Pulled
from elasticdl.backends.base import Backend, Float32, Int64, ModelDescription, StepResult
from elasticdl.errors import ModelError
from elasticdl.job import Lease


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


class Exchange(Protocol):
    """What the loop asks of those who hold the parameters."""

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

    def end_task(self, lease: Lease) -> None:
        """Let go of what a lease pulled and never pushed; nobody waits for it any more."""
        ...

    def pull(self, ids: Sequence[Int64], step: Step | None = None) -> Parameters:
        """Fetch parameters for a minibatch, given the ids of each site.

        Args:
            ids: For each id site, of any shape.
            step: The training step that will push a gradient of them, or call `end_task`.
        """
        ...

    def push(
        self,
        pulled: Parameters,
        result: StepResult,
        learning_rate: float,
        lease: Lease,
        index: int,
        num_records: int,
    ) -> Committed:
        """Hand in the gradients of one minibatch, exactly once.

        Raises:
            StaleLeaseError: The task has been given to somebody else.
            StaleParametersError: The parameters are too old; nothing has changed.
        """
        ...

    def skip(self, lease: Lease, index: int) -> None:
        """Leave a minibatch out for good."""
        ...

    def scan(self, table: int) -> Iterator[tuple[Int64, Float32]]:
        """Read a whole table, for the export."""
        ...


@dataclass(frozen=True, slots=True)
class Committed:
    """An update that every holder of parameters has applied."""

    version: int
    staleness: int


class StoreExchange:
    """Parameters live in stores: on ps replicas, or in this process."""

    def __init__(self, client: PsClient, backend: Backend, get_model_steps: int = 1) -> None:
        self._client = client
        self._backend = backend
        self._tables: Sequence[int] = ()
        self._get_model_steps = get_model_steps
        self._steps_since_dense = 0
        self._dense_of: Pulled | None = None  # the last training pull that brought them

    def declare(self, model: ModelDescription) -> None:
        """Declare the backend's model and initial values to every replica."""
        self._tables = self._backend.id_sites()
        dense, state = self._backend.initial_values()
        self._client.declare(json.dumps(asdict(model)), dense, state)

    def start_index(self, lease: Lease) -> int:
        """Ask every replica; the one that has applied the least decides."""
        return self._client.begin_task(lease.task.id, lease.number)

    def end_task(self, lease: Lease) -> None:
        """Tell the replicas, if their synchrony makes anybody wait."""
        self._client.end_task(lease.task.id, lease.number)

    def pull(self, ids: Sequence[Int64], step: Step | None = None) -> Parameters:
        """Pull rows and vectors, one frame to each replica."""
        sites = list(zip(self._tables, ids, strict=True)) if ids else []
        if step is None:
            return self._client.pull(sites, training=False)
        if self._steps_since_dense == 0:
            self._dense_of = None
        self._steps_since_dense = (self._steps_since_dense + 1) % self._get_model_steps
        minibatch = (step.lease.task.id, step.lease.number, step.index)
        pulled = self._client.pull(sites, training=True, step=minibatch, vectors_of=self._dense_of)
        self._dense_of = pulled if self._get_model_steps > 1 else None
        return pulled

    def push(
        self,
        pulled: Parameters,
        result: StepResult,
        learning_rate: float,
        lease: Lease,
        index: int,
        num_records: int,
    ) -> Committed:
        """Push gradients, one frame to each replica."""
        assert isinstance(pulled, Pulled)
        version, staleness = self._client.push(
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
        return Committed(version, staleness)

    def skip(self, lease: Lease, index: int) -> None:
        """Advance every replica past the minibatch."""
        self._client.skip(lease.task.id, lease.number, index)

    def scan(self, table: int) -> Iterator[tuple[Int64, Float32]]:
        """Read the rows of every replica."""
        return self._client.scan(table)


@dataclass(frozen=True, slots=True)
class NoParameters:
    """A saved model brings its own parameters."""

    rows: list[Float32]
    dense: Float32
    state: Float32
    version: int = 0


class SavedModelExchange:
    """For evaluation and prediction with an exported model, which holds its own parameters."""

    def declare(self, model: ModelDescription) -> None:
        """Nobody needs to know."""

    def start_index(self, lease: Lease) -> int:
        """Refuse: nothing is trained."""
        raise self._no_training()

    def end_task(self, lease: Lease) -> None:
        """Nobody waits."""

    def pull(self, ids: Sequence[Int64], step: Step | None = None) -> Parameters:
        """Return empty parameters."""
        empty = np.zeros(0, np.float32)
        return NoParameters(rows=[], dense=empty, state=empty)

    def push(
        self,
        pulled: Parameters,
        result: StepResult,
        learning_rate: float,
        lease: Lease,
        index: int,
        num_records: int,
    ) -> Committed:
        """Refuse: nothing is trained."""
        raise self._no_training()

    def skip(self, lease: Lease, index: int) -> None:
        """Refuse: nothing is trained."""
        raise self._no_training()

    def scan(self, table: int) -> Iterator[tuple[Int64, Float32]]:
        """Refuse: nothing is trained."""
        raise self._no_training()

    def _no_training(self) -> ModelError:
        return ModelError("an exported model can be evaluated or predict; it cannot be trained on")

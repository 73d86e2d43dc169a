"""The half of a worker's parameters that it has itself: their gradients go around a ring.

A package brings it (`rings`). In other jobs the stores have all parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from elasticdl._core import PsClient
from elasticdl.backends.base import ModelDescription, StepResult, Trainer
from elasticdl.job import Lease
from elasticdl.rpc.client import GrpcMasterClient
from elasticdl.runtime.process import ProcessArguments
from elasticdl.worker.parameters import OwnParameters, Step


class WorldPart(Protocol):
    """A worker's part in a world, as other threads of the worker use it."""

    @property
    def generation(self) -> int:
        """The generation of this worker's parameters, as the master counts restorations."""
        ...

    @property
    def error(self) -> BaseException | None:
        """The error that ended the member, if it did not end in order."""
        ...

    def settle(self) -> None:
        """Return when all functions given to `when_settled` have been called."""
        ...

    def rest(self) -> None:
        """Offer the minibatches that are handed in, but make no other rank wait for this one."""
        ...

    def out_of_work(self, is_out_of_work: bool) -> None:
        """Note whether the master has no task for this worker; called after each of its answers."""
        ...

    def world_ends(self, world_id: int) -> None:
        """Note that the master ends a world at its next step; 0: it ends none."""
        ...

    def place(self) -> tuple[int, int] | None:
        """Return rank and size of the newest world of this worker; None before the first one."""
        ...

    def when_forming(self, tell: Callable[[bool], None]) -> None:
        """Call `tell` with whether there is no world: now, and whenever that changes."""
        ...

    def leave(self) -> None:
        """Take no further part; tell the others at the next round, if it comes soon."""
        ...


class Ring(Protocol):
    """A worker's exchange with the others of a world; `Exchange` says when what is called."""

    @property
    def member(self) -> WorldPart:
        """The worker's part in a world."""
        ...

    @property
    def client(self) -> PsClient:
        """The client that reads the parameters; waits until this worker has them."""
        ...

    def reach(self, generation: int) -> None:
        """Wait until the parameters are of this generation."""
        ...

    def declare(self, model: ModelDescription) -> None:
        """Say what the model is, and join the other workers."""
        ...

    def start_index(self, lease: Lease) -> int:
        """Return how far the task has come; others wait for this worker until `end_task`."""
        ...

    def ends_at(self, lease: Lease, end: int) -> None:
        """The next update need not wait for more of the task than so many minibatches."""
        ...

    def end_task(self, lease: Lease) -> None:
        """Others need not wait for this worker because of this lease any more."""
        ...

    def when_settled(self, lease: Lease, end: int, tell: Callable[[bool], None]) -> None:
        """Call `tell` when all ranks have made the updates that this one has made."""
        ...

    def pull(self, step: Step | None = None) -> OwnParameters:
        """Return the parameters that are here.

        Raises:
            OutOfTurnError: A deterministic job cannot go on before others have the task.
            UnavailableError: This worker came too late to get any parameters.
        """
        ...

    def push(
        self,
        pulled: OwnParameters,
        result: StepResult,
        learning_rate: float,
        lease: Lease,
        index: int,
        num_records: int,
    ) -> int:
        """Hand in the gradients of one minibatch; return the version that an update has made.

        Raises:
            StaleLeaseError: Another worker has the task.
            GapError: Minibatches before this one are missing, or this worker is in no world.
            StaleParametersError: The parameters are not the newest.
        """
        ...

    def skip(self, lease: Lease, index: int) -> None:
        """Leave a minibatch out for good, on all ranks; raises what `push` does."""
        ...

    def hand_over(self, folder: Path) -> int:
        """Write the parameters for a successor; return their version."""
        ...

    def close(self) -> None:
        """Leave the world, and serve the parameters no longer."""
        ...


MakeRing = Callable[[Trainer, ProcessArguments, GrpcMasterClient], Ring]
"""Returns the ring of a worker, which is in no world before a model is declared."""

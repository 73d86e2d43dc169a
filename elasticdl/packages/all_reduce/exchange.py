"""Parameters that each worker has: they are here, and their gradients go around a ring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from elasticdl._core import PsClient
from elasticdl.backends.base import ModelDescription, StepResult, Trainer
from elasticdl.errors import (
    GapError,
    OutOfTurnError,
    StaleLeaseError,
    StaleParametersError,
    UnavailableError,
)
from elasticdl.job import Lease
from elasticdl.packages.all_reduce.collective import rounds
from elasticdl.packages.all_reduce.collective.rounds import OfferOutcome
from elasticdl.packages.all_reduce.replica import Replica
from elasticdl.packages.all_reduce.ring_member import Outdated, OutOfTurn, OutOfWorld, RingMember
from elasticdl.packages.all_reduce.round_protocol import Proposal
from elasticdl.worker.parameters import OwnParameters, Step


class RingExchange:
    """A worker's exchange with the others of a world, which all make the same updates.

    A step is computed on the newest parameters, or computed again. `push` returns when an update
    has counted the minibatch, in whatever world. The master is told of the end of a task when all
    others have made that update too: what is done stays done as long as one worker lives.

    replica: The parameters. member: This worker's part in a world.
    """

    def __init__(self, trainer: Trainer, replica: Replica, member: RingMember) -> None:
        self._trainer = trainer
        self.replica = replica
        self.member = member
        self._ends: dict[tuple[int, int], int] = {}  # of a deterministic job, by task and lease

    def reach(self, generation: int) -> None:
        """Wait until they are of this generation."""
        try:
            self.member.wait_for_generation(generation)
        except OutOfWorld:
            raise StaleLeaseError("this worker is in no world") from None

    def declare(self, model: ModelDescription) -> None:
        """Say what the model is, and go to the rendezvous."""
        dense, state = (values.copy() for values in self._trainer.initial_values())
        self.replica.declare(model, dense, state)
        self.member.start()

    def start_index(self, lease: Lease) -> int:
        """Return how far the task has come; others wait for this worker until `end_task`."""
        try:
            return self.member.begin(lease.task.id, lease.number)
        except OutOfWorld:
            # The worker that gets this task next begins where the parameters stand, so nothing is
            # lost.
            raise StaleLeaseError(f"task {lease.task.id}: this worker is in no world") from None

    def ends_at(self, lease: Lease, end: int) -> None:
        """The next update need not wait for more of the task than so many minibatches."""
        self._ends[lease.task.id, lease.number] = end

    def end_task(self, lease: Lease) -> None:
        """Others need not wait for this worker because of this lease any more."""
        self._ends.pop((lease.task.id, lease.number), None)
        self.member.end(lease.task.id, lease.number)

    def when_settled(self, lease: Lease, end: int, tell: Callable[[bool], None]) -> None:
        """Call `tell` when the next round has begun: then all ranks have made the same updates.

        In a deterministic job a task that is given back is reported at once: the update waits for
        it.
        """
        if not end and self.replica.updates is not None:
            tell(True)
            return
        self.member.when_settled(lease.task.id, end, tell)

    def pull(self, step: Step | None = None) -> OwnParameters:
        """Return the parameters that are here.

        Raises:
            OutOfTurnError: A deterministic job cannot go on before others have the task.
        """
        self._wait_for_parameters()
        if step is not None:
            self._wait_for_turn(step.lease)
        replica = self.replica
        lineage = replica.lineage
        pulled = replica.client.pull([], training=step is not None)
        return OwnParameters(pulled.dense, pulled.state, pulled.version, lineage)

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
        proposal = Proposal(
            self._named(lease, index, num_records),
            learning_rate,
            (result.dense_grad, result.state_delta),
            pulled.lineage,
            pulled.version,
        )
        self._hand_in(proposal, lease)
        return self.replica.version

    def skip(self, lease: Lease, index: int) -> None:
        """Leave a minibatch out for good, on all ranks; raises what `push` does."""
        minibatch = replace(self._named(lease, index, 0), is_skipped=True)
        self._hand_in(Proposal(minibatch, 0.0, None, 0, 0), lease)

    def _named(self, lease: Lease, index: int, num_records: int) -> rounds.OfferedMinibatch:
        task_id, number = lease.task.id, lease.number
        ends_task = self._ends.get((task_id, number)) == index + 1
        return rounds.OfferedMinibatch(task_id, number, index, num_records, ends_task=ends_task)

    def _hand_in(self, proposal: Proposal, lease: Lease) -> None:
        where = f"minibatch {proposal.minibatch.index} of task {lease.task.id}"
        try:
            verdict = self.member.hand_in(proposal)
        except Outdated:
            raise StaleParametersError(f"{where} was computed on older parameters") from None
        except OutOfWorld:
            raise GapError(f"{where}: this worker is in no world any more") from None
        if verdict is OfferOutcome.STALE:
            raise StaleLeaseError(f"{where}: somebody else has the task")
        if verdict is OfferOutcome.GAP:
            raise GapError(f"{where}: minibatches before it are missing")

    @property
    def client(self) -> PsClient:
        """Returns the client that reads the parameters, once this worker has them."""
        self._wait_for_parameters()
        return self.replica.client

    def _wait_for_parameters(self) -> None:
        try:
            self.member.wait_for_parameters()
        except OutOfWorld:
            raise UnavailableError("this worker is in no world any more") from None

    def _wait_for_turn(self, lease: Lease) -> None:
        try:
            self.member.wait_for_turn(lease.task.id)
        except OutOfTurn:
            raise OutOfTurnError(
                f"task {lease.task.id} is of a later update, and nobody has what this one lacks"
            ) from None
        except OutOfWorld:
            raise UnavailableError("this worker is in no world any more") from None

    def hand_over(self, folder: Path) -> int:
        """Write the parameters for a successor; return their version.

        Raises:
            CheckpointError: A file cannot be written.
        """
        return self.replica.hand_over(folder)

    def close(self) -> None:
        """Leave the world, and serve the parameters no longer."""
        self.member.leave()
        self.replica.close()

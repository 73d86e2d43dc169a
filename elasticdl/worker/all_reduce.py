"""`Exchange` of a job of all-reduce: parameters are here, gradients go around the ring."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from elasticdl.backends.base import Float32, Int64, Minibatch, ModelDescription, StepResult, Trainer
from elasticdl.checkpoints.exports import write_tables
from elasticdl.collective import rounds
from elasticdl.collective.rounds import Verdict
from elasticdl.config import CheckpointSection
from elasticdl.errors import (
    GapError,
    OutOfTurnError,
    StaleLeaseError,
    StaleParametersError,
    UnavailableError,
)
from elasticdl.job import Lease
from elasticdl.worker.exchange import Committed, Parameters, PendingPull, Step
from elasticdl.worker.replica import Replica
from elasticdl.worker.ring_member import Outdated, OutOfTurn, OutOfWorld, RingMember
from elasticdl.worker.round_protocol import Handing


@dataclass(frozen=True, slots=True)
class OwnParameters:
    """`Parameters` of this worker; course and version say which."""

    rows: list[Float32]
    dense: Float32
    state: Float32
    version: int
    course: int


class RingExchange:
    """Parameters live in each worker of a world, and all make the same updates.

    A step is computed on the newest parameters, or computed again. `push` returns when an update
    has counted the minibatch, in whatever world. The master is told of the end of a task when all
    others have made that update too: what is done stays done as long as one worker lives.
    """

    def __init__(self, trainer: Trainer, replica: Replica, member: RingMember) -> None:
        self._trainer = trainer
        self._replica = replica
        self._member = member
        self._ends: dict[tuple[int, int], int] = {}  # of a deterministic job, by task and lease

    @property
    def generation(self) -> int:
        """How often all workers were lost, up to the parameters that are here."""
        return self._member.generation

    def reach(self, generation: int) -> None:
        """Wait until they are of this generation."""
        try:
            self._member.wait_for_generation(generation)
        except OutOfWorld:
            raise StaleLeaseError("this worker is in no world") from None

    def declare(self, model: ModelDescription) -> None:
        """Say what the model is, and go to the rendezvous."""
        dense, state = (values.copy() for values in self._trainer.initial_values())
        self._replica.declare(model, dense, state)
        self._member.start()

    def start_index(self, lease: Lease) -> int:
        """Return how far the task has come; others wait for this worker until `end_task`."""
        try:
            return self._member.begin(lease.task.id, lease.number)
        except OutOfWorld:
            # Whoever has the task when this process has ended goes on where it stands.
            raise StaleLeaseError(f"task {lease.task.id}: this worker is in no world") from None

    def ends_at(self, lease: Lease, end: int) -> None:
        """The next update need not wait for more of the task than so many minibatches."""
        self._ends[lease.task.id, lease.number] = end

    def end_task(self, lease: Lease) -> None:
        """Others need not wait for this worker because of this lease any more."""
        self._ends.pop((lease.task.id, lease.number), None)
        self._member.end(lease.task.id, lease.number)

    def when_settled(self, lease: Lease, end: int, tell: Callable[[bool], None]) -> None:
        """Call it when the next round has begun: then all ranks have made the same updates.

        In a deterministic job a task that is given back is so at once: the update waits for it.
        """
        if not end and self._replica.updates is not None:
            tell(True)
            return
        self._member.when_settled(lease.task.id, end, tell)

    def settle(self) -> None:
        """Wait for these calls."""
        self._member.settle()

    def place(self) -> tuple[int, int] | None:
        """Return rank and size of the newest world; None before there is one."""
        return self._member.place()

    def out_of_work(self, is_out_of_work: bool) -> None:
        """An update of `--global_batch_size` is made of fewer records once all ranks are."""
        self._member.out_of_work(is_out_of_work)

    def rest(self) -> None:
        """Others go on without this worker, unless it has something in hand."""
        self._member.rest()

    def pull(self, ids: Sequence[Int64], step: Step | None = None) -> OwnParameters:
        """Return the parameters that are here; there are no rows.

        Raises:
            OutOfTurnError: A deterministic job cannot go on before others have the task.
        """
        self._wait_for_parameters()
        if step is not None:
            self._wait_for_turn(step.lease)
        replica = self._replica
        course = replica.course
        pulled = replica.client.pull([], training=step is not None)
        return OwnParameters([], pulled.dense, pulled.state, pulled.version, course)

    def name(self, minibatch: Minibatch, ids: Sequence[Int64]) -> None:
        """There are no ids."""

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
        """Hand in the gradients of one minibatch; returns when they are part of an update."""
        assert isinstance(pulled, OwnParameters)
        handing = Handing(
            self._named(lease, index, num_records),
            learning_rate,
            (result.dense_grad, result.state_delta),
            pulled.course,
            pulled.version,
        )
        self._hand_in(handing, lease)
        return Committed(self._replica.version, 0)

    def skip(self, lease: Lease, index: int) -> None:
        """Leave a minibatch out for good, on all ranks."""
        minibatch = replace(self._named(lease, index, 0), is_skipped=True)
        self._hand_in(Handing(minibatch, 0.0, None, 0, 0), lease)

    def _named(self, lease: Lease, index: int, num_records: int) -> rounds.Minibatch:
        task_id, number = lease.task.id, lease.number
        ends_task = self._ends.get((task_id, number)) == index + 1
        return rounds.Minibatch(task_id, number, index, num_records, ends_task=ends_task)

    def _hand_in(self, handing: Handing, lease: Lease) -> None:
        where = f"minibatch {handing.minibatch.index} of task {lease.task.id}"
        try:
            verdict = self._member.hand_in(handing)
        except Outdated:
            raise StaleParametersError(f"{where} was computed on older parameters") from None
        except OutOfWorld:
            raise GapError(f"{where}: this worker is in no world any more") from None
        if verdict is Verdict.STALE:
            raise StaleLeaseError(f"{where}: somebody else has the task")
        if verdict is Verdict.GAP:
            raise GapError(f"{where}: minibatches before it are missing")

    def look_up(self, sites: Sequence[tuple[int, Int64]], training: bool) -> Parameters:
        """Return the parameters that are here."""
        return self.pull([])

    def scan(self, table: int) -> Iterator[tuple[Int64, Float32]]:
        """There are no tables."""
        return iter(())

    def expire(self) -> None:
        """There are no rows."""

    def export_tables(self, directory: Path, settings: CheckpointSection, attempt: int) -> None:
        """Write that there are none."""
        self._wait_for_parameters()
        write_tables(
            directory,
            self._replica.client.export,
            settings.export_threshold,
            settings.export_since_version,
            attempt,
        )

    def _wait_for_parameters(self) -> None:
        try:
            self._member.wait_for_parameters()
        except OutOfWorld:
            raise UnavailableError("this worker is in no world any more") from None

    def _wait_for_turn(self, lease: Lease) -> None:
        try:
            self._member.wait_for_turn(lease.task.id)
        except OutOfTurn:
            raise OutOfTurnError(
                f"task {lease.task.id} is of a later update, and nobody has what this one lacks"
            ) from None
        except OutOfWorld:
            raise UnavailableError("this worker is in no world any more") from None

    def world_ends(self, world_id: int) -> None:
        """The master says that a world is to end at the next step; 0: none is."""
        self._member.world_ends(world_id)

    def when_forming(self, tell: Callable[[bool], None]) -> None:
        """Have a function called when this worker comes to be without a world, and has one again.

        It is called at once too, and from the ring's thread.
        """
        self._member.when_forming(tell)

    @property
    def error(self) -> BaseException | None:
        """Why this worker can take part no longer, if it cannot; it may wait for work meanwhile."""
        return self._member.error

    def leave(self) -> None:
        """Leave the world; the parameters stay, and are served."""
        self._member.leave()

    def hand_over(self, folder: Path) -> int:
        """Write the parameters for a successor, after `leave`; return their version.

        Raises:
            CheckpointError: A file cannot be written.
        """
        return self._replica.hand_over(folder)

    def close(self) -> None:
        """Leave the world, and serve the parameters no longer."""
        self._member.leave()
        self._replica.close()

"""The interface to the master for workers: over gRPC, or in the same process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from elasticdl.job import (
    DataCheckTurn,
    Finished,
    HeartbeatAnswer,
    Lease,
    Position,
    Progress,
    Role,
    ServedProgram,
    TaskReport,
    Usage,
    Wait,
)


class MasterClient(Protocol):
    """The calls of a worker to the master, over gRPC or in the same process.

    `elasticdl.rpc.client.GrpcMasterClient` has the further calls of separate processes.

    The calls go over gRPC (`elasticdl.rpc`), or directly in the same process
    (`--distribution_strategy=Local`). Every call blocks until the master has answered. An
    unreachable master is called again after growing pauses, and never looks like "no more tasks".
    """

    def register_worker(self, worker_id: int, pid: int) -> float:
        """Announce a worker process that will ask for tasks.

        Returns the seconds between its heartbeats.
        """
        ...

    def has_callbacks(self, worker_id: int) -> None:
        """Tell the master that the model file has callbacks that the job must call."""
        ...

    def needs_program(self, worker_id: int, key: str) -> bool:
        """Return whether this worker must write its model's program for serving.

        Args:
            worker_id: The worker that calls.
            key: The key of its model, which differs from the keys of other models.
        """
        ...

    def has_program(self, worker_id: int, key: str, program: ServedProgram) -> None:
        """Tell the master that the model's program is written, and under which name."""
        ...

    def data_check_turn(self, worker_id: int) -> DataCheckTurn:
        """Return whether this worker must look at the data before it asks for tasks."""
        ...

    def data_checked(self, worker_id: int, lines: Sequence[str], error: str = "") -> None:
        """Tell the master what the look at the data found; an error ends the job."""
        ...

    def lease(
        self, worker_id: int, is_patient: bool = False, reports: Sequence[TaskReport] = ()
    ) -> Lease | Wait | Finished:
        """End leases, then ask for a task.

        Args:
            worker_id: The worker that calls.
            is_patient: If there is no task, the answer may come when there is one, or after some
                seconds.
            reports: The ends of leases; as in `report`.
        """
        ...

    def report(self, worker_id: int, report: TaskReport) -> None:
        """End a lease. A report of an old lease is ignored by the master."""
        ...

    def announce(self, worker_id: int, position: Position) -> None:
        """Tell the master the worker's position in a task, in case the worker dies there."""
        ...

    def heartbeat(
        self,
        role: Role,
        index: int,
        progress: Progress | None = None,
        generation: int = -1,
        usage: Usage | None = None,
        interval_seconds: float = 0.0,
    ) -> HeartbeatAnswer:
        """Tell the master that the process is alive.

        Args:
            role: The role of the process.
            index: The index of the process in its role.
            progress: The progress of a worker.
            generation: The generation of the `PsRoute` that the process has; -1 asks for none.
            usage: How the process spent its time.
            interval_seconds: The seconds until its next heartbeat, unless the answer says another
                number; 0: the job's setting.
        """
        ...

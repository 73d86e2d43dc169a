"""The seam to the master, for those who train for it: over gRPC, or in the same process."""

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
    """What a worker asks of the master, wherever they are.

    What processes of their own ask beside is in `elasticdl.rpc.client.GrpcMasterClient`.

    Over gRPC (`elasticdl.rpc`), or directly in the same process (`--distribution_strategy=Local`).
    Every call blocks until the master has answered: an unreachable master is retried with
    back-off and never looks like "no more tasks".
    """

    def register_worker(self, worker_id: int, pid: int) -> float:
        """Announce a worker process that is about to ask for tasks.

        Returns how often it is to send a heartbeat, in seconds.
        """
        ...

    def has_callbacks(self, worker_id: int) -> None:
        """Say that the model file has callbacks that the job is to call."""
        ...

    def needs_program(self, worker_id: int, key: str) -> bool:
        """Return whether this worker is to write its model's program for those who serve.

        Args:
            worker_id: Who asks.
            key: What tells its model from others.
        """
        ...

    def has_program(self, worker_id: int, key: str, program: ServedProgram) -> None:
        """Say that the model's program is written, and what versions name it by."""
        ...

    def data_check_turn(self, worker_id: int) -> DataCheckTurn:
        """Return whether this worker is to look at the data before it asks for tasks."""
        ...

    def data_checked(self, worker_id: int, lines: Sequence[str], error: str = "") -> None:
        """Say what the look at the data found; an error ends the job."""
        ...

    def lease(self, worker_id: int, is_patient: bool = False) -> Lease | Wait | Finished:
        """Ask for a task.

        Args:
            worker_id: Who asks.
            is_patient: If there is none, the answer may come when there is one, or after some
                seconds.
        """
        ...

    def report(self, worker_id: int, report: TaskReport) -> None:
        """End a lease. A report of an old lease is ignored by the master."""
        ...

    def announce(self, worker_id: int, position: Position) -> None:
        """Say where in a task the worker is, before it may die of it."""
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
        """Say that the process is alive.

        Args:
            role: The role of the process.
            index: Its number among those.
            progress: The progress of a worker.
            generation: The generation of the `PsRoute` that it knows; -1 asks for none.
            usage: What it did with its time.
            interval_seconds: After which it sends the next one, if it is not told another; 0: as
                the job is set up.
        """
        ...

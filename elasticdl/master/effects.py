"""Calls from the master to the holders of the parameters."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from elasticdl.checkpoints.dense import DENSE
from elasticdl.checkpoints.hand_over import write_hand_over
from elasticdl.errors import UnavailableError
from elasticdl.job import PsRoute, Role, TaskAudit
from elasticdl.locations import Location
from elasticdl.master.missing_tasks import Applied
from elasticdl.master.moves.mover import Mover
from elasticdl.master.parameters.proof import Replicas


class ReplicaClient(Protocol):
    """The methods of `elasticdl._core.PsClient` that the master uses."""

    def audit(self, first: int = 0) -> list[NDArray[np.int64]]:
        """Return task id, minibatches applied and records of every task, for each replica."""
        ...

    def expire(self, now_seconds: int) -> str:
        """Have every replica remove the rows that have come to their end."""
        ...

    def stats(self) -> str:
        """Return the counters of every replica, as JSON."""
        ...

    def checkpoint(self, directory: str) -> list[str]:
        """Have every replica write its files; return their manifest entries."""
        ...

    def export(self, request: str) -> list[str]:
        """Have every replica write its part of an export; return what each has written."""
        ...

    def move_step(self, replica: int, step: str) -> str:
        """Have one replica do a step of a move; both as JSON."""
        ...


class ReplicaAccess:
    """Speaks to the processes of one role that serve parameters. It connects when first asked.

    Calls block. For one thread at a time, but for `applied_by`.
    """

    def __init__(
        self,
        route: Callable[[], PsRoute],
        connect: Callable[[PsRoute, bool], ReplicaClient],
    ) -> None:
        """Take the function that returns the job's route, and the one that connects to a route.

        The second argument of `connect` says whether the route has all replicas of the job.
        """
        self._route = route
        self._connect = connect
        self._client: tuple[PsRoute, ReplicaClient] | None = None

    def applied_by(self, address: str) -> Applied:
        """Ask one process, which nobody else knows yet, what it has applied of each task."""
        (applied,) = self.connect(address).audit()
        return Applied(applied[:, 0], applied[:, 1])

    def reach(self) -> ReplicaClient:
        """Return a client of all these processes, at their present addresses.

        Raises:
            UnavailableError: One of the processes is gone.
        """
        route = self._route()
        if not all(route.addresses):
            raise UnavailableError("a ps replica is gone")
        # A connection belongs to processes and to a layout. After a loss or a move the route is
        # another one, and the old client would ask processes that are gone.
        if self._client is None or self._client[0] != route:
            self._client = (route, self._connect(route, True))
        return self._client[1]

    def connect(self, address: str) -> ReplicaClient:
        """Return a client of the one process at an address."""
        return self._connect(PsRoute(0, (address,)), False)


class JobAccess:
    """Calls to all processes that serve the parameters of a job (`ParameterAccess`).

    These are ps replicas, or rank 0 of the world, or both. If there are both, the ps replicas have
    the rows, and rank 0 has the dense parameters.
    """

    def __init__(self, by_role: Mapping[Role, ReplicaAccess]) -> None:
        """Take one access of each role, ps replicas first."""
        self._by_role = by_role

    def audit(self, first: int = 0) -> Replicas:
        """Ask each ps replica, and then rank 0, what it has applied of each task.

        They forget the tasks before `first`.
        """
        answers = [part.reach().audit(first) for part in self._by_role.values()]
        return audits([replica for answer in answers for replica in answer])

    def tally(self) -> dict[str, int]:
        """Ask each process how many updates its watermarks have refused; return the sums."""
        answers = [json.loads(part.reach().stats()) for part in self._by_role.values()]
        tallies = [replica["watermarks"] for replicas in answers for replica in replicas]
        return {name: sum(tally[name] for tally in tallies) for name in tallies[0]}

    def expire(self, now_seconds: int | None) -> str:
        """Have the holders of rows remove rows that have expired; say how many."""
        return expired_text(self._with_rows().expire(now_seconds or int(time.time())))

    def export(self, request: str) -> list[str]:
        """Have each holder of rows write its part of an export."""
        assert len(self._by_role) == 1, "settings refuse --export_dir in hybrid jobs"
        return self._with_rows().export(request)

    def checkpoint(self, directory: Location) -> list[str]:
        """Have each process write its files; beside ps replicas, rank 0 writes into a subfolder.

        Raises:
            CheckpointError: A file cannot be written.
        """
        self.write_dense(directory)
        return self._with_rows().checkpoint(str(directory))

    def write_dense(self, directory: Location) -> None:
        """Have rank 0 write what workers hold beside ps replicas, if they do.

        Raises:
            CheckpointError: A file cannot be written.
        """
        if len(self._by_role) > 1:
            dense = self._by_role[Role.WORKER].reach()

            def write(folder: str) -> str:
                (entry,) = dense.checkpoint(folder)
                return entry

            write_hand_over(directory / DENSE, write)

    def applied_by(self, address: str, role: Role) -> Applied:
        """Ask one process, which nobody else knows yet, what it has applied of each task."""
        return self._by_role[role].applied_by(address)

    def mover(self, limit: int | None) -> Mover | None:
        """Return the leader of moves to another number of ps replicas; None if there are none.

        Args:
            limit: Bytes of rows that each may hold; None: any.
        """
        part = self._by_role.get(Role.PS)
        return None if part is None else Mover(part.connect, limit)

    def _with_rows(self) -> ReplicaClient:
        # Ps replicas come first. In a job that has none, rank 0 has the rows too.
        return next(iter(self._by_role.values())).reach()


def audits(replicas: Sequence[NDArray[np.int64]]) -> Replicas:
    """Give names to what `PsClient.audit` returns."""
    return [
        [
            TaskAudit(*entry)
            for entry in zip(*(column.tolist() for column in replica.T), strict=True)
        ]
        for replica in replicas
    ]


def expired_text(answer: str) -> str:
    """Say what `PsClient.expire` answered; "" if nothing went."""
    tables = [table for replica in json.loads(answer) for table in replica]
    rows = sum(table["rows"] for table in tables)
    candidates = sum(table["candidates"] for table in tables)
    if not rows and not candidates:
        return ""
    return f"{rows} rows and {candidates} counts of ids without a row have expired"

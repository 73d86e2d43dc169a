"""How the master speaks to those who hold the parameters."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from elasticdl.checkpoints.dense import DENSE
from elasticdl.checkpoints.hand_over import write_hand_over
from elasticdl.errors import UnavailableError
from elasticdl.job import PsRoute, Role, TaskAudit
from elasticdl.locations import Location, parse
from elasticdl.master.lacks import Applied
from elasticdl.master.parameters.proof import Replicas


class ReplicaClient(Protocol):
    """What of `elasticdl._core.PsClient` the master uses."""

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


class ReplicaAccess:
    """The ps replicas, to speak to (`ParameterAccess`). Connects when first asked.

    Calls block. For one thread at a time, but for `applied_by`.
    """

    def __init__(
        self,
        route: Callable[[], PsRoute],
        connect: Callable[[Sequence[str], bool], ReplicaClient],
    ) -> None:
        """Given the route of the job, and what connects to addresses, all of them or some."""
        self._route = route
        self._connect = connect
        self._client: tuple[PsRoute, ReplicaClient] | None = None

    def audit(self, first: int = 0) -> Replicas:
        """Ask each replica what it has applied of each task; it forgets those before `first`."""
        return audits(self._reach().audit(first))

    def tally(self) -> dict[str, int]:
        """Ask each replica what its watermarks kept from being applied; return the sums."""
        tallies = [replica["watermarks"] for replica in json.loads(self._reach().stats())]
        return {name: sum(tally[name] for tally in tallies) for name in tallies[0]}

    def stats(self) -> str:
        """Ask each replica what it holds; as `PsClient.stats` returns it."""
        return self._reach().stats()

    def expire(self, now_seconds: int | None) -> str:
        """Have every replica remove the rows that have come to their end; say how many."""
        return expired_text(self._reach().expire(now_seconds or int(time.time())))

    def checkpoint(self, directory: Location) -> list[str]:
        """Have every replica write its files into a folder."""
        return self._reach().checkpoint(str(directory))

    def export(self, request: str) -> list[str]:
        """Have every replica write its part of an export."""
        return self._reach().export(request)

    def applied_by(self, address: str, role: Role) -> Applied:
        """Ask one process, which nobody else knows yet, what it has applied of each task."""
        (applied,) = self._connect([address], False).audit()
        return Applied(applied[:, 0], applied[:, 1])

    def _reach(self) -> ReplicaClient:
        route = self._route()
        if not all(route.addresses):
            raise UnavailableError("a ps replica is gone")
        if self._client is None or self._client[0] != route:
            self._client = (route, self._connect(route.addresses, True))
        return self._client[1]


class HybridAccess:
    """Ps replicas and, for the dense parameters, rank 0 of the world (`ParameterAccess`)."""

    def __init__(self, rows: ReplicaAccess, dense: ReplicaAccess) -> None:
        self._rows = rows
        self._dense = dense

    def audit(self, first: int = 0) -> Replicas:
        """Ask each ps replica, and then rank 0, what it has applied of each task."""
        return [*self._rows.audit(first), *self._dense.audit(first)]

    def tally(self) -> dict[str, int]:
        """Return the sums over all of them."""
        dense = self._dense.tally()
        return {name: count + dense[name] for name, count in self._rows.tally().items()}

    def expire(self, now_seconds: int | None) -> str:
        """Have rows removed that have come to their end; say how many."""
        return self._rows.expire(now_seconds)

    def export(self, request: str) -> list[str]:
        """Refuse: nobody holds all parameters."""
        raise AssertionError("settings refuse --export_dir in hybrid jobs")

    def checkpoint(self, directory: Location) -> list[str]:
        """Have the dense parameters written into a folder of a folder, and the rows beside it.

        Raises:
            CheckpointError: A file cannot be written.
        """

        def write(folder: str) -> str:
            (entry,) = self._dense.checkpoint(parse(folder))
            return entry

        write_hand_over(directory / DENSE, write)
        return self._rows.checkpoint(directory)

    def applied_by(self, address: str, role: Role) -> Applied:
        """Ask one process, which nobody else knows yet, what it has applied of each task."""
        access = self._dense if role is Role.WORKER else self._rows
        return access.applied_by(address, role)


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

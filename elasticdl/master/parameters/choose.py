"""Which holder a job's parameters have."""

from __future__ import annotations

from collections.abc import Callable

from elasticdl.config import JobConfig
from elasticdl.master.actions import Action
from elasticdl.master.history import JobHistory
from elasticdl.master.journal import Journal
from elasticdl.master.ledger import Ledger
from elasticdl.master.membership import Membership
from elasticdl.master.parameters.holder import Holder
from elasticdl.master.parameters.hybrid import HybridHolder
from elasticdl.master.parameters.local import LocalStore
from elasticdl.master.parameters.replicas import PsReplicas
from elasticdl.master.parameters.requests import Parts, Requests
from elasticdl.master.parameters.worlds import WorkerWorlds
from elasticdl.master.progress import Meter
from elasticdl.master.tasks import JobTasks


def make_holder(
    config: JobConfig,
    tasks: JobTasks,
    journal: Journal,
    history: JobHistory,
    members: Membership,
    ledger: Ledger,
    meter: Meter,
    act: Callable[[Action], None],
) -> Holder:
    """Return the part of the master that decides about whoever holds the parameters."""

    def make_requests(parts: Parts) -> Requests:
        return Requests(config, tasks, journal, history, ledger, meter, parts, act)

    if config.has_worlds and config.num_ps:
        return HybridHolder(config, journal, members, ledger, history, make_requests, act)
    if config.has_worlds:
        return WorkerWorlds(config, journal, members, ledger, history, make_requests, act)
    if not config.num_ps:
        return LocalStore(make_requests)
    return PsReplicas(config, journal, members, ledger, history, make_requests, act)

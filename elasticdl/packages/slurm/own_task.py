"""Finds the task of Slurm that this process is in, its node, and why it is asked to end."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from enum import Enum

from elasticdl.errors import LaunchError
from elasticdl.packages.slurm import commands
from elasticdl.packages.slurm.commands import SlurmTask
from elasticdl.packages.slurm.roster import Occupied
from elasticdl.runtime.addresses import is_loopback

HOST = "$(SLURM_NODE)"
"""Stands for the address of the node where a process of the job starts."""


class Request(Enum):
    """The meaning of a request to end a task."""

    RETURNS = "returns"  # Slurm has queued it again
    CANCELLED = "cancelled"  # it is to be gone for good
    NOTICE = "notice"  # its time is nearly over, or somebody has sent the signal


def own_task(environment: Mapping[str, str] = os.environ) -> Occupied:
    """Return the task that this process is in.

    Raises:
        LaunchError: The process is in no task.
    """
    job, index = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    name = f"{job}_{index}" if job and index else environment.get("SLURM_JOB_ID")
    if not name:
        raise LaunchError("expected to be started by Slurm, found no SLURM_JOB_ID")
    return Occupied(name, int(environment.get("SLURM_RESTART_COUNT", "0")))


def meaning(own: Occupied, found: SlurmTask | None) -> Request:
    """Return why this task is asked to end, from its state in Slurm at that time."""
    if found is None:
        return Request.CANCELLED
    if found.num_restarts > own.num_restarts or found.is_waiting:
        return Request.RETURNS
    return Request.NOTICE if found.state in ("R", "S") else Request.CANCELLED


def why_asked(own: Occupied, seconds: float) -> Request:
    """Ask Slurm why this task is asked to end; Slurm may be away for so many seconds.

    Raises:
        LaunchError: Slurm does not answer.
    """
    return meaning(own, commands.until_answered(commands.own_tasks, seconds).get(own.task))


def address() -> str:
    """Return the address under which other nodes reach this one."""
    node = os.environ.get("SLURMD_NODENAME", "")
    try:
        name = commands.address_of_node(node) if node else socket.gethostname()
    except LaunchError:  # Slurm does not say now
        name = socket.gethostname()
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return name
    # Processes listen at 0.0.0.0, so IPv4 comes first.
    hosts = [str(each[4][0]) for each in sorted(found, key=lambda each: each[0] != socket.AF_INET)]
    if is_loopback(name):
        return hosts[0]
    # A node may know itself by its loopback address alone; others find it by its name.
    return next((host for host in hosts if not is_loopback(host)), name)

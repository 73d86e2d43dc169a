"""Makes the options of `sbatch` for the tasks of a role."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from elasticdl.config import JobConfig
from elasticdl.errors import ConfigError, LaunchError
from elasticdl.job import Role
from elasticdl.packages.slurm import commands
from elasticdl.packages.slurm.roster import FOLDER
from elasticdl.packages.slurm.settings import SlurmSection
from elasticdl.settings.resources import asks_as, parse_quantity

NOTICE_SECONDS = 60
"""A task is asked to end so long before its time limit; Slurm may be a minute late."""

_MASTER_MODULE, _PLACE_MODULE = "elasticdl.packages.slurm", "elasticdl.packages.slurm.place"
_GPU = "nvidia.com/gpu"
_MIB = 1024**2


def words_of(config: JobConfig, role: Role, job_dir: Path, num_tasks: int = 0) -> list[str]:
    """Return the options of `sbatch` for an array of tasks; 0: a single task.

    Raises:
        ConfigError: Slurm has no such resource.
    """
    slurm = config.of(SlurmSection)
    output = str(job_dir / FOLDER / f"{role}.out").replace("%", "%%")  # for Slurm a sign of its own
    words = [
        f"--job-name={_task_name(config, role)}",
        f"--output={output}",
        "--open-mode=append",
        "--requeue",
        f"--signal=B:TERM@{NOTICE_SECONDS}",
        "--nodes=1",
        "--ntasks=1",
        *_resources(config.resources.requests(role), role),
    ]
    if num_tasks:
        words.append(f"--array=0-{num_tasks - 1}")
    for name, value in (
        ("partition", slurm.slurm_partition),
        ("account", slurm.slurm_account),
        ("time", slurm.slurm_time_limit),
    ):
        words += [f"--{name}={value}"] if value else []
    words += shlex.split(slurm.slurm_options)
    if role is Role.WORKER:
        words += shlex.split(slurm.slurm_worker_options)
    return words


def script_of(role: Role, job_dir: Path) -> str:
    """Return the script of the tasks of a role. It becomes the process that Slurm signals."""
    words = [sys.executable, "-P", "-u", "-m"]
    words += [_MASTER_MODULE] if role is Role.MASTER else [_PLACE_MODULE, "--role", str(role)]
    return f"#!/bin/sh\nexec {shlex.join([*words, '--job_dir', str(job_dir)])}\n"


def submit_master(config: JobConfig, job_dir: Path, seconds: float = 0.0) -> str:
    """Queue the task of the master; return the number of its job.

    A request without an answer may have been carried out. It is not repeated if the queue has a new
    task of a master with this name.

    Args:
        config: The job.
        job_dir: The job's folder.
        seconds: How long Slurm may be away.

    Raises:
        LaunchError: Slurm refuses the task, or is away.
    """
    name = _task_name(config, Role.MASTER)
    script, words = script_of(Role.MASTER, job_dir), words_of(config, Role.MASTER, job_dir)
    before: set[str] | None = None
    has_asked = False

    def ask() -> str:
        nonlocal before, has_asked
        found = commands.jobs_named(name)
        if before is None:
            before = found
        if has_asked and (new := found - before):
            return max(new, key=int)
        has_asked = True
        try:
            return commands.submit(script, words)
        except LaunchError:
            raise
        except BaseException:  # Ctrl-C: the task may be queued, and nobody would know of it
            if new := commands.jobs_named(name) - found:
                commands.cancel(new)
            raise

    return commands.until_answered(ask, seconds)


def _task_name(config: JobConfig, role: Role) -> str:
    return f"{config.cluster.job_name}-{role}"


def _resources(requests: Mapping[str, str], role: Role) -> list[str]:
    words = []
    for name, quantity in requests.items():
        amount = parse_quantity(quantity)
        if name == "cpu":
            words.append(f"--cpus-per-task={max(1, math.ceil(amount))}")
        elif name == "memory":
            words.append(f"--mem={math.ceil(amount / _MIB)}M")
        elif name == _GPU:
            words.append(f"--gpus-per-node={math.ceil(amount)}")
        else:
            raise ConfigError(
                f"--{asks_as(role)}_resource_request: {name} is of Kubernetes: expected cpu, "
                "memory and gpu on Slurm, and --slurm_options for all else"
            )
    return words

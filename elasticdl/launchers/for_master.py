"""The launcher that a master uses, as the settings of its job say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.config import JobConfig
from elasticdl.launchers.base import Launcher, OnEvent

if TYPE_CHECKING:
    from elasticdl.runtime.credentials.job_authority import JobAuthority


def make_launcher(
    config: JobConfig, job_dir: Path, authority: JobAuthority | None
) -> Callable[[OnEvent], Launcher]:
    """Return what makes the launcher, given whom to tell of processes.

    The authority, if the job has its own, makes the certificate of each process.
    """
    if config.is_on_kubernetes:
        from elasticdl.launchers.kubernetes import in_master

        return lambda on_event: in_master.make_launcher(config, on_event, authority)
    if config.is_on_slurm:
        from elasticdl.launchers.slurm.launcher import SlurmLauncher

        return lambda on_event: SlurmLauncher(config, on_event, job_dir, authority)
    if config.is_on_ray:
        from elasticdl.launchers.ray.launcher import RayLauncher

        return lambda on_event: RayLauncher(config, job_dir, on_event, authority)
    from elasticdl.launchers.process.launcher import ProcessLauncher

    return lambda on_event: ProcessLauncher(on_event, job_dir, authority)


def tell_end(config: JobConfig, job_dir: Path, code: int) -> None:
    """Tell whoever starts masters again that this one is about to end with an exit code."""
    if config.is_on_kubernetes:
        from elasticdl.launchers.kubernetes import in_master

        in_master.tell_end(config, job_dir, code)

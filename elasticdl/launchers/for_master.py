"""Makes the launcher of a master from the settings of its job."""

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
    """Return a function that makes the launcher, given the receiver of events.

    If the job has its own authority, the authority makes the certificate of each process.
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
    """Tell the starter of masters that this master is about to end with an exit code."""
    if config.is_on_kubernetes:
        from elasticdl.launchers.kubernetes import in_master

        in_master.tell_end(config, job_dir, code)

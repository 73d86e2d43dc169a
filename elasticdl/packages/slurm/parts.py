"""The parts of the launcher on Slurm."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.config import JobConfig
from elasticdl.launchers.base import Launcher, OnEvent, Submitter
from elasticdl.launchers.parts import LauncherParts

if TYPE_CHECKING:
    from elasticdl.runtime.credentials.job_authority import JobAuthority

_CORES_OF_TASK = "SLURM_CPUS_ON_NODE"


class _Parts(LauncherParts):
    def submitter(self) -> Submitter:
        from elasticdl.packages.slurm.submit import SlurmSubmitter

        return SlurmSubmitter()

    def launcher(
        self, config: JobConfig, job_dir: Path, on_event: OnEvent, authority: JobAuthority | None
    ) -> Launcher:
        from elasticdl.packages.slurm.launcher import SlurmLauncher

        return SlurmLauncher(config, on_event, job_dir, authority)

    def cores(self, config: JobConfig, usable: int) -> int:
        # Slurm may count processors, and bind nobody to them.
        return min(usable, int(os.environ.get(_CORES_OF_TASK, usable)))


PARTS = _Parts()

"""The parts of the launcher on a Ray cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.config import JobConfig
from elasticdl.job import Role
from elasticdl.launchers.base import Launcher, OnEvent, Submitter
from elasticdl.launchers.parts import LauncherParts
from elasticdl.settings.resources import parse_quantity

if TYPE_CHECKING:
    from elasticdl.runtime.credentials.job_authority import JobAuthority


class _Parts(LauncherParts):
    def submitter(self) -> Submitter:
        from elasticdl.packages.ray.job import RaySubmitter

        return RaySubmitter()

    def launcher(
        self, config: JobConfig, job_dir: Path, on_event: OnEvent, authority: JobAuthority | None
    ) -> Launcher:
        from elasticdl.packages.ray.launcher import RayLauncher

        return RayLauncher(config, job_dir, on_event, authority)

    def cores(self, config: JobConfig, usable: int) -> int:
        # Ray counts processors, and binds nobody to them.
        asked = config.resources.requests(Role.WORKER).get("cpu", "1")
        return min(usable, max(1, int(parse_quantity(asked))))


PARTS = _Parts()

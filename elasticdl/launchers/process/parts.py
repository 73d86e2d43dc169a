"""The parts of the launcher of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.config import JobConfig
from elasticdl.launchers.base import Launcher, OnEvent, Submitter
from elasticdl.launchers.parts import LauncherParts

if TYPE_CHECKING:
    from elasticdl.runtime.credentials.job_authority import JobAuthority


class _Parts(LauncherParts):
    def submitter(self) -> Submitter:
        from elasticdl.launchers.process.job import LocalSubmitter

        return LocalSubmitter()

    def launcher(
        self, config: JobConfig, job_dir: Path, on_event: OnEvent, authority: JobAuthority | None
    ) -> Launcher:
        from elasticdl.launchers.process.launcher import ProcessLauncher

        return ProcessLauncher(on_event, job_dir, authority)


PARTS = _Parts()

"""The parts of the launcher on Kubernetes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.config import JobConfig
from elasticdl.launchers.base import Launcher, OnEvent, Submitter
from elasticdl.launchers.parts import LauncherParts
from elasticdl.packages.kubernetes.settings import KubernetesSection

if TYPE_CHECKING:
    from elasticdl.runtime.credentials.job_authority import JobAuthority


class _Parts(LauncherParts):
    def submitter(self) -> Submitter:
        from elasticdl.packages.kubernetes.submit import KubernetesSubmitter

        return KubernetesSubmitter()

    def launcher(
        self, config: JobConfig, job_dir: Path, on_event: OnEvent, authority: JobAuthority | None
    ) -> Launcher:
        from elasticdl.packages.kubernetes import in_master

        return in_master.make_launcher(config, on_event, authority)

    def tell_end(self, config: JobConfig, job_dir: Path, code: int) -> None:
        from elasticdl.packages.kubernetes import in_master

        in_master.tell_end(config, job_dir, code)

    def notes(self, config: JobConfig) -> list[str]:
        from elasticdl.packages.kubernetes import settle

        return list(settle.notes(config))

    def sees_model_zoo(self, config: JobConfig) -> bool:
        return config.of(KubernetesSection).sends_model_zoo

    def dry_run(self, config: JobConfig) -> int:
        from elasticdl.packages.kubernetes.commands import dry_run

        return dry_run(config)

    def has_lasting_job_dir(self, config: JobConfig) -> bool:
        from elasticdl.packages.kubernetes import settle

        return settle.has_lasting_job_dir(config)


PARTS = _Parts()

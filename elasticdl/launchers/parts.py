"""What acts for a launcher: in the command, in the master, and in its other processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.config import JobConfig
from elasticdl.launchers.base import Launcher, OnEvent, Submitter

if TYPE_CHECKING:
    from elasticdl.runtime.credentials.job_authority import JobAuthority


class LauncherParts(ABC):
    """The parts of one launcher.

    `settings.launcher.LauncherFacts` names the object. Each method imports what it needs, because a
    process needs few of them.
    """

    @abstractmethod
    def submitter(self) -> Submitter:
        """Return what starts and finds jobs, for a command."""

    @abstractmethod
    def launcher(
        self, config: JobConfig, job_dir: Path, on_event: OnEvent, authority: JobAuthority | None
    ) -> Launcher:
        """Return what starts and watches processes, for the master.

        If the job has its own authority, the authority makes the certificate of each process.
        """

    def tell_end(self, config: JobConfig, job_dir: Path, code: int) -> None:
        """Tell the starter of masters that this master is about to end with an exit code."""
        return None

    def cores(self, config: JobConfig, usable: int) -> int:
        """Return the cores of a worker.

        Args:
            config: The job of the worker, which calls this.
            usable: The cores that its affinity and its cgroups leave it.
        """
        return usable

    def notes(self, config: JobConfig) -> list[str]:
        """Return what a user should know about the job before it runs, one sentence each."""
        return []

    def sees_model_zoo(self, config: JobConfig) -> bool:
        """Return whether the processes see the model folder of the machine of the command."""
        return True

    def dry_run(self, config: JobConfig) -> int:
        """Print what would be asked of the cluster for a job; return the exit code.

        This is called for jobs of other launchers too, if they have no `LauncherFacts.dry_run`.

        Raises:
            ElasticdlError: This launcher cannot run the job.
        """
        raise NotImplementedError

    def has_lasting_job_dir(self, config: JobConfig) -> bool:
        """Return whether the job's folder outlives its processes, and all of them see it."""
        return True

"""The processes of a job, started and stopped by a launcher."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.errors import LaunchError, is_of_storage
from elasticdl.job import Role
from elasticdl.launchers.base import Exited, Launcher, ProcessHandle, ProcessSpec
from elasticdl.runtime import process
from elasticdl.runtime.addresses import Listening

if TYPE_CHECKING:
    from elasticdl.runtime.credentials.job_authority import JobAuthority

log = logging.getLogger(__name__)

GRACE_SECONDS = 5.0
_AGAIN_SECONDS = 1.0  # between two tries, while a disk is full


class LaunchedProcesses:
    """`JobProcesses` of a launcher.

    Args:
        launcher: Starts and stops processes.
        job_dir: The folder of the job.
        address: The address of the master.
        exited: Takes the end of a process.
        authority: Makes certificates for the job's processes, if it has its own.
    """

    def __init__(
        self,
        launcher: Launcher,
        job_dir: Path,
        address: str,
        exited: Callable[[Exited], None],
        authority: JobAuthority | None,
    ) -> None:
        self._authority = authority
        self._launcher = launcher
        self._job_dir = job_dir
        self._address = address
        self._is_closed = threading.Event()
        self.exited = exited

    def start(self, role: Role, index: int) -> ProcessHandle:
        """Start a process; wait for a disk that is full."""
        tls_dir = self._authority.folder if self._authority is not None else None
        listening = self._launcher.listening
        while True:
            try:
                return self._start(role, index, listening, tls_dir)
            except LaunchError as error:
                if not is_of_storage(error) or self._is_closed.is_set():
                    raise
                log.warning("%s; it is tried again", error)
                self._is_closed.wait(_AGAIN_SECONDS)

    def close(self) -> None:
        """Wait for no disk any more."""
        self._is_closed.set()

    def _start(
        self, role: Role, index: int, listening: Listening, tls_dir: Path | None
    ) -> ProcessHandle:
        command = process.command(
            role, index, self._job_dir, self._address, listening, tls_dir=tls_dir
        )
        return self._launcher.start(ProcessSpec(role, index, command))

    def adopt(self, handle: ProcessHandle) -> None:
        """Watch a process that an earlier master has started."""
        self._launcher.adopt(handle)

    def stop(self, handle: ProcessHandle) -> None:
        """Ask a process to end."""
        self._launcher.stop(handle, GRACE_SECONDS)

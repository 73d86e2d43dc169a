"""`python -m elasticdl.packages.slurm.place`: a task of Slurm, which has room for one process.

The task takes a wanted process, runs it, and reports how it ended. With SIGTERM Slurm asks a task
to end. The task passes SIGTERM on, and the process hands over. With SIGINT, which a master sends,
the process is killed.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import signal
import subprocess
import time
from pathlib import Path

from elasticdl.errors import ElasticdlError, LaunchError
from elasticdl.job import Role
from elasticdl.launchers.base import Exited, ExitReason, ProcessHandle
from elasticdl.launchers.process.children import spawn
from elasticdl.launchers.process.exits import exited
from elasticdl.launchers.process.logs import log_path
from elasticdl.launchers.process.out_of_memory import OutOfMemoryKills
from elasticdl.launchers.process.temporary import TemporaryFolders
from elasticdl.launchers.signals import STOP_SIGNALS, Signals
from elasticdl.packages.slurm import commands
from elasticdl.packages.slurm.own_task import HOST, address, own_task
from elasticdl.packages.slurm.roster import FREE_SECONDS, Occupied, Roster, is_free_after
from elasticdl.runtime import open_files
from elasticdl.runtime.log_lines import log_as

_PATIENCE_SECONDS = 30.0  # until a node sees what another one has written
_LOOK_SECONDS = 0.5
_MASTER_SECONDS = 30.0  # how often to look whether the job has a master
_SILENT_SECONDS = 120.0  # after which Slurm is asked for it

_log = logging.getLogger(__name__)


def main() -> None:
    """Run one process of a job, if one is wanted."""
    open_files.raise_limit()
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--role", type=Role, required=True, help="of the process")
    parser.add_argument("--job_dir", type=Path, required=True, help="the job's folder")
    words = parser.parse_args()
    log_as("place")
    with Signals() as signals:
        try:
            code = SlurmPlace(words.job_dir, words.role, signals).run()
        except (ElasticdlError, OSError) as error:
            _log.error("%s", error)
            code = 1
    raise SystemExit(code)


class SlurmPlace:
    """Runs a task of Slurm from its begin to its end, in the main thread."""

    def __init__(self, job_dir: Path, role: Role, signals: Signals) -> None:
        self._job_dir = job_dir
        self._role = role
        self._signals = signals
        self._roster = Roster(job_dir)
        self._temporary = TemporaryFolders(job_dir, is_shared=True)
        self._ooms = OutOfMemoryKills()
        self._was_asked = False
        self._beat, self._heard = 0.0, time.monotonic()  # the master's last one, and when it came

    def run(self) -> int:
        """Run a wanted process, and another if that is killed; return the exit code.

        Raises:
            LaunchError: This process is in no task of Slurm.
            OSError: The job's folder cannot be used.
        """
        own = own_task()
        code, patience_seconds = 0, _PATIENCE_SECONDS
        while (taken := self._take(own, patience_seconds)) is not None:
            code, end = self._run(*taken)
            if self._was_asked or not is_free_after(end):
                return code
            patience_seconds = FREE_SECONDS
        _log.info("no %s is wanted", self._role.words)
        return code

    def _take(
        self, own: Occupied, patience_seconds: float
    ) -> tuple[ProcessHandle, list[str]] | None:
        deadline = time.monotonic() + patience_seconds
        while True:
            taken = self._roster.take(self._role, own)
            if taken is not None:
                return taken
            if time.monotonic() >= deadline or self._asked(_LOOK_SECONDS):
                return None

    def _run(self, handle: ProcessHandle, command: list[str]) -> tuple[int, Exited]:
        """Run a process, and report how it ended; return the exit code of the task, and the end."""
        log = log_path(self._job_dir, handle.role, handle.index)
        lifeline, write_end = os.pipe()
        here = address()
        try:
            full = [word.replace(HOST, here) for word in command]
            child = spawn(full, log, lifeline, self._temporary.make(handle.ref))
        except OSError as error:
            words = f"cannot start {command[0]}: {error}"
            end = Exited(handle, ExitReason.FAILED, None, words)
            self._roster.tell_end(end)
            return 1, end
        _log.info("%s runs as pid %d, log %s", handle.ref, child.pid, log)
        code = self._wait_for(child)
        for descriptor in (write_end, lifeline):  # the processes that it has started end too
            os.close(descriptor)
        self._temporary.remove(handle.ref)
        end = exited(handle, code, self._was_asked, self._ooms, log)
        _log.info("%s: %s (%s)", handle.ref, end.reason, code)
        self._roster.tell_end(end)
        return code if code >= 0 else 128 - code, end

    def _wait_for(self, child: subprocess.Popen[bytes]) -> int:
        look_at = time.monotonic() + _MASTER_SECONDS
        while (code := child.poll()) is None:
            numbers = self._asked(max(0.0, look_at - time.monotonic()))
            if signal.SIGINT in numbers:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
            elif numbers:
                child.send_signal(signal.SIGTERM)
            if time.monotonic() >= look_at:
                # Each place waits for another time, so that not all places of a job ask at once.
                look_at = time.monotonic() + _MASTER_SECONDS * random.uniform(1.0, 2.0)
                if self._is_orphan():
                    _log.error("the job has no master any more, and gets none")
                    child.kill()
        return code

    def _asked(self, seconds: float) -> set[signal.Signals]:
        """Wait for signals; return the signals that ask to end."""
        numbers = {number for number in self._signals.wait(seconds) if number in STOP_SIGNALS}
        self._was_asked = self._was_asked or bool(numbers)
        return numbers

    def _is_orphan(self) -> bool:
        """Return whether the Slurm job of the master has ended for good."""
        beat, now = self._roster.last_beat(), time.monotonic()
        if beat != self._beat:  # the clocks of the node and of the file system may differ
            self._beat, self._heard = beat, now
        if now - self._heard < _SILENT_SECONDS:
            return False
        master = self._roster.master()
        try:
            found = commands.own_tasks().get(master)
        except LaunchError as error:
            _log.warning("Slurm does not say whether the job has a master: %s", error)
            return False
        is_last = self._roster.master() == master
        return is_last and (found is None or found.has_ended)


if __name__ == "__main__":
    main()

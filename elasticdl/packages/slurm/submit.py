"""Starts jobs on Slurm, and finds jobs by their folders, for a command."""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path

from elasticdl.config import JobConfig
from elasticdl.errors import LaunchError
from elasticdl.job import Role
from elasticdl.launchers.base import SubmittedJob
from elasticdl.launchers.process import folder
from elasticdl.launchers.process.folder_job import FolderJob
from elasticdl.packages.slurm import commands
from elasticdl.packages.slurm.commands import SlurmTask
from elasticdl.packages.slurm.options import submit_master, words_of
from elasticdl.packages.slurm.roster import Roster
from elasticdl.runtime import process

_ASK_SECONDS = 3.0  # how often a command asks Slurm for the master's task
_LOOK_SECONDS = 0.2
_AWAY_SECONDS = 10.0  # that Slurm may be away when a command queues a job

_log = logging.getLogger(__name__)


class SlurmSubmitter:
    """`launchers.base.Submitter` of a Slurm cluster."""

    def submit(self, config: JobConfig, is_tied: bool) -> SubmittedJob:
        """Queue the task of the master. A job on a cluster is never tied to a command."""
        commands.own_tasks()  # makes no folder where there is no Slurm
        for role in Role:  # nor where it cannot be asked for what the job needs
            words_of(config, role, Path())
        with folder.prepared(config) as held:
            job_dir = held.job_dir
            roster = Roster(job_dir)
            roster.prepare()
            before = _MasterTask(job_dir)
            if not before.wait(0.0):
                raise LaunchError(
                    f"--job_dir={job_dir}: the job in this folder runs, or waits to: it is job "
                    f"{roster.master()} of Slurm; elasticdl attach {job_dir} shows it"
                )
            folder.clear(job_dir)
            (job_dir / process.LOG_FOLDER).mkdir(exist_ok=True)
            roster.write_master(submit_master(config, job_dir, _AWAY_SECONDS))
        return FolderJob(job_dir, _MasterTask(job_dir))

    def find(self, name: str) -> SubmittedJob | None:
        """Return a job by its folder, or by the name of a folder below `jobs`."""
        job_dir = folder.find(name)
        if job_dir is None:
            return None
        if JobConfig.read(job_dir / process.CONFIG_FILE).launcher_name != "slurm":
            return None
        return FolderJob(job_dir, _MasterTask(job_dir))

    def places_of(self, name: str) -> str:
        """Return "": the launcher of this machine has looked at the same folders."""
        return ""


class _MasterTask:
    """`JobRoot` of a job on Slurm: the task that runs the job's masters."""

    is_tied = False

    def __init__(self, job_dir: Path) -> None:
        self._job_dir = job_dir
        self._roster = Roster(job_dir)
        self._job = ""
        self._lock = threading.Lock()
        self._asked_at = 0.0
        self._found: SlurmTask | None = None
        self._has_ended = False

    def wait(self, timeout_seconds: float) -> bool:
        deadline = time.monotonic() + timeout_seconds
        while not self._look() and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(_LOOK_SECONDS, left))
        return self._has_ended

    def code(self) -> int | None:
        return None

    def waiting(self) -> str:
        self._look()
        found = self._found
        if found is not None and found.is_suspended:
            return (
                f"the master is SUSPENDED in Slurm, as job {self._job}: scontrol resume "
                f"{self._job} has it go on"
            )
        if found is None or not found.is_waiting:
            return ""
        again = "again " if found.num_restarts else ""
        return f"the master is {again}in Slurm's queue ({found.reason}), as job {self._job}"

    def page(self, url: str) -> str:
        return ""  # it is at the loopback address of the node

    def end(self, at_once: bool) -> None:
        """Cancel the master's task, which ends the others; or cancel all tasks at once."""
        runs = self._found is not None and not self._found.is_waiting
        jobs = [] if runs and not at_once else list(self._roster.arrays())
        commands.cancel([*jobs, self._job])

    def _look(self) -> bool:
        """Ask Slurm, if the last answer is old; return whether the task has ended."""
        with self._lock:
            now = time.monotonic()
            if not self._has_ended and now - self._asked_at >= _ASK_SECONDS:
                self._asked_at = now
                self._job = self._roster.master()
                try:
                    self._found = commands.own_tasks().get(self._job)
                except LaunchError as error:
                    _log.debug("%s", error)
                    self._has_ended = _has_certainly_ended(self._job_dir)
                    return self._has_ended
                # A master that leaves has asked for its successor before it ended.
                is_last = self._roster.master() == self._job
                self._has_ended = is_last and (self._found is None or self._found.has_ended)
            return self._has_ended


def _has_certainly_ended(job_dir: Path) -> bool:
    """Return whether the files tell that a job has ended; a stopped one may have a successor."""
    if (job_dir / process.PICTURE_FILE).exists():
        return True
    try:
        return bool(json.loads((job_dir / folder.END_FILE).read_text())["status"] == "failed")
    except (OSError, ValueError, KeyError, TypeError):
        return False

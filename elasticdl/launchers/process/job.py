"""Jobs on this machine, as a command sees them: submitted here, or found by their folder."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from elasticdl.config import JobConfig
from elasticdl.errors import LaunchError, UnavailableError
from elasticdl.job import Event, JobStatus, Role, no_status
from elasticdl.launchers.base import SubmittedJob
from elasticdl.launchers.process import folder
from elasticdl.launchers.process.logs import log_path, logged
from elasticdl.launchers.process.pids import open_same
from elasticdl.launchers.process.supervisor import NAME as SUPERVISOR
from elasticdl.observe.tail import EventTail, Tail
from elasticdl.rpc import messages
from elasticdl.rpc.client import JobClient
from elasticdl.runtime import process
from elasticdl.runtime.credentials import job as credentials

_LOOK_SECONDS = 0.05  # how often to look for the address of a master that is starting
_TAIL_SECONDS = 0.2  # how often to look for more lines

T = TypeVar("T")


def root_command(job_dir: Path) -> list[str]:
    """Return the command line of the process that runs the job in a folder."""
    module = "elasticdl.launchers.process"
    return [sys.executable, "-P", "-m", module, "--job_dir", str(job_dir)]


class LocalSubmitter:
    """`launchers.base.Submitter` of this machine."""

    def submit(self, config: JobConfig, is_tied: bool) -> SubmittedJob:
        """Start the root of the job, which starts the master."""
        job_dir = folder.prepare(config)
        words = root_command(job_dir)
        leash, write_end = os.pipe() if is_tied else (None, None)
        if leash is not None:
            words += ["--leash", str(leash)]
        log = job_dir / process.LOG_FOLDER / f"{SUPERVISOR}.log"
        try:
            log.parent.mkdir(exist_ok=True)
            with log.open("ab") as file:
                root = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=file,
                    pass_fds=() if leash is None else (leash,),
                    start_new_session=True,  # neither the terminal's signals nor its end are for it
                )
        except OSError as error:
            raise LaunchError(f"the job in {job_dir} cannot be started: {error}") from error
        finally:
            if leash is not None:
                os.close(leash)
        assert root.stdout is not None
        with root.stdout:
            problem = root.stdout.read().decode()  # up to its end: the job has begun
        if problem:
            root.wait()
            raise LaunchError(problem)
        return LocalJob(job_dir, os.pidfd_open(root.pid), root, write_end)

    def find(self, name: str) -> SubmittedJob | None:
        """Return a job by its folder, or by the name of a folder below `jobs`."""
        job_dir = folder.find(name)
        return None if job_dir is None else LocalJob(job_dir, _root_of(job_dir))

    def places_of(self, name: str) -> str:
        """Say where `find` has looked."""
        return f"a folder {name} with a {process.CONFIG_FILE}, {folder.JOBS / name} and -TIME"


class LocalJob:
    """`launchers.base.Job` of this machine; its name is its folder."""

    def __init__(
        self,
        job_dir: Path,
        root: int | None,
        child: subprocess.Popen[bytes] | None = None,
        leash: int | None = None,
    ) -> None:
        """Look at the job in a folder.

        Args:
            job_dir: The folder.
            root: A pidfd of the process that runs the job; None if there is none.
            child: That process, if it is ours.
            leash: A pipe's write end, with which the job ends; None if it goes on without us.
        """
        self._job_dir = job_dir
        self._root = root
        self._child = child
        self._leash = leash

    @property
    def name(self) -> str:
        """The job's folder, as short as it can be said from here."""
        here = Path.cwd()
        is_below = self._job_dir.is_relative_to(here)
        return str(self._job_dir.relative_to(here) if is_below else self._job_dir)

    @property
    def is_tied(self) -> bool:
        """Whether the job ends with this process."""
        return self._leash is not None

    @property
    def places(self) -> dict[str, str]:
        """The job's folder and its logs."""
        return {"job_dir": str(self._job_dir), "logs": str(self._job_dir / process.LOG_FOLDER)}

    @property
    def page(self) -> str:
        """What the master has written of its page, which goes on with the next master."""
        try:
            found = json.loads((self._job_dir / process.PAGE_FILE).read_text())
            return "" if self._wait(0.0) else str(found["url"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def connect(self, timeout_seconds: float) -> JobClient:
        """Return a client of the master, once it has said where it listens."""
        deadline = time.monotonic() + timeout_seconds
        while (address := process.master_address(self._job_dir)) is None:
            if self._wait(_LOOK_SECONDS) or time.monotonic() >= deadline:
                raise UnavailableError(
                    f"the job in {self._job_dir} has no master that listens; its log is "
                    f"{log_path(self._job_dir, Role.MASTER, 0)}"
                )
        if self._wait(0.0):
            raise UnavailableError(f"the job in {self._job_dir} has ended")
        cluster = JobConfig.read(self._job_dir / process.CONFIG_FILE).cluster
        tls = credentials.for_user(cluster, credentials.folder_of(cluster, self._job_dir))
        token = process.read_token(self._job_dir / process.TOKEN_FILE)
        return JobClient(address, token, tls=tls)

    def end(self, timeout_seconds: float) -> JobStatus | None:
        """Wait for the process that runs the job, which ends after all others."""
        if not self._wait(timeout_seconds):
            return None
        if self._child is not None:
            self._child.wait()
        with contextlib.suppress(FileNotFoundError):
            return messages.status_from_json((self._job_dir / process.PICTURE_FILE).read_text())
        config = JobConfig.read(self._job_dir / process.CONFIG_FILE)
        status = no_status(config.cluster.job_name, config.training.num_epochs)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            # What a master has said before it left, or was killed.
            status = messages.status_from_json((self._job_dir / process.BEFORE_FILE).read_text())
        try:
            end = json.loads((self._job_dir / folder.END_FILE).read_text())
        except FileNotFoundError:
            end = {"status": "stopped", "message": "its processes were killed"}
            if self._child is not None and self._child.returncode == 1:
                why = f"why could not be written into {self._job_dir}: is its disk full?"
                end = {"status": "failed", "message": why}
        return dataclasses.replace(status, status=end["status"], message=end["message"])

    def waiting(self) -> str:
        """Say nothing: a master on this machine is started again at once."""
        return ""

    def processes(self) -> list[tuple[Role, int]]:
        """Return the processes that have logs in the job's folder."""
        return logged(self._job_dir)

    def logs(self, role: Role, index: int, follow: bool) -> Iterator[str]:
        """Yield the lines of a log file; `follow` waits for a process that has not begun."""
        path = log_path(self._job_dir, role, index)
        while not path.exists():
            if not follow or (self._wait(_TAIL_SECONDS) and not path.exists()):
                name = process.process_name(role, index)
                raise LaunchError(f"expected a log of {name} at {path}")
        tail = Tail(path)
        yield from self._growing(tail.lines, follow)

    def events(self, follow: bool, since: float = 0.0, with_beats: bool = False) -> Iterator[Event]:
        """Yield the events in the job's folder."""
        tail = EventTail(self._job_dir, since, with_beats)
        yield from self._growing(tail.events, follow)

    def interrupt(self, at_once: bool = False) -> None:
        """Send signals to the process that runs the job: one for an end in order, two for now."""
        numbers = [signal.SIGTERM, signal.SIGINT] if at_once else [signal.SIGTERM]
        for number in numbers:
            if self._root is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._root, number)

    def delete(self) -> None:
        """End the job's processes; the folder stays."""
        self.interrupt(at_once=True)

    def _wait(self, timeout_seconds: float) -> bool:
        """Wait for the end of the process that runs the job; return whether it has ended."""
        if self._root is None:
            return True
        readable, _, _ = select.select([self._root], [], [], timeout_seconds)
        return bool(readable)

    def _growing(self, read: Callable[[bool], Iterable[T]], follow: bool) -> Iterator[T]:
        """Yield what can be read, and what is added up to the end of the job."""
        while True:
            has_ended = not follow or self._wait(_TAIL_SECONDS)
            yield from read(has_ended)
            if has_ended:
                return


def _root_of(job_dir: Path) -> int | None:
    """Return a pidfd of the process that runs the job in a folder, None if nobody does.

    Raises:
        LaunchError: Another machine may run it.
    """
    try:
        found = json.loads((job_dir / folder.RUN_FILE).read_text())
        host, ref = str(found["host"]), str(found["process"])
    except FileNotFoundError:
        return None  # its settings were written, and no more
    except (ValueError, KeyError, TypeError) as error:
        raise LaunchError(
            f"{job_dir / folder.RUN_FILE}: expected who runs the job: {error}"
        ) from error
    has_ended = any((job_dir / name).exists() for name in (process.PICTURE_FILE, folder.END_FILE))
    if host != socket.gethostname() and not has_ended:
        raise LaunchError(
            f"the job in {job_dir} was started on {host}, and this is {socket.gethostname()}: "
            "give the command there"
        )
    return open_same(ref)

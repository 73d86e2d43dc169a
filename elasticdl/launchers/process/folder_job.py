"""A job whose folder can be read here, as a command sees the job."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

from elasticdl.config import JobConfig
from elasticdl.errors import LaunchError, UnavailableError
from elasticdl.job import Event, Role
from elasticdl.job.status import JobStatus, no_status
from elasticdl.launchers.process import folder
from elasticdl.launchers.process.logs import log_path, logged
from elasticdl.observe.tail import EventTail, Tail
from elasticdl.rpc import messages
from elasticdl.rpc.client import JobClient
from elasticdl.runtime import process
from elasticdl.runtime.credentials import job as credentials

_LOOK_SECONDS = 0.05  # how often to look for the address of a master that is starting
_TAIL_SECONDS = 0.2  # how often to look for more lines

T = TypeVar("T")


class JobRoot(Protocol):
    """The process that runs the job in a folder, from its first master to its last."""

    @property
    def is_tied(self) -> bool:
        """Return whether the root ends with this process."""
        ...

    def wait(self, timeout_seconds: float) -> bool:
        """Wait for the end of the root; return whether it has ended."""
        ...

    def code(self) -> int | None:
        """Return the exit code of the root after its end; None if unknown."""
        ...

    def waiting(self) -> str:
        """Return why the root does not run now; "" if it runs, or has ended."""
        ...

    def page(self, url: str) -> str:
        """Return the address of the job's page for this machine, given the master's own address."""
        ...

    def end(self, at_once: bool) -> None:
        """Make the root end the job's processes, in order or at once; return at once."""
        ...


class FolderJob:
    """`launchers.base.SubmittedJob` of a folder; the folder is the job's name."""

    def __init__(self, job_dir: Path, root: JobRoot) -> None:
        self._job_dir = job_dir
        self._root = root

    @property
    def name(self) -> str:
        """The job's folder, in the shortest form for this folder."""
        here = Path.cwd()
        is_below = self._job_dir.is_relative_to(here)
        return str(self._job_dir.relative_to(here) if is_below else self._job_dir)

    @property
    def is_tied(self) -> bool:
        """Return whether the job ends with this process."""
        return self._root.is_tied

    @property
    def places(self) -> dict[str, str]:
        """The job's folder and its logs."""
        return {"job_dir": str(self._job_dir), "logs": str(self._job_dir / process.LOG_FOLDER)}

    @property
    def page(self) -> str:
        """The address that the master has written; the next master goes on with the page."""
        try:
            found = json.loads((self._job_dir / process.PAGE_FILE).read_text())
            return "" if self._wait(0.0) else self._root.page(str(found["url"]))
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def connect(self, timeout_seconds: float) -> JobClient:
        """Return a client of the master, once the master has written its address."""
        deadline = time.monotonic() + timeout_seconds
        while (address := process.master_address(self._job_dir)) is None:
            if self._wait(_LOOK_SECONDS) or time.monotonic() >= deadline:
                log = log_path(self._job_dir, Role.MASTER, 0)
                why = self._root.waiting() or f"its log is {log}"
                raise UnavailableError(
                    f"the job in {self._job_dir} has no master that listens; {why}"
                )
        if self._wait(0.0):
            raise UnavailableError(f"the job in {self._job_dir} has ended")
        cluster = JobConfig.read(self._job_dir / process.CONFIG_FILE).cluster
        tls = credentials.for_user(cluster, credentials.folder_of(cluster, self._job_dir))
        token = process.read_token(self._job_dir / process.TOKEN_FILE)
        return JobClient(address, token, tls=tls)

    def end(self, timeout_seconds: float) -> JobStatus | None:
        """Wait for the end of the root, which ends after all other processes."""
        if not self._wait(timeout_seconds):
            return None
        code = self._root.code()
        with contextlib.suppress(FileNotFoundError):
            return messages.status_from_json((self._job_dir / process.PICTURE_FILE).read_text())
        config = JobConfig.read(self._job_dir / process.CONFIG_FILE)
        nothing = no_status(config.cluster.job_name, config.training.num_epochs)
        status = self.before() or nothing
        try:
            end = json.loads((self._job_dir / folder.END_FILE).read_text())
        except FileNotFoundError:
            end = {"status": "stopped", "message": "its processes were killed"}
            if code == 1:
                why = f"why could not be written into {self._job_dir}: is its disk full?"
                end = {"status": "failed", "message": why}
        return dataclasses.replace(status, status=end["status"], message=end["message"])

    def waiting(self) -> str:
        """Return what the launcher knows."""
        return self._root.waiting()

    def before(self) -> JobStatus | None:
        """Return what the master has written at times, and when it left."""
        try:
            return messages.status_from_json((self._job_dir / process.BEFORE_FILE).read_text())
        except (OSError, ValueError, KeyError, TypeError):
            return None

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
        """Make the root end the job."""
        self._root.end(at_once)

    def delete(self) -> None:
        """End the job's processes; the folder stays."""
        self.interrupt(at_once=True)

    def _wait(self, timeout_seconds: float) -> bool:
        """Wait for the end of the root; return whether it has ended."""
        return self._root.wait(timeout_seconds)

    def _growing(self, read: Callable[[bool], Iterable[T]], follow: bool) -> Iterator[T]:
        """Yield what can be read now, and what is added until the end of the job."""
        while True:
            has_ended = not follow or self._wait(_TAIL_SECONDS)
            yield from read(has_ended)
            if has_ended:
                return

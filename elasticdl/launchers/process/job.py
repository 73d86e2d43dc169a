"""Jobs on this machine, as a command sees them: submitted here, or found by their folder."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

from elasticdl.config import JobConfig
from elasticdl.errors import LaunchError
from elasticdl.launchers.base import SubmittedJob
from elasticdl.launchers.process import folder
from elasticdl.launchers.process.folder_job import FolderJob
from elasticdl.launchers.process.pids import open_same, parse_ref
from elasticdl.launchers.process.supervisor import NAME as SUPERVISOR
from elasticdl.launchers.signals import deferred
from elasticdl.runtime import process


def root_command(job_dir: Path) -> list[str]:
    """Return the command line of the process that runs the job in a folder."""
    module = "elasticdl.launchers.process"
    return [sys.executable, "-P", "-m", module, "--job_dir", str(job_dir)]


def start_root(
    job_dir: Path, leash: int | None, bind_address: str = "", lock: int | None = None
) -> subprocess.Popen[bytes]:
    """Start the process that runs the job in a folder, and wait until the job has begun.

    Args:
        job_dir: The folder.
        leash: A pipe's read end, which is closed here: the job ends with the other end. None if the
            job goes on without this process.
        bind_address: The address at which the master listens; "": the loopback address.
        lock: Descriptor of the folder's lock, if this process holds it; the lock is handed over.

    Raises:
        LaunchError: The job has not begun; the error says why.
    """
    words = root_command(job_dir)
    if bind_address:
        words += ["--bind_address", bind_address]
    if leash is not None:
        words += ["--leash", str(leash)]
    if lock is not None:
        words += ["--lock", str(lock)]
    log = job_dir / process.LOG_FOLDER / f"{SUPERVISOR}.log"
    root: subprocess.Popen[bytes] | None = None
    try:
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as file, deferred():
            root = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=file,
                pass_fds=[each for each in (leash, lock) if each is not None],
                start_new_session=True,  # neither the terminal's signals nor its end are for it
            )
        assert root.stdout is not None
        with root.stdout:
            problem = root.stdout.read().decode()  # up to its end: the job has begun
    except OSError as error:
        raise LaunchError(f"the job in {job_dir} cannot be started: {error}") from error
    except BaseException:  # Ctrl-C: the caller would not know of the job
        if root is not None:
            root.terminate()
            root.wait()
        raise
    finally:
        if leash is not None:
            os.close(leash)
    if problem:
        root.wait()
        raise LaunchError(problem)
    return root


class LocalSubmitter:
    """`launchers.base.Submitter` of this machine."""

    def submit(self, config: JobConfig, is_tied: bool) -> SubmittedJob:
        """Start the root of the job, which starts the master."""
        with folder.prepared(config) as held:
            leash, write_end = os.pipe() if is_tied else (None, None)
            try:
                root = start_root(held.job_dir, leash, lock=held.lock.fileno())
            except BaseException:
                if write_end is not None:
                    os.close(write_end)
                raise
        return FolderJob(held.job_dir, _LocalRoot(os.pidfd_open(root.pid), root, write_end))

    def find(self, name: str) -> SubmittedJob | None:
        """Return a job by its folder, or by the name of a folder below `jobs`."""
        job_dir = folder.find(name)
        return None if job_dir is None else FolderJob(job_dir, _LocalRoot(_root_of(job_dir)))

    def places_of(self, name: str) -> str:
        """Return where `find` has looked."""
        return f"a folder {name} with a {process.CONFIG_FILE}, {folder.JOBS / name} and -TIME"


class _LocalRoot:
    """`JobRoot` of a job on this machine: the process that `LocalSubmitter` has started."""

    def __init__(
        self,
        pidfd: int | None,
        child: subprocess.Popen[bytes] | None = None,
        leash: int | None = None,
    ) -> None:
        """Keep the handles of a process.

        Args:
            pidfd: A pidfd of the process; None if there is none.
            child: The process, if it is a child of this process.
            leash: A pipe's write end, with which the job ends; None if the job goes on without this
                process.
        """
        self._pidfd = pidfd
        self._child = child
        self._leash = leash

    @property
    def is_tied(self) -> bool:
        return self._leash is not None

    def wait(self, timeout_seconds: float) -> bool:
        if self._pidfd is None:
            return True
        readable, _, _ = select.select([self._pidfd], [], [], timeout_seconds)
        return bool(readable)

    def code(self) -> int | None:
        return None if self._child is None else self._child.wait()

    def waiting(self) -> str:
        return ""  # a master on this machine is started again at once

    def page(self, url: str) -> str:
        return url

    def end(self, at_once: bool) -> None:
        """Send signals: one signal asks for an end in order, two signals for an end now."""
        numbers = [signal.SIGTERM, signal.SIGINT] if at_once else [signal.SIGTERM]
        for number in numbers:
            if self._pidfd is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, number)


def _root_of(job_dir: Path) -> int | None:
    """Return a pidfd of the process that runs the job in a folder; None if there is none.

    Raises:
        LaunchError: Another machine may run it.
    """
    try:
        text = (job_dir / folder.RUN_FILE).read_text()
        if not text:
            return None  # who held the folder has let it go
        found = json.loads(text)
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
    pidfd = open_same(ref)
    if pidfd is not None and not _has_open(parse_ref(ref).pid, job_dir / folder.RUN_FILE):
        os.close(pidfd)
        return None  # the folder is a copy: the process runs the job in another folder
    return pidfd


def _has_open(pid: int, path: Path) -> bool:
    """Return whether a process has a file open; True if it cannot be known."""
    with contextlib.suppress(OSError):  # it is of another user, or ends just now
        files = Path(f"/proc/{pid}/fd").iterdir()
        return any(file.exists() and file.samefile(path) for file in files)
    return True

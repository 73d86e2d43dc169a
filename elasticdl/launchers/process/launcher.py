"""The launcher of this machine: each process of the job is a subprocess with its own session.

One thread waits on a pidfd for each process, so an exit is known at once. This works even for a
process that an earlier master started, which is not a child of this process. Each process gets the
read end of the lifeline (`elasticdl.runtime.process`), so no process outlives the `elasticdl`
command.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.errors import LaunchError
from elasticdl.job import Role
from elasticdl.launchers.base import (
    OnEvent,
    ProcessHandle,
    ProcessSpec,
    Started,
    tell,
)
from elasticdl.launchers.process.children import spawn
from elasticdl.launchers.process.exits import exited
from elasticdl.launchers.process.logs import log_path
from elasticdl.launchers.process.out_of_memory import OutOfMemoryKills
from elasticdl.launchers.process.pids import open_same, parse_ref, ref_of
from elasticdl.launchers.process.temporary import TemporaryFolders
from elasticdl.runtime.addresses import Listening
from elasticdl.runtime.process import inherited_lifeline, process_name, scratch_folder

if TYPE_CHECKING:
    from elasticdl.runtime.credentials.job_authority import JobAuthority

_KILLED_SECONDS = 10.0  # so long may a process take to be gone that was killed
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Watched:
    """A process whose end is still to be reported."""

    handle: ProcessHandle
    pid: int
    pidfd: int | None  # None if it was gone when it was to be adopted
    child: subprocess.Popen[bytes] | None  # None if an earlier master started it
    asked_to_end: bool = False
    kill_at: float | None = None  # monotonic time


class ProcessLauncher:
    """Runs processes on this machine; it implements `launchers.base.Launcher`.

    `_lock` guards the shared state. Only the launcher's thread removes a process from it. That
    thread calls `on_event` without the lock, so the callback may start another process.
    """

    listening = Listening()

    def __init__(
        self,
        on_event: OnEvent,
        job_dir: Path,
        authority: JobAuthority | None = None,
        lifeline: int | None = None,
        is_shared: bool = False,
    ) -> None:
        """Begin to watch; the authority makes a certificate for each process that is started.

        Processes get the lifeline with which this process was started, if no other is given.
        `is_shared`: several machines share the job's folder.
        """
        self._temporary = TemporaryFolders(job_dir, is_shared)
        self._authority = authority
        self._on_event = on_event
        self._job_dir = job_dir
        self._lifeline = inherited_lifeline() if lifeline is None else lifeline
        self._ooms = OutOfMemoryKills()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._watched: dict[str, _Watched] = {}  # by handle.ref
        self._arrivals: list[_Watched] = []  # not yet known to the selector
        self._closing = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._thread = threading.Thread(target=self._watch, name="launcher", daemon=True)
        self._thread.start()

    def start(self, spec: ProcessSpec) -> ProcessHandle:
        """Start a process whose stdout and stderr are added to its log in the job's folder."""
        name = process_name(spec.role, spec.index)
        log = log_path(self._job_dir, spec.role, spec.index)
        if self._authority is not None:
            self._issue(self._authority, spec)
        with self._lock:
            if self._closing:
                raise LaunchError(f"{name}: not started, because the job is ending")
            try:
                child = spawn(spec.command, log, self._lifeline, self._temporary.make(name))
            except OSError as error:
                raise LaunchError(f"{name}: cannot start {spec.command[0]}: {error}") from error
            # The child was not reaped yet, so the pid and the start time belong to it.
            handle = ProcessHandle(spec.role, spec.index, ref_of(child.pid))
            self._add(_Watched(handle, child.pid, os.pidfd_open(child.pid), child))
        given = {"started": name, "pid": child.pid}
        _log.info("started %s as pid %d, log %s", name, child.pid, log, extra=given)
        return handle

    def _issue(self, authority: JobAuthority, spec: ProcessSpec) -> None:
        try:
            authority.issue(spec.role, spec.index)
        except OSError as error:
            name = process_name(spec.role, spec.index)
            raise LaunchError(f"{name}: its certificate cannot be written: {error}") from error

    def adopt(self, handle: ProcessHandle) -> None:
        """Watch a process that an earlier master started."""
        with self._lock:
            if self._closing:
                raise LaunchError("no process can be adopted, because the job is ending")
            try:
                pid = parse_ref(handle.ref).pid
            except ValueError as error:
                name = process_name(handle.role, handle.index)
                raise LaunchError(f"{name}: {error}; is it of another launcher?") from error
            self._add(_Watched(handle, pid, open_same(handle.ref), child=None))

    def stop(self, handle: ProcessHandle, grace_seconds: float) -> None:
        """Send SIGTERM now and, after the grace period, SIGKILL to the whole process group."""
        with self._lock:
            watched = self._watched.get(handle.ref)
            if watched is not None:
                _ask_to_end(watched, grace_seconds)
                self._wake()

    def close(self, grace_seconds: float) -> None:
        """Stop every process, and wait until each is gone and reported.

        The method may be called again. A process that does not end even by SIGKILL (it waits for a
        disk that does not answer) is left, and the log names it. `on_event` must not call this: the
        thread that calls it cannot wait for itself.
        """
        with self._lock:
            self._closing = True
            for watched in self._watched.values():
                _ask_to_end(watched, grace_seconds)
            self._wake()
        self._thread.join(grace_seconds + _KILLED_SECONDS)
        with self._lock:
            left = list(self._watched.values())
        for watched in left:
            name = process_name(watched.handle.role, watched.handle.index)
            _log.error("not ended by SIGKILL: %s (pid %d)", name, watched.pid)

    def leave(self, grace_seconds: float) -> None:
        """Do as `close` does: on one machine the job's processes end with its master.

        Workers end first, because they hand their results to the ps replicas.
        """
        with self._lock:
            self._closing = True
            for watched in self._workers():
                _ask_to_end(watched, grace_seconds)
            self._wake()
            self._changed.wait_for(lambda: not self._workers(), grace_seconds + _KILLED_SECONDS)
        self.close(grace_seconds)

    def _workers(self) -> list[_Watched]:
        return [each for each in self._watched.values() if each.handle.role is Role.WORKER]

    def _add(self, watched: _Watched) -> None:
        self._watched[watched.handle.ref] = watched
        self._arrivals.append(watched)
        self._wake()

    def _wake(self) -> None:
        # A full pipe wakes the thread just as well; after its end (-1) there is nobody to wake.
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"\0")

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_read, selectors.EVENT_READ)
            while True:
                for watched in self._take_in(selector):
                    if watched.pidfd is None:
                        self._report(watched)
                    else:
                        tell(self._on_event, Started(watched.handle))
                with self._lock:
                    if self._closing and not self._watched:
                        break
                    timeout = self._kill_overdue(time.monotonic())
                for key, _ in selector.select(timeout):
                    if key.data is None:
                        os.read(self._wake_read, 4096)
                    else:
                        selector.unregister(key.fileobj)
                        self._report(key.data)
        with self._lock:
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._wake_write = -1

    def _take_in(self, selector: selectors.BaseSelector) -> list[_Watched]:
        """Make the selector watch the new processes; return them. Some have ended already."""
        with self._lock:
            arrivals, self._arrivals = self._arrivals, []
        for watched in arrivals:
            if watched.pidfd is not None:
                selector.register(watched.pidfd, selectors.EVENT_READ, watched)
        return arrivals

    def _kill_overdue(self, now: float) -> float | None:
        """Kill the processes whose grace has ended; return the seconds until the next kill."""
        waits = []
        for watched in self._watched.values():
            if watched.kill_at is None:
                continue
            if watched.kill_at > now:
                waits.append(watched.kill_at - now)
            else:
                watched.kill_at = None
                _kill(watched)
        return min(waits, default=None)

    def _report(self, watched: _Watched) -> None:
        with self._lock:  # nobody sends a signal to it meanwhile, nor afterwards
            code = _reap(watched)
            del self._watched[watched.handle.ref]
            self._changed.notify_all()
        role, index = watched.handle.role, watched.handle.index
        is_last = role is Role.WORKER  # its index is never used again
        if is_last:
            shutil.rmtree(scratch_folder(self._job_dir, role, index), ignore_errors=True)
        # The next one may be on another machine, or there is none.
        if is_last or self._temporary.is_shared or self._closing:
            self._temporary.remove(process_name(role, index))
        log = log_path(self._job_dir, role, index)
        end = exited(watched.handle, code, watched.asked_to_end, self._ooms, log)
        tell(self._on_event, end)


def _ask_to_end(watched: _Watched, grace_seconds: float) -> None:
    if not watched.asked_to_end:
        watched.asked_to_end = True
        _send(watched, signal.SIGTERM)
    kill_at = time.monotonic() + grace_seconds
    watched.kill_at = kill_at if watched.kill_at is None else min(kill_at, watched.kill_at)


def _send(watched: _Watched, number: signal.Signals) -> None:
    """Send a signal by pidfd, so that it cannot reach a later process with the same pid."""
    if watched.pidfd is not None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(watched.pidfd, number)


def _kill(watched: _Watched) -> None:
    # Its own first: once that is done, the pid stays taken until the exit has been reported.
    _send(watched, signal.SIGKILL)
    if watched.child is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(watched.pid, signal.SIGKILL)


def _reap(watched: _Watched) -> int | None:
    """Reap a process that has ended, kill the rest of its group, and return its exit code."""
    if watched.child is None:
        code = None  # only its parent is told
    else:
        # The process is still a zombie, so its pid still names the group and no other process.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(watched.pid, signal.SIGKILL)
        code = watched.child.wait()
    if watched.pidfd is not None:
        os.close(watched.pidfd)
    return code

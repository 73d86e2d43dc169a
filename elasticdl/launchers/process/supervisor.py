"""The root of a local job: it starts the master, restarts a lost master, and ends what is left.

Only the root holds the lifeline of the job's processes (`elasticdl.runtime.process`), so no process
is left after any end of the root. The root knows nothing of the job's work, and needs no viewer.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from elasticdl.errors import LaunchError
from elasticdl.job import Role
from elasticdl.launchers.process import children
from elasticdl.launchers.process.folder import END_FILE
from elasticdl.launchers.process.logs import last_error, log_path
from elasticdl.launchers.process.restarts import Restarts, is_decided
from elasticdl.launchers.process.temporary import TemporaryFolders
from elasticdl.launchers.signals import STOP_SIGNALS, Signals
from elasticdl.observe import kinds
from elasticdl.observe.events import EventLog
from elasticdl.runtime import process
from elasticdl.runtime.addresses import Listening

NAME = "supervisor"
"""The name of the root in the event log."""

_LOOK_SECONDS = 1.0  # how often to look whether the job has ended; what else happens wakes
_STOP_SECONDS = 20.0  # what a master gets to end its job in order
_EXIT_SECONDS = 30.0  # what a master gets to exit after the job's end
_PATIENCE_SECONDS = 2.0  # what processes get to end by themselves whose lifeline is cut
_GIVE_UP_SECONDS = 15.0  # after which those that even SIGKILL does not end are left, and named

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProcessesEnd:
    """The end of a job's processes, if the master left no picture of the job's own end."""

    status: str  # "failed" or "stopped"
    message: str


class Supervisor:
    """Runs the processes of one job, from the first master to the last, in the main thread."""

    def __init__(
        self,
        job_dir: Path,
        signals: Signals,
        tls_dir: Path | None = None,
        listening: Listening | None = None,
        is_shared: bool = False,
    ) -> None:
        """Prepare to run the job in a folder.

        `tls_dir` is the folder of the job's certificates; with it the processes speak TLS. The
        master listens at the loopback address, or at the address of `listening`. `is_shared`:
        several machines share the folder.
        """
        self._temporary = TemporaryFolders(job_dir, is_shared)
        self._job_dir = job_dir
        self._listening = listening
        self._tls_dir = tls_dir
        self._signals = signals
        self._log_path = log_path(job_dir, Role.MASTER, 0)
        self._log_start = _size(self._log_path)  # an earlier job may have left a log
        self._events = EventLog(job_dir, NAME, 0)
        self._lifeline, self._write_end = os.pipe()
        self._master: subprocess.Popen[bytes] | None = None
        self._num_restarts = 0
        self._restarts = Restarts(at=time.monotonic())
        self._start_at: float | None = None  # monotonic time: when to start the master again
        self._stopped_by: signal.Signals | None = None
        self._is_let_go = threading.Event()
        self._kill_at: float | None = None  # monotonic time: when the master has had its time

    def start(self, warning: str = "") -> None:
        """Start the master; a warning goes to the event log.

        Raises:
            LaunchError: The master cannot be started.
        """
        if warning:
            self._events.write(kinds.Warned(), warning)
        children.become_subreaper()
        self._temporary.remove_all()  # of a root that was killed
        self._start_master()

    def end_with(self, leash: int) -> None:
        """End all processes at once when the other end of a pipe is closed."""

        def watch() -> None:
            while os.read(leash, 1):
                pass
            self._is_let_go.set()
            self._signals.wake()

        threading.Thread(target=watch, name="leash", daemon=True).start()

    def run(self) -> ProcessesEnd | None:
        """Keep a master alive until the job has ended or is stopped; leave no process behind.

        Returns:
            The end of the processes; None if the master has left the last picture of the job.
        """
        try:
            end = self._until_ended()
        finally:
            os.close(self._write_end)  # cuts the lifeline
            self._end_all()
            self._temporary.remove_all()
            self._events.close()
        if end is not None:
            words = {"status": end.status, "message": end.message}
            try:
                process.write_whole(self._job_dir / END_FILE, json.dumps(words))
            except OSError as error:  # the exit code tells it
                _log.error("how the job has ended cannot be written: %s: %s", error, end.message)
        return end

    def _until_ended(self) -> ProcessesEnd | None:
        while True:
            seconds = _LOOK_SECONDS
            if self._start_at is not None:
                seconds = min(seconds, max(0.0, self._start_at - time.monotonic()))
            for number in self._signals.wait(seconds):
                if number in STOP_SIGNALS:
                    self._stop(number)
            if self._is_let_go.is_set():
                return ProcessesEnd("stopped", "the elasticdl command that ran the job is gone")
            if self._start_at is not None:
                if self._stopped_by is not None:
                    return self._end(-signal.SIGKILL)
                if time.monotonic() >= self._start_at and (why := self._start_again()):
                    return ProcessesEnd("failed", why)
                continue
            code = self._reap_master()
            if code is not None and not self._goes_on_after(code):
                return self._end(code)
            if self._has_ended and self._kill_at is None:
                self._kill_at = time.monotonic() + _EXIT_SECONDS
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._signal_master(signal.SIGKILL)

    @property
    def _has_ended(self) -> bool:
        """Return whether the job itself has ended: its last picture exists."""
        return (self._job_dir / process.PICTURE_FILE).exists()

    def _start_master(self) -> None:
        command = process.command(
            Role.MASTER, 0, self._job_dir, listening=self._listening, tls_dir=self._tls_dir
        )
        try:
            variables = self._temporary.make(Role.MASTER)
            self._master = children.spawn(command, self._log_path, self._lifeline, variables)
        except OSError as error:
            raise LaunchError(f"the master: cannot start {command[0]}: {error}") from error

    def _stop(self, number: signal.Signals) -> None:
        """Take a signal: the first asks the master to end the job, the second ends everything."""
        if self._stopped_by is None:
            self._stopped_by = number
            self._kill_at = time.monotonic() + _STOP_SECONDS
            _log.info("asked to end the job (%s)", number.name)
            self._signal_master(signal.SIGTERM)
        else:
            self._signal_master(signal.SIGKILL)

    def _signal_master(self, number: signal.Signals) -> None:
        # Not reaped while `returncode` is None, so the pid is its own.
        if self._master is not None and self._master.returncode is None:
            os.kill(self._master.pid, number)

    def _reap_master(self) -> int | None:
        """Reap all ended children, orphans too; return the master's exit code if it has one."""
        ended, _ = children.reap()
        assert self._master is not None
        if self._master.pid in ended:
            self._master.returncode = ended[self._master.pid]
        return self._master.returncode

    def _goes_on_after(self, code: int) -> bool:
        """Have a lost master started again, unless the master or the user has decided to end."""
        if is_decided(code) or self._stopped_by is not None or self._has_ended:
            return False
        why = "" if code < 0 else last_error(self._log_path, self._log_start)
        return self._restarts_after(f"the master {_how(code)}{f' ({why})' if why else ''}")

    def _restarts_after(self, what: str) -> bool:
        taken = self._restarts.take(time.monotonic())
        if taken is None:
            return False
        self._restarts, pause_seconds = taken
        self._num_restarts += 1
        when = f" in {pause_seconds:g} s" if pause_seconds else ""
        text = f"{what}; it is started again{when}"
        _log.warning(text)
        self._events.write(kinds.MasterLost(), text)
        self._start_at = time.monotonic() + pause_seconds
        return True

    def _start_again(self) -> str:
        """Start the master again; return why that was not possible for too long, or ""."""
        self._start_at = None
        try:
            self._start_master()
        except LaunchError as error:  # of a problem that may pass
            if not self._restarts_after(str(error)):
                return f"{error}, after {self._num_restarts} restarts"
        return ""

    def _end(self, code: int) -> ProcessesEnd | None:
        """Return how a job ended, after its master has exited."""
        if self._has_ended:
            return None
        if self._stopped_by is not None or code == process.STOPPED_EXIT_CODE:
            number = self._stopped_by or signal.SIGTERM
            return ProcessesEnd("stopped", f"stopped by {number.name}")
        message = "" if code < 0 else last_error(self._log_path, self._log_start)
        message = message or f"the master {_how(code)}"
        if not is_decided(code):
            message = f"{message}, after {self._num_restarts} restarts"
        return ProcessesEnd("failed", f"{message} (log: {self._log_path})")

    def _end_all(self) -> None:
        """Leave no process behind; the lifeline has been cut before."""
        self._signal_master(signal.SIGKILL)
        if not children.end_all(self._signals.wait, _PATIENCE_SECONDS, _GIVE_UP_SECONDS):
            left = ", ".join(map(str, children.children()))
            text = f"processes that cannot be ended: {left}"
            _log.error(text)
            self._events.write(kinds.LeftBehind(), text)
        if self._master is not None and self._master.returncode is None:
            self._master.returncode = -signal.SIGKILL  # was reaped with the others


def _how(code: int) -> str:
    """Return words for the end of a process, given its exit code or minus the signal."""
    if code < 0:
        is_named = -code in set(signal.Signals)  # not all real-time signals are
        return f"was killed by {signal.Signals(-code).name if is_named else f'signal {-code}'}"
    return f"ended with exit code {code}"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0

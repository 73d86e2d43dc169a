"""Starts a job's master, watches the job through it, starts it again if it is killed.

The command is the root of the job's processes: it alone holds the lifeline, and when `supervise`
returns, however it does, none of them is left.
"""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from elasticdl import process
from elasticdl.cli import children
from elasticdl.cli.display import Display
from elasticdl.cli.signals import STOP_SIGNALS, Signals
from elasticdl.cli.summary import no_status
from elasticdl.config import JobConfig
from elasticdl.errors import ElasticdlError, LaunchError
from elasticdl.job import JobStatus, Role
from elasticdl.launchers.process import spawn
from elasticdl.observe.events import FOLDER as EVENTS
from elasticdl.rpc.client import ENDED, JobClient

MASTER_FILE = "master.json"
MAX_MASTER_RESTARTS = 20

_LOOK_SECONDS = 0.1  # how often to look for the master's address
_STOP_SECONDS = 20.0  # what a master gets to end its job in order
_LAST_WORD_SECONDS = 5.0  # what the last picture of an ended master may take
_EXIT_SECONDS = 30.0  # what a master gets to exit after the job's end
_PATIENCE_SECONDS = 2.0
_GIVE_UP_SECONDS = 15.0


def supervise(config: JobConfig, job_dir: Path, display: Display) -> JobStatus:
    """Run the job in `job_dir` to its end and return the last picture of it.

    Its status is "finished", "failed", or "stopped" if a signal asked for that: to this process or
    to the master. A job that was stopped can be gone on with.

    Raises:
        LaunchError: The master cannot be started, or was killed too often.
    """
    children.become_subreaper()
    read_end, write_end = os.pipe()
    try:
        with Signals() as signals:
            supervisor = _Supervisor(config, job_dir, display, signals, read_end)
            try:
                return supervisor.run()
            finally:
                os.close(write_end)  # cuts the lifeline
                write_end = -1
                supervisor.end_all()
    finally:
        os.close(read_end)
        if write_end >= 0:
            os.close(write_end)


class _Supervisor:
    """The state of one supervised job; used from the main thread."""

    def __init__(
        self, config: JobConfig, job_dir: Path, display: Display, signals: Signals, lifeline: int
    ) -> None:
        self._job_dir = job_dir
        self._token = process.read_token(job_dir / process.TOKEN_FILE)
        self._display = display
        self._signals = signals
        self._lifeline = lifeline
        self._last = no_status(config.cluster.job_name, config.training.num_epochs)
        # An earlier command may have left a log, events and the address of its master.
        self._log_path = process.log_path(job_dir, Role.MASTER, 0)
        self._log_start = _size(self._log_path)
        events = job_dir / EVENTS / f"{Role.MASTER}-0.jsonl"
        self._events = _Tail(events, _size(events))
        (job_dir / MASTER_FILE).unlink(missing_ok=True)
        self._master: subprocess.Popen[bytes] | None = None
        self._watcher: _Watcher | None = None
        self._num_restarts = 0
        self._stopped_by: signal.Signals | None = None
        self._kill_at: float | None = None  # monotonic time: when the master has had its time

    def run(self) -> JobStatus:
        self._start_master()
        while True:
            for number in self._signals.wait(_LOOK_SECONDS):
                if number in STOP_SIGNALS:
                    self._stop(number)
            self._look_for_address()
            self._take_news()
            code = self._reap_master()
            if code is not None and not self._goes_on_after(code):
                return self._last_word(code)
            if self._last.status in ENDED and self._kill_at is None:
                self._kill_at = time.monotonic() + _EXIT_SECONDS
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill_master()

    def end_all(self) -> None:
        """Leave no process behind. The lifeline has been cut before."""
        if self._watcher is not None:
            self._watcher.close()
        self._kill_master()
        if not children.end_all(self._signals.wait, _PATIENCE_SECONDS, _GIVE_UP_SECONDS):
            left = ", ".join(map(str, children.children()))
            self._display.note(f"processes that cannot be ended: {left}")
        if self._master is not None and self._master.returncode is None:
            self._master.returncode = -signal.SIGKILL  # was reaped with the others

    def _start_master(self) -> None:
        command = process.command(Role.MASTER, 0, self._job_dir)
        try:
            self._master = spawn(command, self._log_path, self._lifeline)
        except OSError as error:
            raise LaunchError(f"the master: cannot start {command[0]}: {error}") from error

    def _stop(self, number: signal.Signals) -> None:
        """The first signal asks the master to end the job; the second ends everything."""
        if self._stopped_by is None:
            self._stopped_by = number
            self._kill_at = time.monotonic() + _STOP_SECONDS
            again = "; press Ctrl-C again to end it at once" if number == signal.SIGINT else ""
            self._display.note(f"stopping the job ({number.name}){again}")
            self._signal_master(signal.SIGTERM)
        else:
            self._kill_master()

    def _signal_master(self, number: signal.Signals) -> None:
        # Not reaped while `returncode` is None, so the pid is its own.
        if self._master is not None and self._master.returncode is None:
            os.kill(self._master.pid, number)

    def _kill_master(self) -> None:
        self._signal_master(signal.SIGKILL)

    def _look_for_address(self) -> None:
        """Watch the job once the master has said where it listens, or listens elsewhere."""
        try:
            address = str(json.loads((self._job_dir / MASTER_FILE).read_text())["address"])
        except (FileNotFoundError, ValueError):
            return  # not there yet, or not whole yet
        if self._watcher is not None:
            if self._watcher.address == address:
                return
            self._watcher.close()
        self._watcher = _Watcher(address, self._token, self._signals.wake)

    def _take_news(self) -> None:
        for event in self._events.read():
            self._display.note(event)
        for news in self._watcher.news() if self._watcher is not None else ():
            match news:
                case JobStatus():
                    self._last = news
                    self._display.show(news)
                case str():
                    self._display.note(news)
                case ElasticdlError():
                    raise news

    def _reap_master(self) -> int | None:
        """Reap all that has ended, orphans too; return the master's exit code if it has."""
        ended, _ = children.reap()
        assert self._master is not None
        if self._master.pid in ended:
            self._master.returncode = ended[self._master.pid]
        return self._master.returncode

    def _goes_on_after(self, code: int) -> bool:
        """Start the master again if it was killed, and not by us."""
        if code >= 0 or self._stopped_by is not None or self._last.status in ENDED:
            return False
        killed_by = signal.Signals(-code).name
        if self._num_restarts == MAX_MASTER_RESTARTS:
            raise LaunchError(
                f"the master was killed {MAX_MASTER_RESTARTS + 1} times, the last time by "
                f"{killed_by}; its log is {self._log_path}"
            )
        self._num_restarts += 1
        self._display.note(f"the master was killed by {killed_by}; it is started again")
        self._start_master()
        return True

    def _last_word(self, code: int) -> JobStatus:
        """Return the last picture of the job, whose master has exited."""
        if self._stopped_by is not None or code == process.STOPPED_EXIT_CODE:
            number = self._stopped_by or signal.SIGTERM
            self._display.note(f"the same command with --job_dir={self._job_dir} goes on from here")
            message = f"stopped by {number.name}"
            return dataclasses.replace(self._last, status="stopped", message=message)
        deadline = time.monotonic() + _LAST_WORD_SECONDS
        while (
            self._watcher is not None
            and self._last.status not in ENDED
            and time.monotonic() < deadline
        ):
            self._signals.wait(_LOOK_SECONDS)
            self._take_news()
        if self._last.status in ENDED:
            return self._last
        message = (
            _last_error(self._log_path, self._log_start)
            or f"the master ended with exit code {code}"
        )
        message += f" (log: {self._log_path})"
        return dataclasses.replace(self._last, status="failed", message=message)


class _Watcher:
    """A thread that receives pictures of the job and wakes the main thread for each."""

    def __init__(self, address: str, token: bytes, wake: Callable[[], None]) -> None:
        self.address = address
        self._wake = wake
        self._news: queue.SimpleQueue[JobStatus | str | ElasticdlError] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._client = JobClient(address, token, on_unreachable=self._put)
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def news(self) -> list[JobStatus | str | ElasticdlError]:
        """Return what came since the last call, oldest first."""
        news = []
        while not self._news.empty():
            news.append(self._news.get())
        return news

    def close(self) -> None:
        self._closed.set()
        self._client.close()

    def _watch(self) -> None:
        try:
            for status in self._client.watch():
                self._put(status)
        except ElasticdlError as error:
            if not self._closed.is_set():
                self._put(error)

    def _put(self, news: JobStatus | str | ElasticdlError) -> None:
        self._news.put(news)
        self._wake()


class _Tail:
    """Reads the texts of an event log as it grows."""

    def __init__(self, path: Path, offset: int) -> None:
        self._path = path
        self._offset = offset

    def read(self) -> list[str]:
        """Return the texts of the events that were added since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                added = file.read()
        except FileNotFoundError:
            return []
        whole = added[: added.rfind(b"\n") + 1]
        self._offset += len(whole)
        events = (json.loads(line) for line in whole.splitlines())
        return [event["text"] for event in events if "text" in event]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _last_error(log_path: Path, start: int) -> str:
    """Return the message of the last error in a log of `elasticdl.process` from there, or ""."""
    try:
        lines = log_path.read_bytes()[start:].decode(errors="replace").splitlines()
    except OSError:
        return ""
    errors = [line.partition(" ERROR ")[2] for line in lines if " ERROR " in line]
    return re.sub(r"^\w+Error: ", "", errors[-1]) if errors else ""

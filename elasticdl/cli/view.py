"""Shows pictures and events of a job; the job does not depend on the viewer.

A job that is tied to the command (`Job.is_tied`) is the exception: Ctrl-C stops the job, and so
does any end of the viewer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from elasticdl.cli.display import Display
from elasticdl.errors import ElasticdlError
from elasticdl.job.status import JobStatus
from elasticdl.launchers.base import SubmittedJob
from elasticdl.launchers.signals import STOP_SIGNALS, Signals
from elasticdl.observe.kinds import OF_TASKS, DataChecked, FeedPath, JobEnded
from elasticdl.rpc.client import ENDED

FIRST_SECONDS = 10.0
"""The first message comes after this time; a running master sends a picture each second."""

_LONGEST_SECONDS = 120.0  # between two words


@dataclass(slots=True)
class Silence:
    """How long the master of a job has been silent, and what was said about it.

    heard: The time of the master's last answer, or of the command's begin; seconds of any clock.
    """

    heard: float
    first_seconds: float = FIRST_SECONDS
    reason: str = ""
    _has_answered: bool = False
    _told_seconds: float = 0.0  # how long it had been silent when that was last said

    def answered(self, now: float) -> str:
        """Take in that the master has answered; return the message about it."""
        seconds, was_told = now - self.heard, self._told_seconds > 0.0 and self._has_answered
        self.heard, self.reason, self._told_seconds = now, "", 0.0
        self._has_answered = True
        return f"the master answers again, after {seconds:.0f} s" if was_told else ""

    def look(self, now: float, clock: float) -> str:
        """Return the message that is due at a time.

        Args:
            now: The time.
            clock: The same time, in seconds since 1970.
        """
        seconds = now - self.heard
        # The pauses between messages double, so that a long silence does not fill the log.
        pause = min(max(self._told_seconds, self.first_seconds), _LONGEST_SECONDS)
        if seconds < self._told_seconds + pause:
            return ""
        self._told_seconds = seconds
        since = time.strftime("%H:%M:%S", time.localtime(clock - seconds))
        why = f" ({self.reason})" if self.reason else ""
        if not self._has_answered:
            return f"the master has not answered yet, for {seconds:.0f} s{why}; still trying"
        return (
            f"the master has not answered since {since}, for {seconds:.0f} s{why}; still trying, "
            "the job itself goes on"
        )


_CONNECT_SECONDS = 5.0
_SHORTEST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0
_SILENCE_SECONDS = FIRST_SECONDS  # without any news, before it is asked whether the job has ended
_LOOK_SECONDS = 1.0
_END_SECONDS = 60.0  # what the processes of a tied job get to be gone when the viewer fails
_GOES_ON = "the same command with --job_dir={} continues the job"
_EVENT_SOURCES = ("master", "supervisor")


class LeftError(Exception):
    """The user has left a job that goes on; the error's message is the job's name."""


def view(job: SubmittedJob, display: Display, since: float) -> JobStatus:
    """Show a job until its processes have ended, and return its last picture.

    Args:
        job: The job.
        display: Shows the job.
        since: The time of the first event to show, in seconds since 1970.

    Raises:
        LeftError: Ctrl-C or another signal came, and the job is not tied to the command.
    """
    with Signals() as signals:
        viewer = _Viewer(job, display, signals)
        news = _News(job, since, signals.wake)
        try:
            return viewer.run(news)
        finally:
            news.close()
            # Whatever has ended the viewer, a tied job must not go on without it.
            if job.is_tied and job.end(0.0) is None:
                job.interrupt(at_once=True)
                job.end(_END_SECONDS)


class _Viewer:
    """Follows a job in the main thread; only this thread writes to the display."""

    def __init__(self, job: SubmittedJob, display: Display, signals: Signals) -> None:
        self._job = job
        self._display = display
        self._signals = signals
        self._last: JobStatus | None = None
        self._stopped_by: signal.Signals | None = None

    def run(self, news: _News) -> JobStatus:
        heard = time.monotonic()
        silence = Silence(heard, _SILENCE_SECONDS)
        while True:
            for number in self._signals.wait(min(_LOOK_SECONDS, _SILENCE_SECONDS)):
                if number in STOP_SIGNALS:
                    self._stop(number)
            items = news.take()
            if items:
                heard = time.monotonic()
            elif time.monotonic() - heard >= _SILENCE_SECONDS:
                # The connection may break at any time: a job has ended when its processes are gone.
                heard = time.monotonic()
                end = self._job.end(0.0)
                items = [_End(end)] if end is not None else []
            for item in items:
                match item:
                    case _End(status):
                        return self._final(status)
                    case JobStatus():
                        self._say(silence.answered(time.monotonic()))
                        self._last = item
                        self._display.show(item)
                    case _Problem(text):
                        silence.reason = text
                    case _TaskProblem(text):
                        self._display.problem(text)
                    case _Page(url):
                        self._display.tell(f"the job's page is at {url}")
                    case str():
                        self._display.note(item)
                    case BaseException():
                        raise item
            self._say(silence.look(time.monotonic(), time.time()))

    def _say(self, words: str) -> None:
        if words:
            self._display.note(words)

    def _stop(self, number: signal.Signals) -> None:
        if not self._job.is_tied:
            # Ctrl-C only leaves a job that is not tied; `elasticdl stop` would end it.
            raise LeftError(self._job.name)
        if self._stopped_by is None:
            self._stopped_by = number
            again = "; press Ctrl-C again to end it at once" if number == signal.SIGINT else ""
            self._display.note(f"stopping the job ({number.name}){again}")
            self._job.interrupt()
        else:
            self._job.interrupt(at_once=True)

    def _final(self, end: JobStatus) -> JobStatus:
        """Return the master's last picture, or the one before with the launcher's facts."""
        if end.seconds > 0 and end.status in ENDED:  # it is of the master
            return end
        if self._last is not None and self._last.status in ENDED:
            return self._last
        message = end.message
        if self._stopped_by is not None:
            end = dataclasses.replace(end, status="stopped")
            message = f"stopped by {self._stopped_by.name}"
        if end.status == "stopped":
            self._display.note(_GOES_ON.format(self._job.name))
        return dataclasses.replace(self._last or end, status=end.status, message=message)


@dataclasses.dataclass(frozen=True, slots=True)
class _End:
    """The job's processes have ended."""

    status: JobStatus


@dataclasses.dataclass(frozen=True, slots=True)
class _Page:
    """The address of the job's page; it has the page's token, which must be in no file."""

    url: str


@dataclasses.dataclass(frozen=True, slots=True)
class _Problem:
    """The reason why the master cannot be reached, as far as it is known."""

    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class _TaskProblem:
    """The reason why a task has failed."""

    text: str


_Item = JobStatus | str | _Page | _Problem | _TaskProblem | _End | BaseException


class _News:
    """Two threads receive pictures and events of a job, and wake the main thread for each."""

    def __init__(self, job: SubmittedJob, since: float, wake: Callable[[], None]) -> None:
        self._job = job
        self._since = since
        self._wake = wake
        self._items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._events_ended = threading.Event()
        for work in (self._pictures, self._events):
            threading.Thread(target=self._run, args=(work,), name="view", daemon=True).start()

    def take(self) -> list[_Item]:
        """Return the items since the last call, the oldest first."""
        items = []
        while not self._items.empty():
            items.append(self._items.get())
        return items

    def close(self) -> None:
        self._closed.set()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # the main thread's to tell
            self._put(error)

    def _put(self, item: _Item) -> None:
        if not self._closed.is_set():
            self._items.put(item)
            self._wake()

    def _events(self) -> None:
        told: set[str] = set()  # of feed: each worker says the same
        try:
            for event in self._job.events(follow=True, since=self._since):
                text = str(event.get("text", ""))
                if event["event"] == "page" and (url := self._job.page):
                    self._put(_Page(url))
                elif event["event"] == FeedPath.event and text not in told:
                    told.add(text)
                    self._put(text)
                elif event["event"] in (DataChecked.event, JobEnded.event):
                    continue  # they come with the pictures
                elif event["event"] in [kind.event for kind in OF_TASKS]:
                    self._put(_TaskProblem(text))
                elif text and event["role"] in _EVENT_SOURCES:
                    self._put(text)
        except ElasticdlError as error:
            self._put(f"no more events are shown: {error}")
        finally:
            self._events_ended.set()

    def _why(self, error: ElasticdlError) -> str:
        """Return why the master cannot be reached, in the launcher's words if it knows."""
        with contextlib.suppress(ElasticdlError):
            return self._job.waiting() or str(error)
        return str(error)

    def _pictures(self) -> None:
        """Receive pictures until the job's processes are gone; the master may be replaced."""
        pause = _SHORTEST_PAUSE_SECONDS
        while not self._closed.is_set():
            try:
                with contextlib.closing(self._job.connect(_CONNECT_SECONDS)) as client:
                    # This loop connects again by itself, after it has asked whether the job has
                    # ended.
                    for status in client.watch(give_up_seconds=0.0):
                        pause = _SHORTEST_PAUSE_SECONDS
                        self._put(status)
            except ElasticdlError as error:
                self._put(_Problem(self._why(error)))
            end = self._job.end(pause)
            if end is not None:
                self._events_ended.wait(_CONNECT_SECONDS)  # the last ones belong before the end
                self._put(_End(end))
                return
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

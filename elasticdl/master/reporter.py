"""The reports of a master on its job: the log of events, the file of its progress, the curves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from elasticdl.job import Role
from elasticdl.job.status import JobStatus
from elasticdl.master.actions import Note
from elasticdl.master.core import JobCore
from elasticdl.master.effects import ReplicaAccess
from elasticdl.master.loop_lag import Holds, LoopLag
from elasticdl.master.pictures import picture_event, tables_event
from elasticdl.master.process_reports import ProcessReports
from elasticdl.master.status import learning_rate_of, picture
from elasticdl.observe import kinds
from elasticdl.observe.adviser import adviser
from elasticdl.observe.events import EventLog, newest
from elasticdl.observe.kind import Kind
from elasticdl.observe.labels import LabelClock
from elasticdl.observe.tracker import Trackers
from elasticdl.observe.usage import kind_of, measure
from elasticdl.rpc.messages import status_to_json
from elasticdl.runtime import process

_END_SECONDS = 60.0  # of a job, for the last numbers and the model
_LEAVE_SECONDS = 10.0  # of a master that another one follows
_SILENT_SECONDS = 3.0  # a wait that is longer is told


class MasterTrackers(Trackers):
    """The trackers of a job, which its master ends without a wait of its loop."""

    async def close(self, has_job_ended: bool, tell: Callable[[Note], None]) -> None:
        """Wait for some seconds until the rest is drawn, and name the tracker that is awaited."""
        seconds = _END_SECONDS if has_job_ended else _LEAVE_SECONDS
        closing = {
            asyncio.ensure_future(asyncio.to_thread(each.close, seconds)): each.flag
            for each in self.all
        }
        if not closing:
            return
        _, waiting = await asyncio.wait(closing, timeout=_SILENT_SECONDS)
        if waiting:
            flags = tuple(sorted(closing[each] for each in waiting))
            text = f"waiting up to {seconds:.0f} s until {', '.join(flags)} has the last numbers"
            tell(Note(kinds.TrackersAwaited(flags), text))
            await asyncio.wait(waiting)


log = logging.getLogger(__name__)

PATIENCE_WITH_JOURNAL_SECONDS = 5.0
_SECONDS_BETWEEN_COMPLAINTS = 10.0
_SECONDS_BETWEEN_TABLES = 5.0
_EVENTS_TAKEN_OVER = 10_000  # events of earlier masters that this one remembers


class Reporter:
    """Writes what happens, and says now and then how the job is.

    Args:
        core: The job.
        job_dir: The folder for the log of events and the file of the progress.
        tables: The client of the ps replicas. It is not used for anything else, so that a display
            never waits for a checkpoint.
        now: Returns the seconds that the job has lasted.

    Attributes:
        labels: What the master does with its time.
        reports: What processes have reported.
    """

    def __init__(
        self, core: JobCore, job_dir: Path, tables: ReplicaAccess, now: Callable[[], float]
    ) -> None:
        self.labels = LabelClock()
        self.reports = ProcessReports(adviser(core.config, time.monotonic()))
        self._core = core
        self._job_dir = job_dir
        self._now = now
        self._tables = tables
        self._tables_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tables")
        self._asks_tables = False
        self._tells_tables_at = 0.0
        self._tells_usage_at = 0.0
        self._leaves_behind_at = 0.0
        self._tells_of_journal_at = PATIENCE_WITH_JOURNAL_SECONDS
        self._trackers: MasterTrackers | None = None
        self._lag = LoopLag(self._tell_holds)

    def begin(self, ends: contextlib.ExitStack | contextlib.AsyncExitStack) -> None:
        """Open the log of events, and watch the event loop, until the stack is unwound."""
        for event in newest(self._job_dir, Role.MASTER, 0, _EVENTS_TAKEN_OVER):
            self.reports.events.add(event)
        self._events = EventLog(self._job_dir, Role.MASTER, 0)
        ends.callback(self._events.close)
        watching = asyncio.ensure_future(self._lag.watch())
        ends.callback(watching.cancel)
        ends.callback(self._tables_thread.shutdown, wait=False, cancel_futures=True)

    def begin_trackers(self, job_id: str, ends: contextlib.AsyncExitStack) -> None:
        """Draw curves of the job until the stack is unwound."""
        trackers = self._trackers = MasterTrackers(self._core.config, job_id, self._job_dir)

        async def close() -> None:
            await trackers.close(self._core.has_ended, self.note)

        ends.push_async_callback(close)

    def note(self, note: Note) -> None:
        """Write an event, and its words in the log of the process."""
        log.log(logging.WARNING if note.is_warning else logging.INFO, "%s", note.text)
        self.write(note.kind, note.text)
        if self._trackers is not None:
            self._trackers.happened(note.kind)

    def write(self, kind: Kind, text: str = "") -> None:
        """Write an event."""
        self.reports.remember(self._events.write(kind, text))

    def status(self) -> JobStatus:
        """Return a picture of the job."""
        return picture(self._core, self._now())

    def tell_usage(self) -> None:
        """Say what this process did with its time, as others do with their heartbeats."""
        if self._now() < self._tells_usage_at:
            return
        self._tells_usage_at = self._now() + self._core.config.cluster.heartbeat_seconds
        process.rotate_log(self._core.config, self._job_dir)
        self.write(kind_of(measure(self.labels)))
        longest = self._lag.take_longest()
        late, held = round(longest.late_seconds, 4), round(longest.held_seconds, 4)
        self.write(kinds.EventLoop(late, held))
        status = self.status()
        self.write(picture_event(self._core, status))
        if self._now() >= self._leaves_behind_at:
            self._leaves_behind_at = self._now() + _SECONDS_BETWEEN_TABLES
            self._leave_behind(status)
        self._draw(status)
        self._tell_tables()
        for kind, text in self.reports.adviser.look(time.monotonic(), status.loss):
            self.note(Note(kind, text, is_warning=True))

    def tell_end(self) -> None:
        """Say for the last time how the job is."""
        self.write(kind_of(measure(self.labels)))
        status = self.status()
        self._leave_behind(status)
        self.write(picture_event(self._core, status))
        self._draw(status, is_last=True)

    def _leave_behind(self, status: JobStatus) -> None:
        """Write the progress to a file, for those who ask after the job was stopped or killed."""
        with contextlib.suppress(OSError):
            process.write_whole(self._job_dir / process.BEFORE_FILE, status_to_json(status))

    def _draw(self, status: JobStatus, is_last: bool = False) -> None:
        """Hand a picture to whoever draws curves of the job."""
        if self._trackers is not None:
            self._trackers.take(status, learning_rate_of(self._core), is_last)

    def _tell_tables(self) -> None:
        """Ask the ps replicas now and then what they hold; never two questions at a time."""
        is_there = self._core.config.num_ps and all(self._core.parameters.route.addresses)
        if not is_there or self._asks_tables or self._now() < self._tells_tables_at:
            return
        self._asks_tables = True
        self._tells_tables_at = self._now() + _SECONDS_BETWEEN_TABLES
        loop, hot_keys = asyncio.get_running_loop(), self.reports.hot_keys.shares()

        def ask() -> kinds.ParameterTables:
            return tables_event(self._tables.reach().stats(), hot_keys)

        def tell(asked: asyncio.Future[kinds.ParameterTables]) -> None:
            self._asks_tables = False
            if not asked.cancelled() and asked.exception() is None:  # else a replica is gone again
                self.reports.adviser.tabled(asked.result())
                self.write(asked.result())

        loop.run_in_executor(self._tables_thread, ask).add_done_callback(tell)

    def _tell_holds(self, holds: Holds) -> None:
        text = f"the master was busy with one thing for {holds.longest_seconds:.2f} s"
        kind = kinds.LoopHeld(round(holds.longest_seconds, 4), holds.count)
        self.note(Note(kind, text, is_warning=True))

    def tell_of_journal(self, seconds: float, trouble: str) -> None:
        """Say now and then that the journal is away, and once that it is back.

        Args:
            seconds: The time for which the journal has taken nothing.
            trouble: Why; "" if it is not known.
        """
        if seconds >= self._tells_of_journal_at:
            self._tells_of_journal_at = seconds + _SECONDS_BETWEEN_COMPLAINTS
            why = f" ({trouble})" if trouble else ""
            text = f"the job's journal cannot be written, for {seconds:.0f} s{why}; still trying"
            self.note(Note(kinds.JournalNews(), text, is_warning=True))
        elif seconds < PATIENCE_WITH_JOURNAL_SECONDS < self._tells_of_journal_at:
            self._tells_of_journal_at = PATIENCE_WITH_JOURNAL_SECONDS
            self.note(Note(kinds.JournalNews(), "the job's journal can be written again"))

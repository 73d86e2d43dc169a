"""The master process: an event loop around the core.

Calls, exits of processes and the passing of time become events of the core; what it decides is
journalled, then carried out. Whatever may block (starting a process, speaking to ps replicas,
writing files) is carried out in threads, and comes back as an event.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import grpc

from elasticdl.data.base import Captured, Stream
from elasticdl.data.sources import read_once_of
from elasticdl.errors import (
    AwayError,
    ConfigError,
    DataError,
    ElasticdlError,
    TakenOverError,
    is_of_storage,
)
from elasticdl.job import PsRoute, ReplicaStart, Role
from elasticdl.job.status import JobStatus, no_status
from elasticdl.launchers.base import (
    Exited,
    Launcher,
    OnEvent,
    PendingProcess,
    ProcessEvent,
    Started,
)
from elasticdl.master import reporter
from elasticdl.master.actions import Action, Note
from elasticdl.master.durable import DurableJob
from elasticdl.master.effects import JobAccess, ReplicaAccess
from elasticdl.master.features.sources import RecordSource
from elasticdl.master.group_commit import GroupCommit
from elasticdl.master.interpreter import Effect, Interpreter, Line
from elasticdl.master.launched import GRACE_SECONDS, LaunchedProcesses
from elasticdl.master.listening import take_port
from elasticdl.master.parameters.answers import RestorePoint
from elasticdl.master.phases import Phase
from elasticdl.master.reporter import Reporter
from elasticdl.master.servicer import make_server
from elasticdl.master.status import label_of
from elasticdl.observe import kinds
from elasticdl.observe.page import pages
from elasticdl.rpc.messages import status_to_json
from elasticdl.runtime import process
from elasticdl.runtime.addresses import Listening
from elasticdl.runtime.credentials.files import TlsFiles
from elasticdl.state.open import system_of

if TYPE_CHECKING:
    from elasticdl.runtime.credentials.job_authority import JobAuthority

log = logging.getLogger(__name__)
T = TypeVar("T")

_LAST_WORD_SECONDS = 4.0
_SLOW_LOOK_SECONDS = 2.0
_SHORTEST_LOOK_SECONDS = 0.1
"""The shortest time between two looks at a stream; messages in between make one task."""
_LONGEST_LOOK_SECONDS = 0.25
"""The longest time between two looks, while tasks wait for workers."""
_LEAVE_SECONDS = 10.0  # time for workers to end by themselves when the job is finished
_TELL_SECONDS = 5.0  # time for somebody to fetch the job's last picture
_PICTURE_SECONDS = 60.0  # time for a disk to have room for the last picture
_LOOK_AT_JOURNAL_SECONDS = 1.0
_LEAVE_JOURNAL_SECONDS = 5.0  # time for a journal to come back before the master leaves


class Master:
    """Runs a job to its end."""

    def __init__(
        self,
        job: DurableJob,
        is_new: bool,
        job_dir: Path,
        token: bytes,
        make_launcher: Callable[[OnEvent], Launcher],
        make_access: Callable[[Callable[[], PsRoute], Role], ReplicaAccess],
        listening: Listening | None = None,
        tls: TlsFiles | None = None,
        authority: JobAuthority | None = None,
        stream: Stream | None = None,
    ) -> None:
        """Put a master together; nothing happens before `run`.

        Args:
            job: The job, new or resumed.
            is_new: Whether it is new.
            job_dir: The folder for the address, logs and events.
            token: The job's secret.
            make_launcher: Makes the launcher, given the function that takes its events.
            make_access: Makes the client of one role that serves parameters, given a function that
                returns their addresses, and the role: ps replicas, or a worker with a copy.
            listening: The address to listen at and to be found at; None: loopback.
            tls: Key and certificates for TLS; None: the master speaks in clear text.
            authority: Makes certificates for the job's processes, if it has its own.
            stream: The stream that the job trains on, if its records arrive while it runs.
        """
        self._stream = stream
        self.core = job.core
        self._job = job
        self._is_new = is_new
        self._job_dir = job_dir
        self._token = token
        self._tls = tls
        self._authority = authority
        self._make_launcher = make_launcher
        self._listening = listening or Listening()
        routes = self.core.parameters.routes
        self._access = JobAccess({role: make_access(find, role) for role, find in routes.items()})
        # Tables have an access of their own, so that a display never waits for a checkpoint.
        tables = make_access(lambda: self.core.parameters.route, Role.PS)
        self._reporter = Reporter(self.core, job_dir, tables, self.now)
        self.reports = self._reporter.reports
        self._commit = GroupCommit(job, self._carry_out, self._wake, self._break)
        self._bell = asyncio.Event()  # replaced when it rings
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.has_begun = False
        """Whether others could reach this master."""
        self._was_told = False
        self._told: JobStatus | None = None  # the last picture that had only written facts
        self._num_watchers = 0
        self._is_closing = False
        self._is_taken_over = False
        self._leaves_for = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = {
            # One thread: files are written and deleted in the order of the actions.
            Line.STORAGE: ThreadPoolExecutor(max_workers=1, thread_name_prefix="storage"),
            Line.RECOVERY: ThreadPoolExecutor(max_workers=2, thread_name_prefix="recovery"),
            Line.PROCESSES: ThreadPoolExecutor(max_workers=8, thread_name_prefix="processes"),
        }

    # --- what the servicer needs -----------------------------------------------------------------

    def now(self) -> float:
        """Seconds that the job has lasted."""
        return self._job.now()

    def happen(self, event: Callable[[], T]) -> T:
        """Have an event happen to which nobody outside is given an answer.

        Raises:
            StateError: A write of the journal has failed; the master ends.
        """
        return self._commit.happen(event)

    async def handle(self, event: Callable[[], T]) -> T:
        """Have an event happen; its facts are written down when this returns, or raises.

        Raises:
            StateError: They could not be; the master ends.
        """
        try:
            return self._commit.happen(event)
        finally:
            await self._commit.written()

    async def written(self) -> None:
        """Wait until all that is true now is written down; what was read before may be told then.

        Raises:
            StateError: It cannot be; the master ends.
        """
        await self._commit.written()

    def _wake(self) -> None:
        """Wake whoever waits for a change; from it on the master's time may have another label."""
        self._reporter.labels.enter(label_of(self.core))
        # A bell rings once. Later waits are for the new bell, so that no ring is heard twice.
        bell, self._bell = self._bell, asyncio.Event()
        bell.set()

    async def changed(self, timeout_seconds: float) -> None:
        """Wait until something has changed, or for so long."""
        # Not `wait_for`, which in Python 3.11 may swallow a cancellation.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._bell.wait()

    def status(self) -> JobStatus:
        """Return a picture of the job."""
        return self._reporter.status()

    async def told_status(self) -> JobStatus:
        """Return a picture of the job that has only written facts.

        While the journal is away, this is the last such picture, and its message says so.

        Raises:
            StateError: Nothing can be written any more.
        """
        status, trouble = self.status(), ""
        while not trouble:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(reporter.PATIENCE_WITH_JOURNAL_SECONDS):
                    await self.written()
                self._told = status
                return self._as_leaving(status) if self._leaves_for else status
            trouble = self._job.journal_trouble  # "": it is slow, and no more
        config = self.core.config
        told = self._told or no_status(config.cluster.job_name, config.training.num_epochs)
        text = f"the job waits, because its journal cannot be written: {trouble}"
        return dataclasses.replace(told, message=text, seconds=self.now(), records_per_second=0.0)

    def _as_leaving(self, status: JobStatus) -> JobStatus:
        if self.core.has_ended:
            return status
        text = f"{self._leaves_for}: what ends with it hands over what it has first"
        return dataclasses.replace(status, status="suspending", message=text)

    async def restore_point(self, index: int, num_unsound: int, problem: str) -> ReplicaStart:
        """Return what a ps replica that has been started is to restore."""
        point = await self.handle(
            lambda: self.core.parameters.restore_point(index, num_unsound, problem)
        )
        replicas = self.core.parameters.replicas_with(index)
        place = replicas.place_of(index)
        # A replica that awaits a move gets the place of its log with the move.
        _, layout, awaits_move = place
        redo_log = "" if awaits_move else self._interpreter.redo_log_of(index, layout)
        system = system_of(self.core.config.cluster.state)
        first_lease = replicas.first_lease(index)
        return ReplicaStart(self.folder_of(point), redo_log, *place, system, first_lease)

    def folder_of(self, point: RestorePoint | None) -> str:
        """Return where a checkpoint of this job lies; "" of None."""
        return "" if point is None else str(self._interpreter.folder_of(point))

    def hand_over_folder(self, role: Role, index: int, session: str) -> str:
        """Return the folder that a process is to write what it holds to."""
        return str(self._interpreter.hand_over_folder(role, index, session))

    def was_told_the_end(self) -> None:
        """Note that somebody is being sent the last picture of the job."""
        self._was_told = True
        self._wake()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Note that somebody is sent pictures within the block, up to the last one."""
        self._num_watchers += 1
        try:
            yield
        finally:
            self._num_watchers -= 1
            self._wake()

    # --- the main path ---------------------------------------------------------------------------

    async def run(self) -> int:
        """Run the job to its end, and return the exit code of the process.

        It is 0 if the job has finished, 1 if it has failed, and `process.STOPPED_EXIT_CODE` after
        `leave`: another master can go on with the job.

        Raises:
            StateError: The journal cannot be written.
            ConfigError: The port is taken.
        """
        loop = asyncio.get_running_loop()

        def on_event(event: ProcessEvent) -> None:  # from a thread of the launcher
            loop.call_soon_threadsafe(self._on_event, event)

        # Last in, first out: processes end first, the journal is let go of last. A step that is
        # cancelled or fails does not keep the others from happening.
        async with contextlib.AsyncExitStack() as ends:
            ends.callback(self._job.close)
            ends.callback(self._commit.close)
            self._reporter.begin(ends)
            for pool in self._threads.values():
                ends.callback(pool.shutdown, wait=False, cancel_futures=True)
            ends.callback(self._cancel_effects)
            server = make_server(self, self._token, self._authority)
            ends.push_async_callback(server.stop, grace=0.5)
            self._launcher = self._make_launcher(on_event)
            ends.push_async_callback(self._close_launcher)
            address = await self._listen(server)
            processes = LaunchedProcesses(
                self._launcher, self._job_dir, address, self._exited, self._authority
            )
            ends.callback(processes.close)
            self._interpreter = Interpreter(
                self.core,
                self._access,
                processes,
                self._job_dir,
                self._job.id,
                tell=self._reporter.note,
                event=lambda event: self.happen(lambda: event(self.now())),
                run=self._run_effect,
                sync=self._job.sync,
                mover=self._access.mover(self.core.config.cluster.ps_memory_limit),
            )
            ends.callback(self._interpreter.close)
            self._take_up_job()
            await self._caught_up()
            # If the journal cannot be written, the master ends before anybody has reached it.
            await server.start()
            self.has_begun = True
            where = json.dumps({"address": address, "pid": os.getpid()})
            await self._write_file(process.ADDRESS_FILE, where)
            log.info("the master listens at %s", address)
            following: asyncio.Future[None] | None = None
            if self._stream is not None:
                following = asyncio.ensure_future(self._follow(self._stream))
                following.add_done_callback(self._followed)
                ends.callback(following.cancel)
            await self._serve_page(ends)
            self._reporter.begin_trackers(self._job.id, ends)
            await self._until_ended()
            if self.core.has_ended:
                await self._wind_up()
            elif self._leaves_for:
                self._reporter.note(
                    Note(kinds.Paused(), f"{self._leaves_for}; another master can go on")
                )
                # From here on processes end because the master leaves. These ends are no events of
                # the job: otherwise the next master would count them as failures.
                self._is_closing = True
                # Processes that end with this master hand over to it, so it listens up to then.
                await self._close_launcher()
                await server.stop(grace=None)
            if following is not None:  # it tells the source its last positions
                await asyncio.wait([following], timeout=_LAST_WORD_SECONDS)
            self._reporter.tell_end()
        if not self.core.has_ended:
            return process.STOPPED_EXIT_CODE
        if self.core.phase is not Phase.FINISHED:
            return 1
        self._interpreter.remove_redo_logs()  # nobody goes on with this job
        if (kept := read_once_of(self.core.config)) is not None:
            kept.remove(self.core.config)
        return 0

    async def _follow(self, stream: Stream) -> None:
        """Ask what has arrived, again and again, in a thread of its own."""
        loop, source = asyncio.get_running_loop(), self.core.features.of(RecordSource)
        with contextlib.ExitStack() as ends:
            pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="stream")
            ends.callback(pool.shutdown, wait=False, cancel_futures=True)
            while not (self.core.has_ended or self._leaves_for):
                began = self.now()
                try:
                    found = await loop.run_in_executor(pool, stream.look)
                except AwayError as error:
                    self.happen(partial(source.went_away, str(error)))
                except DataError as error:
                    words = f"--training_data: {error}"
                    self.happen(partial(source.failed, words, self.now()))
                    return
                else:
                    if (seconds := self.now() - began) > _SLOW_LOOK_SECONDS:
                        log.warning("the source of the stream answered after %.1f s", seconds)
                    await self.written()  # while the journal is away no task is cut
                    if isinstance(stream, Captured) and stream.is_over:
                        self.happen(source.came_to_end)
                    self.happen(partial(source.arrived, found, self.now()))
                await loop.run_in_executor(pool, stream.trained, source.trained_up_to())
                if isinstance(stream, Captured):
                    kept = source.kept_from()
                    await self.written()  # then it can be synced
                    forget = self._interpreter.forget_records
                    await loop.run_in_executor(pool, forget, stream, kept)
                await self._until_tasks_are_wanted()
                await loop.run_in_executor(pool, stream.wait)
            await loop.run_in_executor(pool, stream.trained, source.trained_up_to(), True)

    async def _until_tasks_are_wanted(self) -> None:
        """Wait until no task waits for a worker, but neither too short nor too long."""
        deadline = self.now() + _LONGEST_LOOK_SECONDS
        await asyncio.sleep(_SHORTEST_LOOK_SECONDS)
        while self.core.ledger.num_todo and (left := deadline - self.now()) > 0:
            await self.changed(left)

    def _followed(self, following: asyncio.Future[None]) -> None:
        if not following.cancelled() and (error := following.exception()) is not None:
            self._break(error)

    async def _listen(self, server: grpc.aio.Server) -> str:
        """Take a port; return where others find this master."""
        host, wanted = self._listening.bind, self.core.config.cluster.master_port
        found = await take_port(server, host, self._job.port, wanted, self._tls)
        self.happen(lambda: self._job.listen_at(found))
        return self._listening.at(found)

    async def _serve_page(self, ends: contextlib.AsyncExitStack) -> None:
        """Serve the job's page, if it is to have one; without it the job goes on all the same."""
        port = self.core.config.seeing.dashboard_port
        if port is None:
            return
        try:
            page = pages().page(self._job_dir, self._token, self.core.config, self._tls)
            self.reports.page = page
            address = await asyncio.to_thread(page.start, port)
        except ConfigError as error:
            self.reports.page = None
            text = f"the job goes on without its page: {error}"
            self._reporter.note(Note(kinds.PageServed(""), text, is_warning=True))
        else:
            ends.callback(page.close)
            self._reporter.note(Note(kinds.PageServed(address), f"the job's page is at {address}"))

    async def _write_file(self, name: str, text: str) -> None:
        """Write a file into the job's folder; if the disk is full, wait until it has room."""
        while not self._leaves_for:
            try:
                process.write_whole(self._job_dir / name, text)
                return
            except OSError as error:
                if not is_of_storage(error):
                    raise
                log.warning("%s cannot be written, still trying: %s", self._job_dir / name, error)
                await self.changed(_LOOK_AT_JOURNAL_SECONDS)

    def _take_up_job(self) -> None:
        if self._is_new or not any(self.core.members):
            self.happen(lambda: self.core.begin(self.now()))
        else:
            self._interpreter.take_up()
            self.happen(lambda: self.core.resume(self.now()))

    async def _until_ended(self) -> None:
        tick_seconds = self.core.members.tick_seconds
        next_tick = self.now() + tick_seconds
        while not (self.core.has_ended or self._leaves_for or self._broken.done()):
            await self.changed(max(0.0, next_tick - self.now()))
            if self.core.history.is_at_rest:
                self.leave("no task is begun by the model before")
            if self.now() < next_tick or self._broken.done():
                continue
            next_tick = self.now() + tick_seconds
            self._reporter.tell_of_journal(self._commit.seconds_behind, self._job.journal_trouble)
            self._reporter.tell_usage()
            # While the journal is away the job stands still. The next tick is late, and excuses it.
            if self._commit.seconds_behind <= tick_seconds:
                self.happen(lambda: self.core.tick(self.now()))
                self._relieve_replicas()
        # The end of a job is written before anything is done about it.
        await self._caught_up(_LEAVE_JOURNAL_SECONDS if self._leaves_for else None)

    async def _caught_up(self, seconds: float | None = None) -> None:
        """Wait until all is written down, for so long at most; not when the master is to leave.

        Raises:
            StateError: It cannot be written.
        """
        deadline = None if seconds is None else self.now() + seconds
        while self._commit.is_behind and not self._broken.done():
            self._reporter.tell_of_journal(self._commit.seconds_behind, self._job.journal_trouble)
            if self._leaves_for and deadline is None:
                deadline = self.now() + _LEAVE_JOURNAL_SECONDS
            if deadline is not None and self.now() >= deadline:
                return
            await self.changed(_LOOK_AT_JOURNAL_SECONDS)
        if self._broken.done():
            self._broken.result()

    def _relieve_replicas(self) -> None:
        """Ask for one more ps replica, if the job grows by itself and its replicas are too busy."""
        replicas = self.core.parameters.replicas
        if replicas is None:
            return
        why = self.reports.adviser.why_more_replicas(
            replicas.number, replicas.moves.is_under_way, self.now()
        )
        if why:
            log.info("one more ps replica is asked for: %s", why)
            with contextlib.suppress(ElasticdlError):  # the job does not train now
                self.happen(lambda: self.core.set_num_ps(replicas.number + 1, self.now()))

    async def _wind_up(self) -> None:
        """Let the workers leave, stop all that is left, and tell whoever asks how it went."""
        await self._leave_picture()
        if self.core.phase is Phase.FINISHED:
            deadline = self.now() + _LEAVE_SECONDS
            while self._workers_leave() and self.now() < deadline:
                await self.changed(deadline - self.now())
        await self._close_launcher()
        deadline = self.now() + _TELL_SECONDS
        while (self._num_watchers or not self._was_told) and self.now() < deadline:
            await self.changed(deadline - self.now())
        if self.reports.page is not None:
            await asyncio.to_thread(self.reports.page.tell_end)

    async def _leave_picture(self) -> None:
        """Write the job's last picture, for those who ask when no master is there."""
        try:
            async with asyncio.timeout(_PICTURE_SECONDS):
                await self._write_file(process.PICTURE_FILE, status_to_json(self.status()))
        except OSError as error:  # a TimeoutError too
            log.warning("the job's last picture cannot be written: %s", error)

    def _workers_leave(self) -> bool:
        """Whether workers that have done something are still about to end by themselves."""
        return any(
            member.role is Role.WORKER
            and member.handle
            and not member.has_exited
            and member.index in self.core.ledger.done_by_worker
            for member in self.core.members
        )

    async def _close_launcher(self) -> None:
        self._is_closing = True
        if self._is_taken_over:
            return  # the processes belong to the other master now
        end = self._launcher.close if self.core.has_ended else self._launcher.leave
        await asyncio.get_running_loop().run_in_executor(None, end, GRACE_SECONDS)

    def _cancel_effects(self) -> None:
        for task in self._tasks:
            task.cancel()

    def leave(self, reason: str) -> None:
        """Leave the job as it is: another master can go on with it. See `Launcher.leave`."""
        self._leaves_for = reason
        self._wake()

    # --- effects ---------------------------------------------------------------------------------

    def _run_effect(self, effect: Effect, line: Line) -> None:
        task = asyncio.get_running_loop().create_task(self._effect(effect, line))
        self._tasks.add(task)
        task.add_done_callback(self._effect_done)

    async def _effect(self, effect: Effect, line: Line) -> None:
        loop = asyncio.get_running_loop()
        then = await loop.run_in_executor(self._threads[line], effect)
        # While the master leaves, calls fail because processes end with it. Such results are no
        # events of the job: another master will ask again.
        if self.core.has_ended or not self._is_closing:
            then()

    def _effect_done(self, task: asyncio.Task[None]) -> None:
        """An effect that raised is a defect or a broken journal: either way, the master ends."""
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        self._break(error)

    def _break(self, error: BaseException) -> None:
        """End the master: it cannot go on."""
        self._is_taken_over |= isinstance(error, TakenOverError)
        if not self._broken.done():
            self._broken.set_exception(error)
        self._wake()

    def _carry_out(self, action: Action) -> None:
        self._interpreter.carry_out(action)

    # --- processes -------------------------------------------------------------------------------

    def _on_event(self, event: ProcessEvent) -> None:
        if self._is_closing or self._broken.done():
            return  # processes end now because the master does
        match event:
            case PendingProcess():
                self.happen(lambda: self.core.processes.waits(event, self.now()))
            case Started():
                self.happen(lambda: self.core.processes.runs(event, self.now()))
            case Exited():
                self._exited(event)

    def _exited(self, exited: Exited) -> None:
        if not (self._is_closing or self._broken.done()):
            self.happen(lambda: self.core.process_exited(exited, self.now()))

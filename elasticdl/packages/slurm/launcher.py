"""The launcher of a job's master on Slurm: its workers and ps replicas are tasks of job arrays.

The wanted and the ended processes are in files (`roster`), which are read twice a second. Slurm
itself is asked rarely, for all tasks at once: why they wait, and which have ended without a
message. One thread speaks to Slurm. `_lock` guards the data that it shares with callers.
"""

from __future__ import annotations

import logging
import secrets
import signal
import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.config import JobConfig
from elasticdl.errors import LaunchError
from elasticdl.job import Role
from elasticdl.launchers.base import (
    END_ORDER,
    Exited,
    ExitReason,
    OnEvent,
    PendingProcess,
    ProcessHandle,
    ProcessSpec,
    Started,
    tell,
)
from elasticdl.packages.slurm import commands
from elasticdl.packages.slurm.commands import SlurmAwayError, SlurmTask
from elasticdl.packages.slurm.options import script_of, words_of
from elasticdl.packages.slurm.own_task import HOST, Request, own_task, why_asked
from elasticdl.packages.slurm.roster import (
    FREE_SECONDS,
    Occupied,
    Roster,
    handle_of,
    is_free_after,
)
from elasticdl.runtime.addresses import Listening
from elasticdl.runtime.process import process_name

if TYPE_CHECKING:
    from elasticdl.runtime.credentials.job_authority import JobAuthority

_READ_SECONDS = 0.5  # how often files are looked at
_GATHER_SECONDS = 0.25  # what is wanted within that time gets one array
_ASK_SECONDS = 5.0  # how often Slurm is asked
_KILLED_SECONDS = 10.0  # a place may take so long to kill its process
_GONE_SECONDS = 45.0  # a task may take so long to be gone that was cancelled: Slurm's KillWait
_AWAY_SECONDS = 5.0  # that Slurm may be away when this master leaves, which is killed after 20 s
_LARGEST_ARRAY = 1000  # Slurm's own default, MaxArraySize less one
_KEPT_SECONDS = 60.0  # a job that Slurm does not list may be so young

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Process:
    """A process whose end was not told yet."""

    handle: ProcessHandle
    wanted_at: float  # monotonic time
    has_place: bool = False  # a place was asked for
    occupied: Occupied | None = None  # the place that it has taken
    was_asked: bool = False  # to end
    num_requests: int = 0  # the requests to end that were made
    kill_at: float = 0.0  # monotonic time
    why: str = ""  # what was told of its waiting
    num_silent: int = 0  # looks at which its task had ended and it had said nothing


def silent_end(occupied: Occupied, found: SlurmTask | None) -> ExitReason | None:
    """Return how a silent process has ended, according to Slurm; None: the process runs."""
    if found is None:
        return ExitReason.UNKNOWN
    if found.num_restarts > occupied.num_restarts or found.is_waiting:
        return ExitReason.NODE_LOST
    if not found.has_ended:
        return None
    reasons = {
        "NF": ExitReason.NODE_LOST,
        "BF": ExitReason.NODE_LOST,
        "OOM": ExitReason.OUT_OF_MEMORY,
        "PR": ExitReason.PREEMPTED,
        "TO": ExitReason.PREEMPTED,
        "DL": ExitReason.PREEMPTED,
        "CA": ExitReason.PREEMPTED,
    }
    return reasons.get(found.state, ExitReason.KILLED)


def superfluous(
    arrays: Mapping[str, Role], tasks: Mapping[str, SlurmTask], wanted: Mapping[Role, int]
) -> list[str]:
    """Return the places in the queue without a process to wait for, the youngest first."""
    found = []
    for role in set(arrays.values()):
        waiting = [
            name
            for name, task in tasks.items()
            if task.is_waiting and arrays.get(name.partition("_")[0]) is role
        ]
        waiting.sort(key=lambda name: tuple(map(int, name.split("_"))))
        found += waiting[wanted.get(role, 0) :]
    return found


def missing_places(
    arrays: Mapping[str, Role],
    tasks: Mapping[str, SlurmTask],
    wanted: Mapping[Role, int],
    taken: Container[str],
) -> dict[Role, int]:
    """Return how many processes of each role wait for a place that was not requested yet.

    Args:
        arrays: The jobs of Slurm that have places.
        tasks: The states of all tasks in Slurm.
        wanted: How many processes wait.
        taken: The tasks that have a process.
    """
    missing = dict(wanted)
    for name, task in tasks.items():
        role = arrays.get(name.partition("_")[0])
        if role in missing and (task.is_waiting or (task.state == "R" and name not in taken)):
            missing[role] -= 1
    return {role: count for role, count in missing.items() if count > 0}


class SlurmLauncher:
    """Runs processes as tasks of Slurm; it implements `launchers.base.Launcher`."""

    listening = Listening("0.0.0.0", HOST)

    def __init__(
        self,
        config: JobConfig,
        on_event: OnEvent,
        job_dir: Path,
        authority: JobAuthority | None = None,
    ) -> None:
        """Begin to watch; the authority makes a certificate for each process that is started."""
        self._config = config
        self._on_event = on_event
        self._job_dir = job_dir
        self._authority = authority
        self._roster = Roster(job_dir)
        self._roster.prepare()
        self._arrays = self._roster.arrays()
        self._asked_for: dict[str, float] = {}  # job of Slurm -> monotonic time
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._processes: dict[str, _Process] = {}  # by reference
        self._strays: list[str] = []  # tasks to cancel
        self._free: list[tuple[Role, float]] = []  # places of killed processes: until when
        self._missing: dict[Role, int] = {}  # at the last look
        self._is_closing = False
        self._is_left = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._work, name="slurm", daemon=True)
        self._thread.start()

    # --- the contract ----------------------------------------------------------------------------

    def start(self, spec: ProcessSpec) -> ProcessHandle:
        """Want a process; the process runs when Slurm has room for it."""
        name = process_name(spec.role, spec.index)
        ref = f"{spec.role}-{spec.index}-{secrets.token_hex(4)}"
        handle = ProcessHandle(spec.role, spec.index, ref)
        try:
            if self._authority is not None:
                self._authority.issue(spec.role, spec.index)
            self._end_strays(spec)
            with self._lock:
                if self._is_closing:
                    raise LaunchError(f"{name}: not started, because the job is ending")
                self._roster.want(ref, spec.command)
                self._processes[ref] = _Process(handle, time.monotonic())
        except OSError as error:
            raise LaunchError(f"{name}: the job's folder cannot be written: {error}") from error
        self._wake.set()
        return handle

    def adopt(self, handle: ProcessHandle) -> None:
        """Watch a process that an earlier master wanted."""
        try:
            handle_of(handle.ref)
        except ValueError as error:
            name = process_name(handle.role, handle.index)
            raise LaunchError(f"{name}: {error}; is it of another launcher?") from error
        with self._lock:
            if self._is_closing:
                raise LaunchError("no process can be adopted, because the job is ending")
            self._processes[handle.ref] = _Process(handle, time.monotonic(), has_place=True)
        self._wake.set()

    def stop(self, handle: ProcessHandle, grace_seconds: float) -> None:
        """Have SIGTERM sent now, and the process killed after the grace period."""
        with self._lock:
            one = self._processes.get(handle.ref)
            if one is not None:
                _ask(one, grace_seconds)
        self._wake.set()

    def close(self, grace_seconds: float) -> None:
        """Stop every process, wait until all are gone, and give back every place."""
        with self._lock:
            self._is_closing = True
            for one in self._processes.values():
                _ask(one, grace_seconds)
        self._wake.set()
        self._thread.join(grace_seconds + _KILLED_SECONDS + _GONE_SECONDS + _ASK_SECONDS)
        with self._lock:
            left = sorted(self._processes)
        if left:
            log.error("not gone in time, and left to Slurm: %s", ", ".join(left))

    def leave(self, grace_seconds: float) -> None:
        """Stop watching; the processes go on, and another master adopts them.

        If the master's own task was cancelled, there will be no other master, so the processes end.
        """
        try:
            is_cancelled = why_asked(own_task(), _AWAY_SECONDS) is Request.CANCELLED
        except LaunchError as error:
            log.warning("the processes of the job go on: %s", error)
            is_cancelled = False
        if is_cancelled:
            log.info("the job was cancelled: its processes end")
            self._end_workers(grace_seconds)
            self.close(grace_seconds)
            return
        with self._lock:
            self._is_closing = self._is_left = True
        self._wake.set()
        self._thread.join(_ASK_SECONDS)

    def _end_workers(self, grace_seconds: float) -> None:
        """End the workers before the ps replicas, which take the results of the workers."""
        with self._lock:
            self._is_closing = True
            workers = {r: p for r, p in self._processes.items() if p.handle.role is Role.WORKER}
            for one in workers.values():
                _ask(one, grace_seconds)
        self._wake.set()
        with self._changed:
            self._changed.wait_for(
                lambda: self._processes.keys().isdisjoint(workers), grace_seconds + _READ_SECONDS
            )

    def _end_strays(self, spec: ProcessSpec) -> None:
        """End the processes of a master that was killed before it could note them."""
        prefix = f"{spec.role}-{spec.index}-"
        with self._lock:
            known = set(self._processes)
        for ref in self._roster.wanted():
            if ref.startswith(prefix) and ref not in known:
                self._roster.unwant(ref)
        ended = self._roster.ended()
        for ref, occupied in self._roster.running().items():
            if ref.startswith(prefix) and ref not in known and ref not in ended:
                log.warning("%s is unknown, and is ended", ref)
                with self._lock:
                    self._strays.append(occupied.task)

    # --- the thread ------------------------------------------------------------------------------

    def _work(self) -> None:
        ask_at = beat_at = 0.0
        while True:
            now = time.monotonic()
            try:
                if now >= beat_at:
                    self._roster.beat()
                    beat_at = now + 2 * _ASK_SECONDS
                self._want_places()
                self._end_asked(now)
                self._read()
                if now >= ask_at:
                    self._ask_slurm(now)
                    ask_at = now + _ASK_SECONDS
            except (LaunchError, OSError) as error:
                log.warning("%s; it is tried again", error)
                ask_at = now + _ASK_SECONDS
            except Exception:
                log.exception("the processes of the job cannot be looked at")
            with self._lock:
                if self._is_left or (self._is_closing and not self._processes):
                    break
            self._wake.wait(_READ_SECONDS)
            self._wake.clear()
        if not self._is_left:
            self._give_back()

    def _want_places(self) -> None:
        """Request a place for each process that has none coming: one array for each role."""
        with self._lock:
            if self._is_closing:
                return
            new = [one for one in self._processes.values() if not one.has_place]
            if new:
                youngest = max(one.wanted_at for one in new)
                if time.monotonic() - youngest < _GATHER_SECONDS:
                    return
        for role in reversed(END_ORDER):
            several = [one for one in new if one.handle.role is role]
            for one in several:
                one.has_place = True
            while several and self._has_free(role):
                several.pop()
            for first in range(0, len(several), _LARGEST_ARRAY):
                self._want_array(role, several[first : first + _LARGEST_ARRAY])
            if any(not one.has_place for one in several):
                return  # workers come into the queue after those that they wait for

    def _has_free(self, role: Role) -> bool:
        """Return whether a place has just killed its process, so that it takes the next one."""
        now = time.monotonic()
        self._free = [(other, until) for other, until in self._free if until > now]
        found = next((one for one in self._free if one[0] is role), None)
        if found is not None:
            self._free.remove(found)
        return found is not None

    def _want_array(self, role: Role, several: list[_Process]) -> None:
        try:
            words = words_of(self._config, role, self._job_dir, len(several))
            job = commands.submit(script_of(role, self._job_dir), words)
        except SlurmAwayError as error:
            for one in several:
                one.has_place = False
                self._tell_waiting(one, str(error))
            return
        except LaunchError as error:
            for one in several:
                self._roster.unwant(one.handle.ref)
                self._report(one, Exited(one.handle, ExitReason.FAILED, None, str(error)))
            return
        log.info("asked for %d places of the role %s: job %s of Slurm", len(several), role, job)
        self._arrays[job] = role
        self._asked_for[job] = time.monotonic()
        self._roster.write_arrays(self._arrays)
        for one in several:
            self._tell_waiting(one, "it is in Slurm's queue")

    def _end_asked(self, now: float) -> None:
        """End the processes that were asked to end, each by its next step."""
        with self._lock:
            asked = [one for one in self._processes.values() if one.was_asked]
            strays, self._strays = self._strays, []
        requests: list[list[_Process]] = [[], [], []]
        for one in asked:
            if one.occupied is None:
                if self._roster.unwant(one.handle.ref):
                    self._report(one, Exited(one.handle, ExitReason.KILLED, None))
            elif one.num_requests < len(requests):
                # SIGTERM; then SIGINT, by which its place kills it; then all of the task.
                if now >= (0.0, one.kill_at, one.kill_at + _KILLED_SECONDS)[one.num_requests]:
                    requests[one.num_requests].append(one)
            elif now >= one.kill_at + _KILLED_SECONDS + _GONE_SECONDS:
                words = f"its task {one.occupied.task} does not end"
                self._report(one, Exited(one.handle, ExitReason.NODE_LOST, None, words))
        ways: list[Callable[[list[str]], None]] = [
            partial(commands.send, signal.SIGTERM),
            partial(commands.send, signal.SIGINT),
            commands.cancel,
        ]
        for request, several in zip(ways, requests, strict=True):
            if _has_taken(request, [one.occupied.task for one in several if one.occupied]):
                for one in several:
                    one.num_requests += 1
        if not _has_taken(commands.cancel, strays):
            with self._lock:
                self._strays += strays

    def _read(self) -> None:
        """Tell the changes in the files."""
        with self._lock:
            several = list(self._processes.values())  # each of which is in a file by now
        wanted = self._roster.wanted()
        running = self._roster.running()
        ended = self._roster.ended()
        for one in several:
            ref = one.handle.ref
            if one.occupied is None and ref in running:
                one.occupied = running[ref]
                tell(self._on_event, Started(one.handle))
            if ref in ended:
                end = self._roster.end_of(one.handle)
                if is_free_after(end) and not one.was_asked:
                    until = time.monotonic() + FREE_SECONDS / 2
                    self._free.append((one.handle.role, until))
                self._report(one, end)
            elif ref not in wanted and ref not in running:
                self._report(one, Exited(one.handle, ExitReason.UNKNOWN, None))

    def _ask_slurm(self, now: float) -> None:
        """Tell why processes wait, and which have ended without a message; give places back."""
        wanted = self._roster.wanted()
        tasks = commands.own_tasks()
        with self._lock:
            several = list(self._processes.values())
        for one in several:
            if one.occupied is None:
                self._tell_waiting(one, _why(self._arrays, tasks, one.handle.role))
                continue
            reason = silent_end(one.occupied, tasks.get(one.occupied.task))
            one.num_silent = 0 if reason is None else one.num_silent + 1
            if reason is not None and one.num_silent > 1:  # else its word may be on its way
                if one.was_asked:
                    reason = ExitReason.KILLED
                self._report(one, Exited(one.handle, reason, None))
        counts: dict[Role, int] = {}
        for ref in wanted:
            role = handle_of(ref).role
            counts[role] = counts.get(role, 0) + 1
        left_over = superfluous(self._arrays, tasks, counts)
        if left_over:
            log.info("nothing is wanted for %s", ", ".join(left_over))
            commands.cancel(left_over, is_waiting=True)
        taken = {place.task for place in self._roster.running().values()}
        self._want_missing(missing_places(self._arrays, tasks, counts, taken))
        self._forget_arrays(tasks, now)

    def _want_missing(self, missing: dict[Role, int]) -> None:
        """Request lost places again, for example if somebody has cancelled them in the queue."""
        before, self._missing = self._missing, missing
        with self._lock:
            for one in self._processes.values():
                role = one.handle.role
                # Twice, since a place may have taken a process while all this was asked.
                if (
                    one.occupied is None
                    and one.has_place
                    and min(missing.get(role, 0), before.get(role, 0))
                ):
                    one.has_place = False
                    missing[role] -= 1

    def _forget_arrays(self, tasks: Iterable[str], now: float) -> None:
        listed = {name.partition("_")[0] for name in tasks}
        gone = [
            job
            for job in self._arrays
            if job not in listed and now - self._asked_for.setdefault(job, now) > _KEPT_SECONDS
        ]
        for job in gone:
            del self._arrays[job], self._asked_for[job]
        if gone:
            self._roster.write_arrays(self._arrays)

    def _give_back(self) -> None:
        """Cancel all places; the places of ended processes are gone anyway."""
        try:
            if self._arrays:
                commands.cancel(self._arrays)
        except LaunchError as error:
            log.warning("places may be left in Slurm's queue, and end by themselves: %s", error)

    # --- telling ---------------------------------------------------------------------------------

    def _tell_waiting(self, one: _Process, why: str) -> None:
        if why and why != one.why:
            one.why = why
            tell(self._on_event, PendingProcess(one.handle, why, one.has_place))

    def _report(self, one: _Process, end: Exited) -> None:
        with self._lock:
            if self._processes.pop(one.handle.ref, None) is None:
                return
            self._changed.notify_all()
        try:
            self._roster.forget(one.handle.ref, one.occupied)
        except OSError as error:  # the job must hear of the end, whatever is left of it
            log.warning("the files of %s are left: %s", one.handle.ref, error)
        tell(self._on_event, end)


def _ask(one: _Process, grace_seconds: float) -> None:
    kill_at = time.monotonic() + grace_seconds
    one.kill_at = min(kill_at, one.kill_at) if one.was_asked else kill_at
    one.was_asked = True


def _has_taken(request: Callable[[list[str]], None], tasks: list[str]) -> bool:
    """Make a request for tasks; return False if Slurm is away, so that it is to be made again."""
    try:
        if tasks:
            request(tasks)
    except LaunchError as error:
        log.info("%s: %s", ", ".join(tasks), error)
        return not isinstance(error, SlurmAwayError)  # else they may be gone by now
    return True


def _why(arrays: Mapping[str, Role], tasks: Mapping[str, SlurmTask], role: Role) -> str:
    """Return why processes of a role wait, in Slurm's words; "" if Slurm says nothing yet."""
    for name, task in tasks.items():
        if task.is_waiting and arrays.get(name.partition("_")[0]) is role:
            return f"it is in Slurm's queue ({task.reason})"
    return ""

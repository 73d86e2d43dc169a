"""The seams between a job and whatever runs its processes: this machine, or a cluster.

There are two. `Launcher` is what the master uses to start workers and ps replicas. `Submitter` and
`SubmittedJob` are what a command uses to start a master, and to find a job that runs already.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from elasticdl.config import JobConfig
from elasticdl.job import Event, JobStatus, Role
from elasticdl.rpc.client import JobClient
from elasticdl.runtime.addresses import Listening

END_ORDER = (Role.WORKER, Role.MODEL_SERVER, Role.PS)
"""Who hands over goes before those who take it. Processes are asked for in the reverse order."""


class ExitReason(StrEnum):
    """Why a process ended."""

    FINISHED = "finished"  # exit code 0
    FAILED = "failed"  # any other exit code of its own
    KILLED = "killed"  # by a signal
    PREEMPTED = "preempted"  # asked to end, from outside; whatever its exit code
    OUT_OF_MEMORY = "out of memory"
    NODE_LOST = "node lost"
    UNKNOWN = "unknown"  # it ended while no master watched


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A process to start, with its command line."""

    role: Role
    index: int
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProcessHandle:
    """A started process. `ref` lets a restarted master find it again; for its launcher only."""

    role: Role
    index: int
    ref: str


@dataclass(frozen=True, slots=True)
class PendingProcess:
    """A process waits to be started, for as long as it takes: for room, for its image.

    lacks_room: It would have a place if another process gave up its own.
    """

    handle: ProcessHandle
    why: str
    lacks_room: bool = False


@dataclass(frozen=True, slots=True)
class Started:
    """A process runs."""

    handle: ProcessHandle


@dataclass(frozen=True, slots=True)
class Exited:
    """A process ended.

    code: its exit code, or minus the signal; None if nobody knows.
    last_words: the last error of its log without the time and the name of the process, or the last
        line; "" if the log has none, or if the reason is FINISHED, PREEMPTED or KILLED (unless it
        crashed while it built its model). Or what the launcher knows of the cause, if that says
        more.
    """

    handle: ProcessHandle
    reason: ExitReason
    code: int | None
    last_words: str = ""


ProcessEvent = PendingProcess | Started | Exited
OnEvent = Callable[[ProcessEvent], None]

_log = logging.getLogger(__name__)


def tell(on_event: OnEvent, event: ProcessEvent) -> None:
    """Call `on_event`; what it raises is logged, for other processes are to be watched still."""
    try:
        on_event(event)
    except Exception:
        _log.exception("on_event failed for %s", event)


class Launcher(Protocol):
    """Starts and watches the workers and ps replicas of one job, for its master.

    `OnEvent` is given when the launcher is made, and called from a thread of the launcher. Of each
    process started or adopted it hears `PendingProcess` any number of times, when there is news of
    why; then `Started`, unless the process never ran; then `Exited`, exactly once.

    It may be given the authority of the job when it is made. Then it makes a certificate for each
    process that it starts, and puts it where `--tls_dir` of that process says.

    listening: where the processes that it starts listen, and how others find them. It may hold a
        variable that is filled in where the process starts, such as "$(POD_IP)".
    """

    listening: Listening

    def start(self, spec: ProcessSpec) -> ProcessHandle:
        """Have a process started; it may be pending for long. `Job.logs` has what it prints.

        Raises:
            LaunchError: It cannot be started; says why.
        """
        ...

    def adopt(self, handle: ProcessHandle) -> None:
        """Watch a process that an earlier master started; if it is gone, `Exited` says so."""
        ...

    def stop(self, handle: ProcessHandle, grace_seconds: float) -> None:
        """Ask a process to end, and end it after the grace period; returns at once."""
        ...

    def close(self, grace_seconds: float) -> None:
        """Stop every process that still runs and wait until all are gone."""
        ...

    def leave(self, grace_seconds: float) -> None:
        """End before the job does: stop watching, and let another master adopt the processes.

        A launcher whose processes cannot live without it does as `close` does.
        """
        ...


class SubmittedJob(Protocol):
    """A job that was submitted, as a command sees it. Every method may be called by any thread.

    Whoever holds a `SubmittedJob` is a viewer: it may come and go, and lose its connection, and the
    job does not notice. The exception is a job that was submitted with `is_tied` and accepted as
    such (`is_tied` is true): it ends with the process that submitted it.
    """

    @property
    def name(self) -> str:
        """What `elasticdl attach NAME` finds it by: a folder, or a name."""
        ...

    @property
    def is_tied(self) -> bool:
        """Whether the job ends with this process."""
        ...

    @property
    def places(self) -> dict[str, str]:
        """What the launcher keeps of the job and where: {"logs": "jobs/x/logs"}."""
        ...

    @property
    def page(self) -> str:
        """Where to open the job's page in a browser, with its token; "" if that is not known."""
        ...

    def connect(self, timeout_seconds: float) -> JobClient:
        """Return a client of the master where it is now; the caller closes it.

        It waits for a master that has not begun yet. A viewer that loses the connection calls this
        again, because the master may be back elsewhere.

        Raises:
            UnavailableError: No master in time, or the job has ended.
        """
        ...

    def end(self, timeout_seconds: float) -> JobStatus | None:
        """Wait for the end of the job's processes; return the last picture, None if it goes on.

        Status "finished", "failed", or "stopped" or "suspended" for a job that can be gone on
        with. If the master left no picture, `message` says what the launcher knows of the end.
        """
        ...

    def waiting(self) -> str:
        """Return why the job has no master now, in words; "" if it has one, or has ended."""
        ...

    def processes(self) -> list[tuple[Role, int]]:
        """Return the processes that have logs, in order of role and index."""
        ...

    def logs(self, role: Role, index: int, follow: bool) -> Iterator[str]:
        """Yield the lines of a process' log without their ends; `follow`: up to the job's end.

        Raises:
            LaunchError: There is no such log.
        """
        ...

    def events(self, follow: bool, since: float = 0.0, with_beats: bool = False) -> Iterator[Event]:
        """Yield the events of the job (`elasticdl.observe.events`) from a time on.

        Args:
            follow: Go on up to the end of the job.
            since: Seconds since 1970.
            with_beats: Also what comes with each heartbeat, as far as it is kept.
        """
        ...

    def interrupt(self, at_once: bool = False) -> None:
        """End the job's processes in order, or at once; it can be gone on with. Returns at once.

        To cancel a job for good, ask its master (`JobClient.stop`).
        """
        ...

    def delete(self) -> None:
        """End the job's processes at once and remove what the launcher made for them.

        Results, state and logs in folders of the user stay.
        """
        ...


class Submitter(Protocol):
    """Starts the masters of jobs somewhere, and finds jobs there."""

    def submit(self, config: JobConfig, is_tied: bool) -> SubmittedJob:
        """Ask for the master of a job, and return without waiting for it to listen.

        Args:
            config: The job.
            is_tied: The job is to end with this process, however that ends, if the launcher can.

        Raises:
            ElasticdlError: The job cannot be started; says why.
        """
        ...

    def find(self, name: str) -> SubmittedJob | None:
        """Return a job that was submitted before, running or ended, or None.

        Raises:
            ElasticdlError: It cannot be told; says why.
        """
        ...

    def places_of(self, name: str) -> str:
        """Say where `find` has looked for a name, for the message that there is none."""
        ...

"""The interfaces between a job and whatever runs its processes: this machine, or a cluster.

There are two. The master uses `Launcher` to start workers and ps replicas. A command uses
`Submitter` and `SubmittedJob` to start a master, and to find a job that runs already.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from elasticdl.config import JobConfig
from elasticdl.job import Event, Role
from elasticdl.job.status import JobStatus
from elasticdl.rpc.client import JobClient
from elasticdl.runtime.addresses import Listening

END_ORDER = (Role.WORKER, Role.MODEL_SERVER, Role.PS)
"""At the end a role hands over to the roles after it.

Processes are started in the reverse order.
"""


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
    """A started process.

    A restarted master finds it again by `ref`, which only the launcher reads.
    """

    role: Role
    index: int
    ref: str


@dataclass(frozen=True, slots=True)
class PendingProcess:
    """A process waits to be started, for example for room or for its image.

    lacks_room: The process would have a place if another process gave up its own.
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

    code: The exit code, or minus the signal; None if unknown.
    last_words: The last error of the log without the time and the name of the process, or the last
        line. It is "" if the log has neither, or if the reason is FINISHED, PREEMPTED or KILLED
        (unless the process crashed while it built its model). If the launcher knows more of the
        cause, it says that instead.
    """

    handle: ProcessHandle
    reason: ExitReason
    code: int | None
    last_words: str = ""


ProcessEvent = PendingProcess | Started | Exited
OnEvent = Callable[[ProcessEvent], None]

_log = logging.getLogger(__name__)


def tell(on_event: OnEvent, event: ProcessEvent) -> None:
    """Call `on_event`; an error is logged, because other processes must still be watched."""
    try:
        on_event(event)
    except Exception:
        _log.exception("on_event failed for %s", event)


class Launcher(Protocol):
    """Starts and watches the workers and ps replicas of one job, for its master.

    The launcher is given `on_event` when it is made, and calls it from a thread of the launcher.
    For each process that was started or adopted, it tells `PendingProcess` any number of times,
    whenever the reason is new. Then it tells `Started`, unless the process never ran. Then it tells
    `Exited`, exactly once.

    The launcher may be given the authority of the job. Then it makes a certificate for each process
    that it starts, and puts the certificate in the place that `--tls_dir` of the process names.

    listening: The address at which started processes listen, and at which others find them. It may
        hold a variable that is filled in where the process starts, such as "$(POD_IP)".
    """

    listening: Listening

    def start(self, spec: ProcessSpec) -> ProcessHandle:
        """Start a process; it may be pending for long. `Job.logs` returns its output.

        Raises:
            LaunchError: The process cannot be started; the error says why.
        """
        ...

    def adopt(self, handle: ProcessHandle) -> None:
        """Watch a process that an earlier master started; if it is gone, `Exited` says so."""
        ...

    def stop(self, handle: ProcessHandle, grace_seconds: float) -> None:
        """Ask a process to end, and kill it after the grace period; return at once."""
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
    """A job that was submitted, as a command sees it.

    Every method may be called by any thread. The holder of a `SubmittedJob` is a viewer. A viewer
    may come and go, or lose its connection, without an effect on the job. The exception is a job
    that was submitted with `is_tied` and accepted as such (`is_tied` is true): the job ends with
    the process that submitted it.
    """

    @property
    def name(self) -> str:
        """The name with which `elasticdl attach NAME` finds the job: a folder, or a name."""
        ...

    @property
    def is_tied(self) -> bool:
        """Return whether the job ends with this process."""
        ...

    @property
    def places(self) -> dict[str, str]:
        """The places that the launcher keeps for the job: {"logs": "jobs/x/logs"}."""
        ...

    @property
    def page(self) -> str:
        """The address of the job's page, with its token, for a browser; "" if unknown."""
        ...

    def connect(self, timeout_seconds: float) -> JobClient:
        """Return a client of the master at its present address; the caller closes the client.

        The method waits for a master that has not begun yet. A viewer that loses the connection
        calls it again, because the master may have another address now.

        Raises:
            UnavailableError: No master was found in time, or the job has ended.
        """
        ...

    def end(self, timeout_seconds: float) -> JobStatus | None:
        """Wait for the end of the processes; return the last picture, None if the job goes on.

        The status is "finished", "failed", or, for a job that can be resumed, "stopped" or
        "suspended". If the master left no picture, `message` says what the launcher knows of the
        end.
        """
        ...

    def waiting(self) -> str:
        """Return why the job has no master now; "" if it has one, or has ended."""
        ...

    def before(self) -> JobStatus | None:
        """Return the picture that the master has left for when it does not answer, if any."""
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
            follow: Continue until the end of the job.
            since: Seconds since 1970.
            with_beats: Include the kept events of heartbeats.
        """
        ...

    def interrupt(self, at_once: bool = False) -> None:
        """End the job's processes in order, or at once; the job can be resumed.

        Return at once. To cancel a job for good, call its master (`JobClient.stop`).
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
            is_tied: The job must end with this process, however the process ends, if the launcher
                can do that.

        Raises:
            ElasticdlError: The job cannot be started; the error says why.
        """
        ...

    def find(self, name: str) -> SubmittedJob | None:
        """Return a job that was submitted before, running or ended, or None.

        Raises:
            ElasticdlError: The launcher cannot find out; the error says why.
        """
        ...

    def places_of(self, name: str) -> str:
        """Return where `find` has looked for a name, for the message that there is no such job."""
        ...

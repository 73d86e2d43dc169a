"""The master of a job in one process: the same decisions, without sockets."""

from __future__ import annotations

import itertools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import TypeVar

from elasticdl.config import JobConfig
from elasticdl.job import (
    DataCheckTurn,
    Finished,
    HeartbeatAnswer,
    Lease,
    Position,
    Progress,
    Role,
    ServedProgram,
    TaskReport,
    Usage,
    Wait,
)
from elasticdl.job.status import JobStatus
from elasticdl.master.actions import Note
from elasticdl.master.durable import JobData, open_job
from elasticdl.master.features.callbacks import Callbacks
from elasticdl.master.features.data_check import LookAtData
from elasticdl.master.features.outputs import WrittenPrograms
from elasticdl.master.interpreter import Effect, Interpreter, Line, ParameterAccess
from elasticdl.master.status import learning_rate_of, picture
from elasticdl.state.base import State
from elasticdl.state.memory import MemoryState

log = logging.getLogger(__name__)
T = TypeVar("T")


class InProcessMaster:
    """`elasticdl.rpc.base.MasterClient` for a worker in the same process (`Local`).

    A call returns when everything that it caused is done, a checkpoint included: training stands
    still meanwhile. Safe for any number of threads; one call at a time.
    """

    def __init__(
        self,
        config: JobConfig,
        data: JobData,
        access: ParameterAccess,
        state: State | None = None,
        clock: Callable[[], float] = time.monotonic,
        tell: Callable[[Note], None] | None = None,
    ) -> None:
        """Begin a job, or take up the one in `state`.

        Args:
            config: The job's settings.
            data: The shards of the job.
            access: The way to the one store of the job.
            state: The store of the job's journal; default: the job has no journal.
            clock: Seconds since any moment.
            tell: Told what happens, which is logged too.

        Raises:
            JobFailedError: The data that the command needs has no records.
        """
        # Reentrant: an action that is carried out has another event happen, in the same thread.
        self._lock = threading.RLock()
        self._tell = tell
        self._requests = itertools.count(1)
        self._session = uuid.uuid4().hex  # nothing that an earlier process held is this one's
        self._job, is_new = open_job(state or MemoryState(), config, lambda: data, clock)
        self._core = self._job.core
        self._features = self._core.features
        self._interpreter = Interpreter(
            self._core,
            access,
            processes=None,
            job_dir=config.cluster.job_dir,
            job_id=self._job.id,
            tell=self._note,
            event=lambda event: self._do(lambda: event(self._now())),
            run=_run_at_once,
            sync=self._job.sync,
        )
        if not is_new:
            self._do(lambda: self._core.resume(self._now()))

    def register_worker(self, worker_id: int, pid: int) -> float:
        """Announce the worker that is about to ask for tasks."""
        return self._do(
            lambda: self._core.register_worker(worker_id, self._session, pid, self._now())
        )

    def has_callbacks(self, worker_id: int) -> None:
        """Say that the model file has callbacks that the job is to call."""
        self._do(lambda: self._features.of(Callbacks).declare(self._now()))

    def needs_program(self, worker_id: int, key: str) -> bool:
        """Return whether the worker is to write its model's program."""
        return self._do(lambda: self._features.of(WrittenPrograms).is_needed(worker_id, key))

    def has_program(self, worker_id: int, key: str, program: ServedProgram) -> None:
        """Say that the model's program is written."""
        written = self._features.of(WrittenPrograms).written
        self._do(lambda: written(key, program, self._now()))

    def data_check_turn(self, worker_id: int) -> DataCheckTurn:
        """Return whether the worker is to look at the data."""
        return self._do(lambda: self._features.of(LookAtData).turn(worker_id))

    def data_checked(self, worker_id: int, lines: Sequence[str], error: str = "") -> None:
        """Say what the look at the data found. An error ends the worker, and so this process."""
        if not error:
            look = self._features.of(LookAtData)
            self._do(lambda: look.has_looked(worker_id, lines, error, self._now()))

    def lease(
        self, worker_id: int, is_patient: bool = False, reports: Sequence[TaskReport] = ()
    ) -> Lease | Wait | Finished:
        """End leases, then ask for a task; the answer comes at once."""
        for report in reports:
            self.report(worker_id, report)
        request = next(self._requests)
        return self._do(lambda: self._core.lease(worker_id, self._session, request, self._now()))

    def report(self, worker_id: int, report: TaskReport) -> None:
        """End a lease. A report of an old lease is ignored."""
        self._do(lambda: self._core.report(worker_id, self._session, report, self._now()))

    def announce(self, worker_id: int, position: Position) -> None:
        """Do nothing: this process would die together with its worker."""

    def heartbeat(
        self,
        role: Role,
        index: int,
        progress: Progress | None = None,
        generation: int = -1,
        usage: Usage | None = None,
        interval_seconds: float = 0.0,
    ) -> HeartbeatAnswer:
        """Say how far the worker is."""
        session = self._session
        self._do(lambda: self._core.heartbeat(role, index, session, progress, self._now(), usage))
        return HeartbeatAnswer(interval_seconds)

    @property
    def learning_rate(self) -> float | None:
        """The rate that the worker reported last; before, the rate that was set."""
        return learning_rate_of(self._core)

    def stop(self, reason: str) -> None:
        """Cancel the job, for example because the worker raised."""
        self._do(lambda: self._core.stop(reason, self._now()))

    def status(self) -> JobStatus:
        """Return a picture of the job."""
        with self._lock:
            return picture(self._core, self._now())

    def close(self) -> None:
        """Let go of the state."""
        self._job.close()

    @property
    def has_ended(self) -> bool:
        """Whether the job has finished or failed."""
        with self._lock:
            return self._core.has_ended

    @property
    def job_id(self) -> str:
        """The identity of the job."""
        return self._job.id

    def _now(self) -> float:
        return self._job.now()

    def _note(self, note: Note) -> None:
        is_unheard = note.is_warning and self._tell is None
        log.log(logging.WARNING if is_unheard else logging.INFO, "%s", note.text)
        if self._tell is not None:
            self._tell(note)

    def _do(self, event: Callable[[], T]) -> T:
        with self._lock:
            answer, actions = self._job.handle(event)
            for action in actions:
                self._interpreter.carry_out(action)
            return answer


def _run_at_once(effect: Effect, line: Line) -> None:
    effect()()

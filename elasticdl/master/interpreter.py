"""Carries out what the core wants done, whatever kind of master it has.

Each action that may block is an **effect**: a function that does it, and returns what is to happen
then. The master decides where effects run, in threads or at once (`RunEffect`); what is to happen
then happens where the core's events do.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Protocol

from elasticdl.checkpoints.disk import Disk
from elasticdl.checkpoints.hand_over import delete_hand_overs, hand_over_folder, hand_overs
from elasticdl.checkpoints.versions import version_folder
from elasticdl.checkpoints.writing import delete_checkpoints, put_back, write_checkpoint
from elasticdl.data.base import Captured
from elasticdl.errors import ElasticdlError, LaunchError, StateError, UnavailableError
from elasticdl.job import Role
from elasticdl.launchers.base import Exited, ExitReason, ProcessHandle
from elasticdl.locations import Location
from elasticdl.master import actions
from elasticdl.master.core import JobCore
from elasticdl.master.features.callbacks import Callbacks
from elasticdl.master.missing_tasks import Applied
from elasticdl.master.moves.effects import MoveEffects
from elasticdl.master.moves.messages import AbandonMove, LostInMove, PrepareMove, TellMoved
from elasticdl.master.moves.mover import Mover
from elasticdl.master.moves.steps import RedoLogPlace
from elasticdl.master.parameters.answers import (
    Answer,
    Audited,
    AuditFailed,
    CheckpointFailed,
    CheckpointWritten,
    RestorePoint,
    Watermarks,
    WatermarksFailed,
    WorkDone,
    WorkFailed,
)
from elasticdl.master.parameters.hand_overs import HandOver
from elasticdl.master.parameters.proof import Replicas
from elasticdl.master.parameters.schedule import RECOVERY_FOLDER
from elasticdl.observe.kinds import RowsExpired

log = logging.getLogger(__name__)

WORKERS = "workers"  # subfolder for hand-overs of the last worker of a world

Then = Callable[[], None]
Effect = Callable[[], Then]


class Line(Enum):
    """Effects of one line do not wait for those of another."""

    STORAGE = "storage"  # one at a time and in order: asks for parameters, writes files
    RECOVERY = "recovery"  # not kept waiting by a call that is stuck because of the same loss
    PROCESSES = "processes"


RunEffect = Callable[[Effect, Line], None]


class ParameterAccess(Protocol):
    """Calls to the holders of the parameters. All of them block.

    Raises:
        ElasticdlError: From each of them; `UnavailableError` if nobody could be reached.
    """

    def checkpoint(self, directory: Location) -> list[str]:
        """Have all parameters written into a folder; return the entries of its manifest."""
        ...

    def write_dense(self, directory: Location) -> None:
        """Have what workers hold beside ps replicas written into a folder, if they do."""
        ...

    def export(self, request: str) -> list[str]:
        """Have all parameters written as `edl_export::ExportRequest` says, as JSON."""
        ...

    def expire(self, now_seconds: int | None) -> str:
        """Have rows removed that have come to their end; say how many.

        Args:
            now_seconds: Since 1970, for those that live for days; None: by the clock.
        """
        ...

    def audit(self, first: int = 0) -> Replicas:
        """Ask what has been applied of each task; those before `first` are to be forgotten."""
        ...

    def tally(self) -> dict[str, int]:
        """Ask how often something was kept from being applied; see `elasticdl.job.COUNTERS`."""
        ...

    def applied_by(self, address: str, role: Role) -> Applied:
        """Ask one process, which nobody else knows yet, what it has applied of each task."""
        ...


class JobProcesses(Protocol):
    """The processes of the job, to start and end."""

    def start(self, role: Role, index: int) -> ProcessHandle:
        """Start one; may block.

        Raises:
            LaunchError: It cannot be started.
        """
        ...

    def adopt(self, handle: ProcessHandle) -> None:
        """Watch one that an earlier master started.

        Raises:
            LaunchError: It cannot be watched.
        """
        ...

    def stop(self, handle: ProcessHandle) -> None:
        """End one, without waiting for it."""
        ...

    def exited(self, exited: Exited) -> None:
        """Take in that one has ended, or could not be started."""
        ...


_JOB_DIGITS = 16  # digits of the job's identity in the name of a folder


class Interpreter:
    """Turns actions into effects, and the results of effects into events of the core."""

    def __init__(
        self,
        core: JobCore,
        access: ParameterAccess,
        processes: JobProcesses | None,
        job_dir: Path | None,
        job_id: str,
        tell: Callable[[actions.Note], None],
        event: Callable[[Callable[[float], None]], None],
        run: RunEffect,
        sync: Callable[[], None],
        mover: Mover | None = None,
    ) -> None:
        """Put it together.

        Args:
            core: The job.
            access: Calls to the holders of its parameters.
            processes: Its processes; None if it is all in one.
            job_dir: The folder of the job; None if it has none.
            job_id: Its identity, which its checkpoints carry.
            tell: Writes a note where somebody may read it.
            event: Has an event of the core happen, given the time.
            run: Runs an effect, and then what it returns.
            sync: Has the journal outlast a machine that loses power. It comes before a deletion
                that only the newest facts allow.
            mover: Leads ps replicas to another number of them; None where there are none.
        """
        self._core = core
        self._access = access
        self._processes = processes
        self._job_dir = job_dir
        self._job_id = job_id
        self._tell = tell
        self._event = event
        self._run = run
        self._sync = sync
        self._moves = self._effects_of(mover) if mover is not None else None
        self._disk = Disk()
        self._forgotten: Mapping[str, int] = {}  # records of a source before these positions

    def carry_out(self, action: actions.Action) -> None:
        """Do what the core wants, or see to it that it will be done."""
        match action:
            case actions.Note():
                self._tell(action)
            # Calls that may block go to threads, so that the event loop never waits for a disk or
            # for a process. The rest is done at once.
            case actions.StartProcess(role, index):
                self._run(lambda: self._start(role, index), Line.PROCESSES)
            case actions.AdoptProcess(handle):
                self._adopt(handle)
            case actions.StopProcess(handle):
                self._its_processes.stop(handle)
            case actions.WriteCheckpoint():
                rate = self._core.features.of(Callbacks).learning_rate
                self._run(lambda: self._write_checkpoint(action, rate), Line.STORAGE)
            case actions.DoWork():
                self._run(lambda: self._do_work(action), Line.STORAGE)
            case actions.DeleteCheckpoints():
                self._run(lambda: self._delete_checkpoints(action), Line.STORAGE)
            case actions.DeleteHandOvers(role):
                self._run(lambda: self._delete_hand_overs(role), Line.STORAGE)
            case actions.ExpireRows():
                self._run(self._expire_rows, Line.STORAGE)
            case actions.AskAudit():
                self._run(lambda: self._ask_audit(action), Line.STORAGE)
            case actions.AskWatermarks():
                self._run(lambda: self._ask_watermarks(action), Line.RECOVERY)
            case PrepareMove() | TellMoved() | AbandonMove():
                self._run(lambda: self._move(action), Line.STORAGE)
            case LostInMove(session):
                self._its_moves.lost(session)

    def take_up(self) -> None:
        """Finish the file operations in which the master before was killed.

        This comes before anything is restored.

        Raises:
            StateError: A checkpoint of this job lies under another name, and keeps it.
        """
        folders: list[Location | None] = [self._core.config.checkpoint.checkpoint_dir]
        folders += [self._recovery_dir] if self._job_dir is not None else []
        for folder in folders:
            if folder is not None:
                self._put_back(folder)

    def _put_back(self, folder: Location) -> None:
        try:
            self._disk.do(str(folder), lambda: put_back(folder))
        except OSError as error:
            words = f"{folder}: a checkpoint cannot be given its name back: {error.strerror}"
            raise StateError(words) from error
        except ElasticdlError as error:
            log.warning("%s", error)

    def close(self) -> None:
        """Wait for no disk any more: the master is about to end."""
        self._disk.close()

    def folder_of(self, checkpoint: RestorePoint) -> Location:
        """Return where a checkpoint of this job lies, or what a ps replica has handed over."""
        if isinstance(checkpoint, HandOver):
            role = Role.WORKER if checkpoint.is_of_worker else Role.PS
            return self.hand_over_folder(role, checkpoint.index, checkpoint.session)
        directory = self.checkpoint_dir(checkpoint.is_private)
        return version_folder(directory, checkpoint.version, self._job_id)

    def hand_over_folder(self, role: Role, index: int, session: str) -> Path:
        """Return where a process that is asked to end writes what it holds."""
        return hand_over_folder(self._hand_over_dir(role), index, session)

    def redo_log_of(self, replica: int, layout: int) -> str:
        """Return the folder of a ps replica's redo log; "": none.

        It is of this job and of one layout alone: under another, a replica has other keys.
        """
        if not self._core.config.redo_log_bytes:
            return ""
        return str(self._recovery_dir / f"{self._redo_logs}{layout}-{replica}")

    def remove_redo_logs(self, but: int | None = None) -> None:
        """Remove redo logs of ps replicas that have ended: all, or all but those of one layout."""
        for folder in self._recovery_dir.glob(f"{self._redo_logs}*"):
            if but is None or not folder.name.startswith(f"{self._redo_logs}{but}-"):
                shutil.rmtree(folder, ignore_errors=True)

    @property
    def _redo_logs(self) -> str:
        """The beginning of the name of each redo log of this job."""
        return f"redo-{self._job_id[:_JOB_DIGITS]}-"

    def _hand_over_dir(self, role: Role) -> Path:
        return self._recovery_dir / WORKERS if role is Role.WORKER else self._recovery_dir

    def checkpoint_dir(self, is_private: bool) -> Location:
        """Return the folder of the user's checkpoints, or of the job's own."""
        folder = self._core.config.checkpoint.checkpoint_dir
        if is_private:
            return self._recovery_dir
        assert folder is not None
        return folder

    @property
    def _recovery_dir(self) -> Path:
        assert self._job_dir is not None
        return self._job_dir / RECOVERY_FOLDER

    # --- processes -------------------------------------------------------------------------------

    @property
    def _its_processes(self) -> JobProcesses:
        assert self._processes is not None, "a job in one process starts no others"
        return self._processes

    def _start(self, role: Role, index: int) -> Then:
        processes = self._its_processes
        try:
            handle = processes.start(role, index)
        except LaunchError as error:
            # The core hears of a process that has ended, so that one rule decides on another try.
            exited = Exited(ProcessHandle(role, index, ""), ExitReason.FAILED, None, str(error))
            return lambda: processes.exited(exited)
        return lambda: self._event(lambda now: self._core.processes.started(handle, now))

    def _adopt(self, handle: ProcessHandle) -> None:
        try:
            self._its_processes.adopt(handle)
        except LaunchError as error:
            self._its_processes.exited(Exited(handle, ExitReason.UNKNOWN, None, str(error)))

    # --- whoever holds the parameters ------------------------------------------------------------

    def _answer(self, answer: Answer) -> Then:
        return lambda: self._event(lambda now: self._core.answered(answer, now))

    def _write_checkpoint(
        self, action: actions.WriteCheckpoint, learning_rate: float | None
    ) -> Then:
        version, config = action.version, self._core.config
        # Only the newest of the job's own checkpoints is kept, so each one must have all rows.
        full_every = 1 if action.is_private else config.checkpoint.checkpoint_full_every
        folder = self.checkpoint_dir(action.is_private)
        try:
            self._write_whole(folder, version, self._access.checkpoint, full_every, learning_rate)
        except ElasticdlError as error:
            was_unreachable = isinstance(error, UnavailableError)
            return self._answer(CheckpointFailed(version, str(error), was_unreachable))
        return self._answer(CheckpointWritten(version))

    def _write_whole(
        self,
        folder: Location,
        version: int,
        write_parts: Callable[[Location], list[str]],
        full_every: int = 1,
        learning_rate: float | None = None,
    ) -> None:
        def write(partial: Location) -> list[str]:
            with self._disk.elsewhere():  # the replicas show their progress themselves
                entries = write_parts(partial)
            # The parts name the leases that have begun. A journal that has forgotten them would
            # give their numbers again, and the replicas would refuse these for ever. This matters
            # where a checkpoint replaces one of the same version, which the journal knows.
            self._sync()
            return entries

        def write_all() -> Location:
            return write_checkpoint(
                folder,
                version,
                self._core.config.model.model_def,
                write,
                full_every,
                self._job_id,
                learning_rate=learning_rate,
            )

        self._disk.do(str(version_folder(folder, version, self._job_id)), write_all)

    def _do_work(self, action: actions.DoWork) -> Then:
        version, step = action.version, action.step

        def export(request: str) -> list[str]:
            with self._disk.elsewhere():  # the replicas show their progress themselves
                return self._access.export(request)

        try:
            done = self._disk.do(step.place, lambda: step.run(version, self._job_id, export))
        except ElasticdlError as error:
            is_unreachable = isinstance(error, UnavailableError)
            return self._answer(WorkFailed(version, str(error), is_unreachable))
        return self._answer(WorkDone(version, done))

    def _delete_checkpoints(self, action: actions.DeleteCheckpoints) -> Then:
        folder = self.checkpoint_dir(action.is_private)
        return self._clean(folder, lambda: delete_checkpoints(folder, action.kept, self._job_id))

    def _delete_hand_overs(self, role: Role) -> Then:
        directory = self._hand_over_dir(role)
        try:
            there = self._disk.do(str(directory), lambda: hand_overs(directory))
        except ElasticdlError as error:
            log.warning("%s", error)
            return _nothing

        # The folders are listed in a thread, but the core may be asked only in the event loop.
        def decide() -> None:
            kept = self._core.parameters.kept_hand_overs(role)
            gone = there - {hand_over_folder(directory, *whose) for whose in kept}
            self._run(lambda: self._clean(directory, lambda: delete_hand_overs(gone)), Line.STORAGE)

        return decide

    def _clean(self, folder: Location, work: Callable[[], None]) -> Then:
        # A machine that loses power could forget the newest facts, and an older state would need
        # the files. So the journal is synced before they go.
        def clean() -> None:
            self._sync()
            work()

        try:
            self._disk.do(str(folder), clean)
        except ElasticdlError as error:
            log.warning("%s", error)
        return _nothing

    def forget_records(self, source: Captured, positions: Mapping[str, int]) -> None:
        """Delete the records before a position of each partition; in the thread of the source."""
        if positions == self._forgotten:
            return
        try:
            self._sync()  # as in `_clean`
            source.forget(positions)
            self._forgotten = dict(positions)
        except ElasticdlError as error:
            log.warning("%s", error)

    def _expire_rows(self) -> Then:
        watermark = self._core.features.event_seconds
        now_seconds = None if watermark is None else int(watermark)
        if now_seconds == 0:  # no time of an event is known
            return _nothing
        try:
            text = self._access.expire(now_seconds)
        except ElasticdlError as error:
            log.warning("rows could not expire, the next pass will look again: %s", error)
            return _nothing
        return (lambda: self._tell(actions.Note(RowsExpired(), text))) if text else _nothing

    def _ask_audit(self, action: actions.AskAudit) -> Then:
        try:
            if action.first:  # replicas forget what came before it
                self._sync()
            proof = action.prove(self._access.audit(action.first))
            return self._answer(Audited((), proof, self._access.tally()))
        except ElasticdlError as error:
            was_unreachable = isinstance(error, UnavailableError)
            return self._answer(AuditFailed(str(error), was_unreachable))

    def _ask_watermarks(self, action: actions.AskWatermarks) -> Then:
        index, session, role = action.index, action.session, action.role
        try:
            applied = self._access.applied_by(action.address, role)
            return self._answer(Watermarks(index, session, applied, role))
        except ElasticdlError as error:
            return self._answer(WatermarksFailed(index, session, str(error), role))

    # --- moves to another number of ps replicas ---------------------------------------------------

    def _move(self, action: PrepareMove | TellMoved | AbandonMove) -> Then:
        answer = self._its_moves.do(action)
        return _nothing if answer is None else self._answer(answer)

    def _effects_of(self, mover: Mover) -> MoveEffects:
        def write_checkpoint(version: int, parts: Callable[[Location], list[str]]) -> None:
            def write(partial: Location) -> list[str]:
                self._access.write_dense(partial)
                return parts(partial)

            self._write_whole(self.checkpoint_dir(is_private=True), version, write)

        return MoveEffects(
            mover, write_checkpoint, self._redo_log_of, self._sync, self.remove_redo_logs
        )

    def _redo_log_of(self, replica: int, layout: int) -> RedoLogPlace | None:
        folder = self.redo_log_of(replica, layout)
        limit = self._core.config.redo_log_bytes
        return RedoLogPlace(folder, limit) if folder else None

    @property
    def _its_moves(self) -> MoveEffects:
        assert self._moves is not None, "only ps replicas move"
        return self._moves


def _nothing() -> None:
    """Nothing is to happen then."""

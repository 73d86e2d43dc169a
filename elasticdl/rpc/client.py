"""Clients of the master for workers, ps replicas and the command line."""

from __future__ import annotations

import itertools
import json
import math
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from elasticdl.job import (
    Attendance,
    DataCheckTurn,
    Event,
    Finished,
    HeartbeatAnswer,
    Lease,
    Position,
    Progress,
    PsRoute,
    ReplicaStart,
    Restore,
    Role,
    Seat,
    ServedProgram,
    TaskReport,
    Usage,
    Wait,
)
from elasticdl.job.status import JobStatus
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc import messages
from elasticdl.rpc.channel import ATTEMPT_SECONDS, Connection
from elasticdl.rpc.elasticdl_pb2_grpc import CertificatesStub, MasterStub
from elasticdl.runtime.credentials.files import TlsFiles

ENDED = ("finished", "failed")
"""`JobStatus.status` of a job that has ended."""


@dataclass(frozen=True, slots=True)
class EventsPage:
    """Events that a master remembers.

    has_more: The next page is not empty.
    has_gap: There were events between the last page and this one that the master has forgotten, or
        another master has taken over.
    """

    events: tuple[Event, ...]
    log: str
    next_offset: int
    has_more: bool
    has_gap: bool


class GrpcMasterClient:
    """`elasticdl.rpc.base.MasterClient` over gRPC, for one worker or ps process.

    Every call blocks until the master has answered. An unreachable master is called again after
    growing pauses, without limit. Any number of threads may use the client.

    connection: Other services of the master are called by it.
    session: Tells this process from its successor.

    Raises (each method):
        AuthenticationError: The master does not accept the token.
        UnavailableError: `close` was called meanwhile.
        ElasticdlError: The master refused the request; the error says why.
    """

    def __init__(
        self,
        address: str,
        token: bytes,
        on_unreachable: Callable[[str], None] | None = None,
        attempt_seconds: float = ATTEMPT_SECONDS,
        tls: TlsFiles | None = None,
        where: Callable[[], str | None] | None = None,
    ) -> None:
        """Prepare to talk to the master at `address`; see `Connection`."""
        self.connection = Connection(address, token, on_unreachable, attempt_seconds, tls, where)
        self._master = self.connection.stub(MasterStub)
        self._certificates = self.connection.stub(CertificatesStub)
        self.session = uuid.uuid4().hex
        self._requests = itertools.count(1)

    def register_worker(self, worker_id: int, pid: int) -> float:
        """Announce a worker process; return the seconds between its heartbeats."""
        answer = self.connection.call(
            self._master.RegisterWorker,
            pb.RegisterWorkerRequest(worker_id=worker_id, pid=pid, session=self.session),
        )
        return float(answer.heartbeat_seconds)

    def has_callbacks(self, worker_id: int) -> None:
        """Tell the master that the model file has callbacks that the job must call."""
        self.connection.call(self._master.HasCallbacks, pb.HasCallbacksRequest(worker_id=worker_id))

    def needs_program(self, worker_id: int, key: str) -> bool:
        """Return whether this worker must write its model's program."""
        request = pb.ModelProgramRequest(worker_id=worker_id, key=key)
        return bool(self.connection.call(self._master.ModelProgram, request).is_needed)

    def has_program(self, worker_id: int, key: str, program: ServedProgram) -> None:
        """Tell the master that the model's program is written."""
        request = pb.ModelProgramRequest(
            worker_id=worker_id, key=key, name=program.name, sha256=program.sha256
        )
        self.connection.call(self._master.ModelProgram, request)

    def data_check_turn(self, worker_id: int) -> DataCheckTurn:
        """Return whether this worker must look at the data."""
        request = pb.CheckDataRequest(worker_id=worker_id)
        return DataCheckTurn(self.connection.call(self._master.CheckData, request).turn)

    def data_checked(self, worker_id: int, lines: Sequence[str], error: str = "") -> None:
        """Tell the master what the look at the data found."""
        self.connection.call(
            self._master.CheckData,
            pb.CheckDataRequest(worker_id=worker_id, is_done=True, lines=lines, error=error),
        )

    def register_ps(self, index: int, address: str, pid: int) -> float:
        """Announce a ps replica that listens at `address` and has restored its checkpoint.

        Returns the seconds between its heartbeats.
        """
        answer = self.connection.call(
            self._master.RegisterPs,
            pb.RegisterPsRequest(index=index, address=address, pid=pid, session=self.session),
        )
        return float(answer.heartbeat_seconds)

    def restore_point(self, index: int, num_unsound: int = 0, problem: str = "") -> ReplicaStart:
        """Return what a started ps replica must restore.

        Args:
            index: The index of the replica.
            num_unsound: How many checkpoints could not be restored, newest first: they are torn or
                corrupt.
            problem: The problem of the last of these checkpoints.
        """
        request = pb.RestorePointRequest(index=index, num_unsound=num_unsound, problem=problem)
        answer = self.connection.call(self._master.RestorePoint, request)
        return ReplicaStart(
            answer.checkpoint,
            answer.redo_log,
            answer.num_replicas,
            answer.layout,
            answer.awaits_move,
            answer.journal_system,
            answer.first_lease,
        )

    def ps_route(self) -> PsRoute:
        """Return the addresses of all ps replicas; wait until all have registered."""
        while True:
            answer = self.connection.call(self._master.GetPsRoute, pb.GetPsRouteRequest())
            if answer.complete:
                return messages.ROUTE.unpack(answer.route)

    def lease(
        self, worker_id: int, is_patient: bool = False, reports: Sequence[TaskReport] = ()
    ) -> Lease | Wait | Finished:
        """End leases, then ask for a task.

        All attempts at one call carry the same number. So a master whose answer was lost, or its
        successor, gives the same lease again.
        """
        request = pb.LeaseRequest(
            worker_id=worker_id,
            session=self.session,
            request=next(self._requests),
            is_patient=is_patient,
            reports=map(messages.REPORT.pack, reports),
        )
        return messages.ANSWER.unpack(self.connection.call(self._master.Lease, request))

    def report(self, worker_id: int, report: TaskReport) -> None:
        """End a lease. A report of an old lease is ignored by the master."""
        self.connection.call(
            self._master.Report,
            pb.ReportRequest(
                worker_id=worker_id,
                session=self.session,
                report=messages.REPORT.pack(report),
            ),
        )

    def announce(self, worker_id: int, position: Position) -> None:
        """Tell the master the worker's position in a task, in case the worker dies there."""
        request = pb.AnnounceRequest(
            worker_id=worker_id,
            session=self.session,
            position=messages.POSITION.pack(position),
        )
        self.connection.call(self._master.Announce, request)

    def attend(self, worker_id: int, attendance: Attendance) -> Seat | Restore | Wait | Finished:
        """Come to the rendezvous of an all-reduce job.

        The call returns when there is a world with this worker, or after some seconds with `Wait`;
        then the worker calls again. `Finished`: the job does not need this worker any more.
        """
        request = pb.AttendRequest(
            worker_id=worker_id,
            session=self.session,
            attendance=messages.ATTENDANCE.pack(attendance),
        )
        return messages.SEATING.unpack(self.connection.call(self._master.Attend, request))

    def leave(self, role: Role, index: int, give_up_seconds: float) -> bool:
        """Tell the master that this process was asked to end, and not by the master.

        Returns whether the process must hand over its state; if not, the job does not need the
        state.

        Raises:
            UnavailableError: The master does not answer in this time.
        """
        return bool(self._leave(role, index, give_up_seconds).is_awaited)

    def leave_ps(self, index: int, give_up_seconds: float) -> str:
        """Tell the master that a ps replica was asked to end.

        Returns:
            The folder for the replica's store; "": the job does not need the store.

        Raises:
            UnavailableError: The master does not answer in this time.
        """
        return str(self._leave(Role.PS, index, give_up_seconds).folder)

    def leave_holder(self, worker_id: int, give_up_seconds: float) -> str:
        """Tell the master that a worker has left its world, because it was asked to end.

        Returns:
            The folder for the parameters; "": other workers have them too.

        Raises:
            UnavailableError: The master does not answer in this time.
        """
        return str(self._leave(Role.WORKER, worker_id, give_up_seconds).folder)

    def _leave(self, role: Role, index: int, give_up_seconds: float) -> Any:
        request = pb.LeaveRequest(
            role=messages.role_to_message(role), index=index, session=self.session
        )
        return self.connection.call(self._master.Leave, request, give_up_seconds)

    def hand_over(self, index: int, version: int, give_up_seconds: float) -> None:
        """Tell the master that a process has written its whole state, and the state's version.

        Raises:
            UnavailableError: The master does not answer in this time.
        """
        request = pb.HandOverRequest(index=index, session=self.session, version=version)
        self.connection.call(self._master.HandOver, request, give_up_seconds)

    def heartbeat(
        self,
        role: Role,
        index: int,
        progress: Progress | None = None,
        generation: int = -1,
        usage: Usage | None = None,
        interval_seconds: float = 0.0,
    ) -> HeartbeatAnswer:
        """Tell the master that the process is alive."""
        request = pb.HeartbeatRequest(
            role=messages.role_to_message(role),
            index=index,
            session=self.session,
            ps_generation=generation,
            interval_seconds=interval_seconds,
        )
        if progress is not None:
            request.progress.CopyFrom(messages.PROGRESS.pack(progress))
        if usage is not None:
            request.usage.CopyFrom(messages.USAGE.pack(usage))
        answer = self.connection.call(self._master.Heartbeat, request)
        # The master sends the route only if this process knows another generation of it.
        has_route = answer.HasField("ps_route")
        return HeartbeatAnswer(
            answer.interval_seconds,
            messages.ROUTE.unpack(answer.ps_route) if has_route else None,
            answer.is_recovering,
            answer.ended_world,
        )

    def renew_certificate(self, request: bytes) -> bytes:
        """Return the next certificate of this process, for the key of a request; both in PEM."""
        message = pb.RenewCertificateRequest(request=request)
        return bytes(self.connection.call(self._certificates.Renew, message).certificate)

    def close(self) -> None:
        """End all running calls."""
        self.connection.close()


class JobClient:
    """The calls to a job's master from the command line, and from programs outside the job."""

    def __init__(
        self,
        address: str,
        token: bytes,
        on_unreachable: Callable[[str], None] | None = None,
        attempt_seconds: float = ATTEMPT_SECONDS,
        tls: TlsFiles | None = None,
    ) -> None:
        """Prepare to talk to the master at `address`; see `Connection`."""
        self._connection = Connection(address, token, on_unreachable, attempt_seconds, tls)
        self._master = self._connection.stub(MasterStub)

    def status(self, give_up_seconds: float | None = None, with_members: bool = False) -> JobStatus:
        """Return the present picture of the job, with its processes if asked for."""
        request = pb.GetStatusRequest(with_members=with_members)
        answer = self._connection.call(self._master.GetStatus, request, give_up_seconds)
        return messages.STATUS.unpack(answer)

    def watch(self, give_up_seconds: float | None = None) -> Iterator[JobStatus]:
        """Yield a picture at once, then one after each change, until the last one of the job.

        If a master dies, the method waits for the next master and watches it.

        Args:
            give_up_seconds: Raise UnavailableError after so long without a master; None: never.
        """
        retry = self._connection.retry(give_up_seconds)
        while True:
            stream = None
            try:
                stream = self._master.WatchStatus(
                    pb.WatchStatusRequest(),
                    metadata=self._connection.metadata,
                    wait_for_ready=give_up_seconds is None,
                )
                for message in stream:
                    self._connection.answered()
                    retry = self._connection.retry(give_up_seconds)
                    yield messages.STATUS.unpack(message)
                    if message.status in ENDED:
                        return
                retry.pause()  # a master that stops may end the stream without an error
            except (grpc.RpcError, ValueError) as error:
                retry.after(error)
            finally:
                if stream is not None:
                    stream.cancel()

    def events(
        self,
        follow: bool,
        since: float = 0.0,
        give_up_seconds: float | None = None,
        with_beats: bool = False,
    ) -> Iterator[Event]:
        """Yield the events that the master remembers, from a time on (seconds since 1970).

        Args:
            follow: Continue until the end of the job; wait for a new master if the master dies.
            since: The first time, in seconds since 1970.
            with_beats: Include the events of heartbeats.
            give_up_seconds: Raise UnavailableError after so long without a master; None: never.
        """
        retry = self._connection.retry(give_up_seconds)
        while True:
            stream = None
            try:
                stream = self._master.WatchEvents(
                    pb.WatchEventsRequest(since=since, follow=follow, with_beats=with_beats),
                    metadata=self._connection.metadata,
                    wait_for_ready=give_up_seconds is None,
                )
                for message in stream:
                    retry = self._connection.retry(give_up_seconds)
                    event = json.loads(message.json)
                    # After a break the stream begins anew, behind the last event that was yielded.
                    since = math.nextafter(event["time"], math.inf)
                    yield event
                return
            except (grpc.RpcError, ValueError) as error:
                retry.after(error)
            finally:
                if stream is not None:
                    stream.cancel()

    def events_page(
        self,
        after: EventsPage | None = None,
        limit: int = 0,
        with_beats: bool = True,
        give_up_seconds: float | None = None,
    ) -> EventsPage:
        """Return the events that the master remembers, a page at a time.

        Args:
            after: The page before; None: return the first page.
            limit: The maximal number of events; 0: as many as the master gives at once.
            with_beats: Include the events of heartbeats.
            give_up_seconds: Raise UnavailableError after so long without a master; None: never.
        """
        request = pb.GetEventsRequest(limit=limit, with_beats=with_beats)
        if after is not None:
            request.log, request.offset = after.log, after.next_offset
        answer = self._connection.call(self._master.GetEvents, request, give_up_seconds)
        return EventsPage(
            tuple(map(json.loads, answer.json)),
            answer.log,
            answer.next_offset,
            answer.has_more,
            answer.has_gap or (after is not None and after.log != answer.log),
        )

    def set_num_workers(self, num_workers: int, give_up_seconds: float | None = None) -> None:
        """Set the number of workers of the job."""
        self._connection.call(
            self._master.SetNumWorkers,
            pb.SetNumWorkersRequest(num_workers=num_workers),
            give_up_seconds,
        )

    def set_num_ps(self, num_ps: int, give_up_seconds: float | None = None) -> None:
        """Ask for another number of ps replicas; the model moves after the call has returned."""
        self._connection.call(
            self._master.SetNumPs, pb.SetNumPsRequest(num_ps=num_ps), give_up_seconds
        )

    def stop(self, reason: str, give_up_seconds: float | None = None) -> None:
        """Cancel the job: its processes are stopped, and it ends as failed."""
        self._connection.call(self._master.Stop, pb.StopRequest(reason=reason), give_up_seconds)

    def drain(self, give_up_seconds: float | None = None) -> None:
        """Let a job without end finish once it has trained the data that have arrived by now.

        Raises:
            ElasticdlError: The job has an end.
        """
        self._connection.call(self._master.Stop, pb.StopRequest(drain=True), give_up_seconds)

    def close(self) -> None:
        """End all running calls."""
        self._connection.close()

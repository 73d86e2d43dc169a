"""The master's gRPC front: messages in, events to the core, messages out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

import grpc

from elasticdl import registry
from elasticdl.errors import ElasticdlError, StateError
from elasticdl.job import ReplicaStart, Restore, Role, ServedProgram, Wait
from elasticdl.job.status import JobStatus
from elasticdl.master.certificates import Renewals
from elasticdl.master.core import JobCore
from elasticdl.master.features.callbacks import Callbacks
from elasticdl.master.features.data_check import LookAtData
from elasticdl.master.features.outputs import WrittenPrograms
from elasticdl.master.features.sources import RecordSource
from elasticdl.master.parameters.answers import BeginWith, RestorePoint
from elasticdl.master.phases import ENDED
from elasticdl.master.process_reports import ProcessReports
from elasticdl.master.status import members
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc import messages
from elasticdl.rpc.channel import Authentication, Defects, server_options
from elasticdl.rpc.codec import MessageError
from elasticdl.rpc.elasticdl_pb2_grpc import (
    MasterServicer,
    add_CertificatesServicer_to_server,
    add_MasterServicer_to_server,
)

if TYPE_CHECKING:
    from elasticdl.runtime.credentials.job_authority import JobAuthority

_PS_ROUTE_SECONDS = 5.0  # the longest that GetPsRoute waits before it answers "not yet"
_LEASE_SECONDS = 5.0  # the same for Lease, of a patient worker
_ATTEND_SECONDS = 2.0  # the same for Attend
_PICTURE_SECONDS = 0.1  # the shortest time between two pictures of WatchStatus
_LONGEST_SILENCE_SECONDS = 1.0  # and the longest

T = TypeVar("T")
Context: TypeAlias = grpc.aio.ServicerContext


class Front(Protocol):
    """The part of the master's event loop that the servicer needs."""

    core: JobCore
    reports: ProcessReports

    def now(self) -> float:
        """Seconds that the job has lasted."""
        ...

    async def handle(self, event: Callable[[], T]) -> T:
        """Have an event happen; its facts are written down when this returns, or raises."""
        ...

    async def written(self) -> None:
        """Wait until all that is true now is written down."""
        ...

    async def changed(self, timeout_seconds: float) -> None:
        """Wait until something has changed, or for so long."""
        ...

    async def restore_point(self, index: int, num_unsound: int, problem: str) -> ReplicaStart:
        """Return what a ps replica that has been started is to restore."""
        ...

    def folder_of(self, point: RestorePoint | None) -> str:
        """Return where a checkpoint of this job lies; "" of None."""
        ...

    def hand_over_folder(self, role: Role, index: int, session: str) -> str:
        """Return the folder that a ps replica is to write what it holds to."""
        ...

    async def told_status(self) -> JobStatus:
        """Return a picture that has only written facts; while none are written, it says why."""
        ...

    def was_told_the_end(self) -> None:
        """Note that somebody is being sent the last picture of the job."""
        ...

    def watching(self) -> AbstractContextManager[None]:
        """Note that somebody is sent pictures within the block, up to the last one."""
        ...


AddService: TypeAlias = Callable[[Front, grpc.aio.Server], None]
"""Adds a service of a package to the master's server."""


class Servicer(MasterServicer):
    """`elasticdl.v1.Master`. The methods are documented in the `.proto`."""

    def __init__(self, master: Front) -> None:
        self._master = master

    async def RegisterWorker(
        self, request: pb.RegisterWorkerRequest, context: Context
    ) -> pb.RegisterWorkerResponse:
        """A worker process announces itself."""
        core, now = self._master.core, self._master.now()
        interval = await self._event(
            context,
            lambda: core.register_worker(request.worker_id, request.session, request.pid, now),
        )
        return pb.RegisterWorkerResponse(heartbeat_seconds=interval)

    async def HasCallbacks(
        self, request: pb.HasCallbacksRequest, context: Context
    ) -> pb.HasCallbacksResponse:
        """A worker says that the model file has callbacks."""
        core, now = self._master.core, self._master.now()
        await self._event(context, lambda: core.features.of(Callbacks).declare(now))
        return pb.HasCallbacksResponse()

    async def ModelProgram(
        self, request: pb.ModelProgramRequest, context: Context
    ) -> pb.ModelProgramResponse:
        """A worker asks whether to write its model's program, or says that it has."""
        programs = self._master.core.features.of(WrittenPrograms)
        now = self._master.now()

        def ask() -> bool:
            if request.name:
                program = ServedProgram(request.name, request.sha256)
                programs.written(request.key, program, now)
                return False
            return programs.is_needed(request.worker_id, request.key)

        return pb.ModelProgramResponse(is_needed=await self._event(context, ask))

    async def CheckData(
        self, request: pb.CheckDataRequest, context: Context
    ) -> pb.CheckDataResponse:
        """A worker asks whether to look at the data, or says what it found."""
        look, now = self._master.core.features.of(LookAtData), self._master.now()

        def check() -> str:
            if request.is_done:
                look.has_looked(request.worker_id, request.lines, request.error, now)
            return str(look.turn(request.worker_id))

        return pb.CheckDataResponse(turn=await self._event(context, check))

    async def RegisterPs(
        self, request: pb.RegisterPsRequest, context: Context
    ) -> pb.RegisterPsResponse:
        """A ps replica announces itself."""
        core, now = self._master.core, self._master.now()
        interval = await self._event(
            context,
            lambda: core.register_ps(
                request.index, request.session, request.pid, request.address, now
            ),
        )
        return pb.RegisterPsResponse(heartbeat_seconds=interval)

    async def RestorePoint(
        self, request: pb.RestorePointRequest, context: Context
    ) -> pb.RestorePointResponse:
        """A ps replica that has been started asks what to begin with."""
        start = await answered(
            context,
            self._master.restore_point(request.index, request.num_unsound, request.problem),
        )
        return pb.RestorePointResponse(
            checkpoint=start.checkpoint,
            redo_log=start.redo_log,
            num_replicas=start.num_replicas,
            layout=start.layout,
            awaits_move=start.awaits_move,
            journal_system=start.journal_system,
            first_lease=start.first_lease,
        )

    async def GetPsRoute(
        self, request: pb.GetPsRouteRequest, context: Context
    ) -> pb.GetPsRouteResponse:
        """Answer when every ps replica is there, or "not yet" after some seconds."""
        deadline = self._master.now() + _PS_ROUTE_SECONDS
        while True:
            route = self._master.core.parameters.route
            if all(route.addresses):
                # The route follows from facts: workers may hear of it only when they are written.
                await answered(context, self._master.written())
                return pb.GetPsRouteResponse(complete=True, route=messages.ROUTE.pack(route))
            seconds_left = deadline - self._master.now()
            if seconds_left <= 0:
                return pb.GetPsRouteResponse(complete=False)
            await self._master.changed(seconds_left)

    async def Lease(self, request: pb.LeaseRequest, context: Context) -> pb.LeaseResponse:
        """A worker ends leases, and asks for a task."""
        core, session = self._master.core, request.session

        def begin() -> pb.LeaseResponse:
            now = self._master.now()
            for report in request.reports:
                core.report(request.worker_id, session, messages.REPORT.unpack(report), now)
            return lease()

        def lease(goes_on: bool = False) -> pb.LeaseResponse:
            # An attempt may wait here for long, so the time is read anew each time.
            now = self._master.now()
            answer = core.lease(request.worker_id, session, request.request, now, goes_on)
            if isinstance(answer, Wait) and core.leasing.lets_workers_wait:
                answer = Wait(0.0)
            return messages.ANSWER.pack(answer)  # before the next event changes what is in it

        deadline = self._master.now() + _LEASE_SECONDS
        answer = await self._event(context, begin)
        while (
            request.is_patient
            and core.leasing.lets_workers_wait
            and answer.HasField("wait")
            and core.leasing.awaits(request.worker_id, session, request.request)
            and self._master.now() < deadline
        ):
            await self._turn_of(request.worker_id, session, request.request, deadline)
            answer = await self._event(context, lambda: lease(goes_on=True))
        return answer

    async def _turn_of(self, worker_id: int, session: str, request: int, deadline: float) -> None:
        """Wait until there is something for a worker, or as long as it may wait."""
        core = self._master.core
        while self._master.now() < deadline and core.leasing.awaits(worker_id, session, request):
            # Thousands may wait, and each change wakes all of them. The pace limits the time that
            # the master spends on them.
            await asyncio.sleep(core.leasing.pace_seconds)
            now = self._master.now()
            if core.leasing.has_word_for(worker_id, session, now):
                return
            await self._master.changed(max(0.0, deadline - now))

    async def Report(self, request: pb.ReportRequest, context: Context) -> pb.ReportResponse:
        """A worker ends a lease."""
        core, now = self._master.core, self._master.now()
        worker_id = request.worker_id

        def report() -> bool:
            said = messages.REPORT.unpack(request.report)
            return core.report(worker_id, request.session, said, now)

        return pb.ReportResponse(accepted=await self._event(context, report))

    async def Announce(self, request: pb.AnnounceRequest, context: Context) -> pb.AnnounceResponse:
        """A worker says where in a task it is."""
        core, now = self._master.core, self._master.now()
        await self._event(
            context,
            lambda: core.processes.announced(
                request.worker_id, request.session, messages.POSITION.unpack(request.position), now
            ),
        )
        return pb.AnnounceResponse()

    async def Heartbeat(
        self, request: pb.HeartbeatRequest, context: Context
    ) -> pb.HeartbeatResponse:
        """A process says that it is alive."""
        core, now = self._master.core, self._master.now()
        progress = (
            messages.PROGRESS.unpack(request.progress) if request.HasField("progress") else None
        )

        usage = messages.USAGE.unpack(request.usage) if request.HasField("usage") else None

        def heartbeat() -> pb.HeartbeatResponse:
            role = messages.role_from_message(request.role)
            interval = core.heartbeat(
                role,
                request.index,
                request.session,
                progress,
                now,
                usage,
                request.interval_seconds,
            )
            self._master.reports.heartbeat(role, request.index, progress, usage)
            answer = pb.HeartbeatResponse(
                interval_seconds=interval,
                is_recovering=core.parameters.is_recovering,
                ended_world=core.parameters.ended_world(role, request.index),
            )
            # Most heartbeats need no route, so it is sent only to a worker with an old one.
            if request.ps_generation not in (-1, core.parameters.route.generation):
                answer.ps_route.CopyFrom(messages.ROUTE.pack(core.parameters.route))
            return answer

        return await self._event(context, heartbeat)

    async def Attend(self, request: pb.AttendRequest, context: Context) -> pb.AttendResponse:
        """Answer when there is a world with this worker, or "not yet" after some seconds."""
        core, now = self._master.core, self._master.now()
        worker_id, session = request.worker_id, request.session
        said = messages.ATTENDANCE.unpack(request.attendance)
        answer = await self._event(context, lambda: core.attend(worker_id, session, said, now))
        deadline = self._master.now() + _ATTEND_SECONDS
        while isinstance(answer, Wait) and self._master.now() < deadline:
            await self._master.changed(deadline - self._master.now())
            answer = core.parameters.seating(worker_id, session, said)
        await answered(context, self._master.written())
        if isinstance(answer, BeginWith):
            restore = Restore(self._master.folder_of(answer.point))
            return messages.SEATING.pack(restore)
        return messages.SEATING.pack(answer)

    async def Leave(self, request: pb.LeaveRequest, context: Context) -> pb.LeaveResponse:
        """A process was asked to end."""
        core, now = self._master.core, self._master.now()
        index, session = request.index, request.session

        def leave() -> pb.LeaveResponse:
            role = messages.role_from_message(request.role)
            leaving = core.leave(role, index, session, now)
            answer = pb.LeaveResponse(is_awaited=leaving.is_awaited)
            if leaving.hands_over:
                answer.folder = self._master.hand_over_folder(role, index, session)
            return answer

        return await self._event(context, leave)

    async def HandOver(self, request: pb.HandOverRequest, context: Context) -> pb.HandOverResponse:
        """A process has written all that it holds."""
        core, now = self._master.core, self._master.now()
        await self._event(
            context,
            lambda: core.parameters.handed_over(
                request.index, request.session, request.version, now
            ),
        )
        return pb.HandOverResponse()

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.JobStatus:
        """Give a picture of the job."""
        answer = await self._picture(context)
        if request.with_members:
            core, now = self._master.core, self._master.now()
            answer.members.extend(map(messages.MEMBER.pack, members(core, now)))
        return answer

    async def WatchStatus(
        self, request: pb.WatchStatusRequest, context: Context
    ) -> AsyncIterator[pb.JobStatus]:
        """Give pictures of the job, up to its last one."""
        with self._master.watching():
            while True:
                picture = await self._picture(context)
                yield picture
                if picture.status in ENDED:
                    return
                # The wait begins before the sleep, so that a change during the sleep is not missed.
                # The sleep limits the pictures when much changes.
                changed = asyncio.ensure_future(self._master.changed(_LONGEST_SILENCE_SECONDS))
                await asyncio.sleep(_PICTURE_SECONDS)
                await changed

    async def WatchEvents(
        self, request: pb.WatchEventsRequest, context: Context
    ) -> AsyncIterator[pb.Event]:
        """Give the events that the master remembers, and those that are added."""
        offset = 0
        while True:
            is_last = not request.follow or self._master.core.has_ended
            await answered(context, self._master.written())  # notes follow what is written
            has_more = True
            while has_more:
                page = self._master.reports.events.page(offset, with_beats=request.with_beats)
                offset, has_more = page.next_offset, page.has_more
                for event in page.events:
                    if event.time >= request.since:
                        yield pb.Event(json=event.json)
            if is_last:
                return
            changed = asyncio.ensure_future(self._master.changed(_LONGEST_SILENCE_SECONDS))
            await asyncio.sleep(_PICTURE_SECONDS)
            await changed

    async def GetEvents(
        self, request: pb.GetEventsRequest, context: Context
    ) -> pb.GetEventsResponse:
        """Give a page of the events that the master remembers."""
        await answered(context, self._master.written())
        events = self._master.reports.events
        # Numbers of another master's events mean nothing here: the client begins anew.
        offset = max(0, request.offset) if request.log == events.log else 0
        page = events.page(offset, request.limit, request.with_beats)
        return pb.GetEventsResponse(
            log=events.log,
            json=[event.json for event in page.events],
            next_offset=page.next_offset,
            has_more=page.has_more,
            has_gap=page.has_gap,
        )

    async def SetNumWorkers(
        self, request: pb.SetNumWorkersRequest, context: Context
    ) -> pb.SetNumWorkersResponse:
        """Go on with the number of workers that is asked for."""
        core, now = self._master.core, self._master.now()
        await self._event(context, lambda: core.processes.set_num_workers(request.num_workers, now))
        return pb.SetNumWorkersResponse()

    async def SetNumPs(self, request: pb.SetNumPsRequest, context: Context) -> pb.SetNumPsResponse:
        """Have the model move to another number of ps replicas."""
        core, now = self._master.core, self._master.now()
        await self._event(context, lambda: core.set_num_ps(request.num_ps, now))
        return pb.SetNumPsResponse()

    async def Stop(self, request: pb.StopRequest, context: Context) -> pb.StopResponse:
        """Cancel the job, or finish it where that is asked for."""
        core, now = self._master.core, self._master.now()
        if request.drain:
            await self._event(context, lambda: core.features.of(RecordSource).drain(now))
            return pb.StopResponse()
        await self._event(context, lambda: core.stop(request.reason or "by request", now))
        return pb.StopResponse()

    async def _picture(self, context: Context) -> pb.JobStatus:
        status = await answered(context, self._master.told_status())
        if status.status in ENDED:
            self._master.was_told_the_end()
        return messages.STATUS.pack(status)

    async def _event(self, context: Context, event: Callable[[], T]) -> T:
        return await answered(context, self._master.handle(event))


async def answered(context: Context, answer: Awaitable[T]) -> T:
    """Return the answer to a call, or end the call with the error that there is instead."""
    try:
        return await answer
    except StateError:
        # This master ends; whoever restarts it gives the answer. Clients come again.
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the master's journal failed")
    except MessageError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    except ElasticdlError as error:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
    raise AssertionError("abort raises")


def make_server(
    master: Front, token: bytes, authority: JobAuthority | None = None
) -> grpc.aio.Server:
    """Return a server of the master that is not started, and has no port yet."""
    server = grpc.aio.server(
        interceptors=[Authentication(token), Defects()], options=server_options()
    )
    add_MasterServicer_to_server(Servicer(master), server)
    add_services: dict[str, AddService] = registry.brought("services")
    for add_service in add_services.values():
        add_service(master, server)
    if authority is not None:
        add_CertificatesServicer_to_server(Renewals(authority), server)
    return server

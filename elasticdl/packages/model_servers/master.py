"""The master's part of model servers: it knows where they listen, and tells workers."""

from __future__ import annotations

import grpc

from elasticdl.errors import ElasticdlError
from elasticdl.job import Role
from elasticdl.master.features.base import JobFeature, JobParts
from elasticdl.master.servicer import Front, answered
from elasticdl.observe import kinds
from elasticdl.packages.model_servers.settings import ModelServersSection
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.elasticdl_pb2_grpc import (
    ModelServersServicer,
    add_ModelServersServicer_to_server,
)

_LONGEST_WAIT_SECONDS = 5.0  # of GetModelServers, before it answers that there is none


class ModelServerAddresses(JobFeature):
    """Says where they listen."""

    def __init__(self, job: JobParts) -> None:
        self._job = job
        self._number = job.config.of(ModelServersSection).num_model_servers

    def register(self, index: int, session: str, pid: int, address: str, now: float) -> float:
        """A model server announces itself; return how often it is to send a heartbeat.

        All model servers hold the same, so a new process takes the place of an old one.

        Raises:
            ElasticdlError: The job has no model server of that number.
        """
        if not 0 <= index < self._number:
            raise ElasticdlError(
                f"model server {index} registers, but the job has "
                f"--num_model_servers={self._number}"
            )
        members = self._job.members
        member = members.find(Role.MODEL_SERVER, index)
        if member is not None and member.is_alive and member.session != session:
            self._job.processes.replaced(member, now)
        member = members.register(Role.MODEL_SERVER, index, session, pid, address, now)
        registered = kinds.Registered(member.name, pid, address)
        self._job.note(registered, f"{member.name} listens at {address}")
        self._job.advance(now)
        return members.tell_interval(member, 0.0)

    def addresses(self) -> list[str]:
        """Return where each model server listens; "" of one that is away."""
        found = (self._job.members.find(Role.MODEL_SERVER, i) for i in range(self._number))
        return ["" if m is None or not m.is_alive else m.address for m in found]


def features_of(job: JobParts) -> list[JobFeature]:
    """Return the feature of a job that has model servers."""
    has_some = job.config.of(ModelServersSection).num_model_servers
    return [ModelServerAddresses(job)] if has_some else []


class Addresses(ModelServersServicer):
    """`elasticdl.v1.ModelServers`. The methods are documented in the `.proto`."""

    def __init__(self, master: Front) -> None:
        self._master = master

    async def RegisterModelServer(
        self, request: pb.RegisterModelServerRequest, context: grpc.aio.ServicerContext
    ) -> pb.RegisterModelServerResponse:
        """A model server announces itself."""
        given = request.index, request.session, request.pid, request.address, self._master.now()
        event = self._master.handle(lambda: self._feature.register(*given))
        interval = await answered(context, event)
        return pb.RegisterModelServerResponse(heartbeat_seconds=interval)

    async def GetModelServers(
        self, request: pb.GetModelServersRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetModelServersResponse:
        """Answer when a model server is there, or after some seconds."""
        deadline = self._master.now() + _LONGEST_WAIT_SECONDS
        while not any(self._feature.addresses()):
            seconds_left = deadline - self._master.now()
            if seconds_left <= 0:
                break
            await self._master.changed(seconds_left)
        return pb.GetModelServersResponse(addresses=self._feature.addresses())

    @property
    def _feature(self) -> ModelServerAddresses:
        return self._master.core.features.of(ModelServerAddresses)


def add_service(master: Front, server: grpc.aio.Server) -> None:
    """Add the service by which model servers and workers find each other."""
    add_ModelServersServicer_to_server(Addresses(master), server)

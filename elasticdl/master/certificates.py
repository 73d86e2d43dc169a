"""The service by which a process gets its next certificate, before the one that it has ends."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import grpc

from elasticdl.errors import AuthenticationError
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.elasticdl_pb2_grpc import CertificatesServicer

if TYPE_CHECKING:
    from elasticdl.runtime.credentials.job_authority import JobAuthority

log = logging.getLogger(__name__)


class Renewals(CertificatesServicer):
    """`elasticdl.v1.Certificates`."""

    def __init__(self, authority: JobAuthority) -> None:
        self._authority = authority

    async def Renew(
        self, request: pb.RenewCertificateRequest, context: grpc.aio.ServicerContext
    ) -> pb.RenewCertificateResponse:
        """A process asks for its next certificate."""
        names = context.auth_context().get("peer_uri", ())
        uris = [bytes(name).decode(errors="replace") for name in names]
        loop = asyncio.get_running_loop()
        try:
            # A signature takes a moment, which others need not wait for.
            signed = await loop.run_in_executor(None, self._authority.renew, uris, request.request)
        except AuthenticationError as error:
            log.warning("no certificate for %s: %s", ", ".join(uris) or "a stranger", error)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        return pb.RenewCertificateResponse(certificate=signed)

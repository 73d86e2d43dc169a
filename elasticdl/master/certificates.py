"""The master as the authority of its job.

It makes a certificate for each process that it starts, and the next one before that one ends.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from elasticdl.credentials.authority import USER, Authority, Identity
from elasticdl.credentials.files import TlsFiles
from elasticdl.errors import AuthenticationError
from elasticdl.job import Role
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.elasticdl_pb2_grpc import CertificatesServicer

log = logging.getLogger(__name__)

_ROLES = frozenset([*Role, USER])


@dataclass(frozen=True, slots=True)
class JobAuthority:
    """The authority of a job, which knows the job's name and how long its certificates are good."""

    authority: Authority
    folder: Path
    job: str
    life_seconds: float

    @classmethod
    def of_job(cls, folder: Path, job: str, life_seconds: float) -> JobAuthority:
        """Take up the authority that the submitter has made.

        Raises:
            ConfigError: It is not there; names the file.
        """
        return cls(Authority.load(folder), folder, job, life_seconds)

    def issue(self, role: Role, index: int) -> TlsFiles:
        """Make the files of a process that is about to start.

        Raises:
            OSError: They cannot be written.
        """
        identity = Identity(self.job, role, index)
        return self.authority.issue(self.folder, identity, self.life_seconds)

    def sign_own(self, request: bytes) -> bytes:
        """Return the next certificate of the master itself."""
        return self.authority.sign(request, Identity(self.job, Role.MASTER), self.life_seconds)

    def renew(self, uris: list[str], request: bytes) -> bytes:
        """Return the next certificate of a process that has shown one with these names.

        Raises:
            AuthenticationError: They name nobody of this job, or the request is none.
        """
        if len(uris) != 1:
            raise AuthenticationError(f"expected one name in the certificate, found {uris}")
        identity = Identity.of_uri(uris[0])
        if identity.job != self.job or identity.role not in _ROLES:
            raise AuthenticationError(f"{uris[0]} is no process of the job {self.job!r}")
        return self.authority.sign(request, identity, self.life_seconds)


class Renewals(CertificatesServicer):
    """`elasticdl.v1.Certificates`."""

    def __init__(self, authority: JobAuthority) -> None:
        self._authority = authority

    async def Renew(self, request: Any, context: Any) -> Any:
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

"""The authority in a running job. The master signs with it for the processes that it starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from elasticdl.errors import AuthenticationError
from elasticdl.job import Role
from elasticdl.runtime.credentials.authority import USER, Authority, Identity
from elasticdl.runtime.credentials.files import TlsFiles

_ROLES = frozenset([*Role, USER])


@dataclass(frozen=True, slots=True)
class JobAuthority:
    """The authority of a job, with the job's name and the life of its certificates."""

    authority: Authority
    folder: Path
    job: str
    life_seconds: float

    @classmethod
    def of_job(cls, folder: Path, job: str, life_seconds: float) -> JobAuthority:
        """Load the authority that was made for the job.

        Raises:
            ConfigError: A file is missing. The message names it.
        """
        return cls(Authority.load(folder), folder, job, life_seconds)

    def issue(self, role: Role, index: int) -> TlsFiles:
        """Write the files of a process on this machine that is about to start.

        Raises:
            OSError: A file cannot be written.
        """
        identity = Identity(self.job, role, index)
        return self.authority.issue(self.folder, identity, self.life_seconds)

    def files_for(self, role: Role, index: int) -> dict[str, bytes]:
        """Return the files of a process on another machine: name -> content."""
        identity = Identity(self.job, role, index)
        return self.authority.files_for(identity, self.life_seconds)

    def sign_own(self, request: bytes) -> bytes:
        """Return the next certificate of the master itself."""
        return self.authority.sign(request, Identity(self.job, Role.MASTER), self.life_seconds)

    def renew(self, uris: list[str], request: bytes) -> bytes:
        """Return the next certificate of a process whose present certificate has these URIs.

        Raises:
            AuthenticationError: The URIs name no process of this job, or the request is not valid.
        """
        # The transport has checked this certificate, so its URI is the identity of the sender.
        if len(uris) != 1:
            raise AuthenticationError(f"expected one name in the certificate, found {uris}")
        identity = Identity.of_uri(uris[0])
        if identity.job != self.job or identity.role not in _ROLES:
            raise AuthenticationError(f"{uris[0]} is not a process of the job {self.job!r}")
        return self.authority.sign(request, identity, self.life_seconds)

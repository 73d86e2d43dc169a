"""Calls etcd, and repeats each call until it is answered.

The messages and stubs come from aetcd, but are called from threads. The client of aetcd needs an
event loop and knows one endpoint. It would need its own loop and thread beside the master's.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any

import grpc

from elasticdl.distribution import install
from elasticdl.errors import ConfigError, StateError
from elasticdl.packages.etcd.access import EtcdAccess
from elasticdl.rpc.channel import CLIENT_OPTIONS

try:
    from aetcd import rpc as rpc
except ImportError as error:
    raise ConfigError(
        f"--state=etcd://... needs aetcd, which is not installed: {install('etcd')}"
    ) from error

ATTEMPT_SECONDS = 5.0
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0

# These codes mean that a server has lost its leader, is too busy or full, or is away. After a
# deadline it is unknown whether the call was carried out, so each call may be repeated.
_TRANSIENT = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
    }
)
# With these texts etcd refuses an old token; the second one comes after a change of its users.
_OLD_TOKEN = ("invalid auth token", "revision of auth store is old")
_REMEDIES = {
    "database space exceeded": "raise --quota-backend-bytes of etcd, or compact and defragment it",
    "request is too large": "etcd has a smaller --max-request-bytes than its default of 1.5 MiB",
}


class RefusedError(StateError):
    """Etcd refuses the request, and would refuse it again."""

    def __init__(self, message: str, code: grpc.StatusCode) -> None:
        super().__init__(message)
        self.code = code


class EtcdClient:
    """Talks to one endpoint, and to the next if it does not answer. Any thread may use it."""

    def __init__(
        self, endpoints: Sequence[str], name: str, access: EtcdAccess | None = None
    ) -> None:
        """Prepare to connect; nothing is sent yet.

        Args:
            endpoints: `host:port` of each endpoint.
            name: The name of the journal in messages.
            access: The credentials of etcd and of this process; None: there are none.

        Raises:
            ConfigError: A file of `access` is not as it should be.
        """
        access = access or EtcdAccess()
        self._user = access.user()
        self._tokens: dict[int, str] = {}  # of each endpoint, once it has been told the password
        self.name = name
        self.trouble = ""
        self._endpoints = tuple(endpoints)
        # A page of parts is larger than any message between processes of the job.
        options = [*CLIENT_OPTIONS, ("grpc.max_receive_message_length", -1)]
        tls = access.tls()
        if tls is None:
            self._channels = [grpc.insecure_channel(e, options=options) for e in endpoints]
        else:
            proof = grpc.ssl_channel_credentials(*tls)
            self._channels = [grpc.secure_channel(e, proof, options=options) for e in endpoints]
        self._auths = [rpc.AuthStub(channel) for channel in self._channels]
        self._stubs = [(rpc.KVStub(c), rpc.LeaseStub(c)) for c in self._channels]
        self._at = 0
        self._closed = threading.Event()

    def call(self, method: str, request: Any) -> Any:
        """Call until there is an answer, however long that takes.

        Args:
            method: A method of the services KV and Lease; its effect may be repeated.
            request: The message of the call.

        Raises:
            RefusedError: Another attempt would fail too.
            StateError: `leave` was called meanwhile.
        """
        pause_seconds = _FIRST_PAUSE_SECONDS
        while True:
            self.check_open()
            at = self._at
            try:
                answer = self._method(at, method)(
                    request, timeout=ATTEMPT_SECONDS, metadata=self._proof(at)
                )
            except (grpc.RpcError, ValueError) as error:  # ValueError: the channel was closed
                self.check_open()
                self._take_in(error, self._endpoints[at])
                self._at = (at + 1) % len(self._endpoints)
                self.wait(pause_seconds)
                pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)
            else:
                self.trouble = ""
                return answer

    def revoke(self, lease: int, seconds: float) -> None:
        """Try to end a lease, even after `leave`."""
        request = rpc.LeaseRevokeRequest(ID=lease)
        with contextlib.suppress(grpc.RpcError, ValueError):
            at = self._at
            proof = self._proof(at)
            self._method(at, "LeaseRevoke")(request, timeout=seconds, metadata=proof)

    def keep_alive(self, lease: int, seconds: float) -> None:
        """Try to renew a lease, at each endpoint until one answers."""
        for _ in self._endpoints:
            at = self._at
            requests = iter([rpc.LeaseKeepAliveRequest(ID=lease)])
            share = seconds / len(self._endpoints)
            try:
                proof = self._proof(at)
                next(self._method(at, "LeaseKeepAlive")(requests, timeout=share, metadata=proof))
            except (grpc.RpcError, ValueError, StopIteration) as error:
                if _is_old_token(error):
                    self._tokens.pop(at, None)
                if not self._closed.is_set():
                    self._at = (at + 1) % len(self._endpoints)
            else:
                return

    def _proof(self, at: int) -> tuple[tuple[str, str], ...]:
        """Return the token for an endpoint; a password is sent over TLS only (`EtcdAccess`).

        Raises:
            grpc.RpcError: There is no answer, or the password is wrong.
        """
        if self._user is None:
            return ()
        token = self._tokens.get(at)  # another thread may forget it meanwhile
        if token is None:
            name, password = self._user
            request = rpc.AuthenticateRequest(name=name, password=password)
            answer = self._auths[at].Authenticate(request, timeout=ATTEMPT_SECONDS)
            token = self._tokens[at] = str(answer.token)
        return (("token", token),)

    def _method(self, at: int, name: str) -> Any:
        kv, lease = self._stubs[at]
        return getattr(lease if name.startswith("Lease") else kv, name)

    def wait(self, seconds: float) -> None:
        """Pause; `leave` ends the pause."""
        self._closed.wait(seconds)

    def check_open(self) -> None:
        """Raise StateError if the journal was closed."""
        if self._closed.is_set():
            why = f" while etcd could not be reached ({self.trouble})" if self.trouble else ""
            raise StateError(f"{self.name}: the job's journal was closed{why}")

    def leave(self) -> None:
        """End all running calls of `call`."""
        self._closed.set()

    def close(self) -> None:
        """Close the connections."""
        self.leave()
        for channel in self._channels:
            channel.close()

    def _take_in(self, error: Exception, endpoint: str) -> None:
        code = error.code() if isinstance(error, grpc.Call) else None
        at = self._endpoints.index(endpoint)
        if _is_old_token(error) and self._tokens.pop(at, None) is not None:
            return  # the token of a while ago; the password gives another one
        details = (error.details() if isinstance(error, grpc.Call) else "") or str(error)
        remedy = next((f"; {text}" for key, text in _REMEDIES.items() if key in details), "")
        if code not in _TRANSIENT:
            name = "" if code is None else f"{code.name}: "
            raise RefusedError(
                f"{self.name}: the etcd at {endpoint} refuses: {name}{details}{remedy}",
                code or grpc.StatusCode.UNKNOWN,
            ) from error
        self.trouble = f"etcd at {endpoint}: {details}{remedy}"


def _is_old_token(error: Exception) -> bool:
    """Return whether etcd would answer if it were told the password again."""
    if not isinstance(error, grpc.Call):
        return False
    details = error.details() or ""
    return error.code() is grpc.StatusCode.UNAUTHENTICATED or any(
        text in details for text in _OLD_TOKEN
    )

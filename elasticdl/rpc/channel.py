"""Connects two processes of a job over gRPC, with credentials, deadlines, retries and size limits.

Deadlines, back-off and size limits of the control plane are all here.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from elasticdl.errors import AuthenticationError, ElasticdlError, UnavailableError
from elasticdl.rpc import rights
from elasticdl.rpc.security import open_channel, why_refused
from elasticdl.runtime import open_files
from elasticdl.runtime.credentials.files import Stamp, TlsFiles
from elasticdl.runtime.log_lines import Sparingly
from elasticdl.runtime.printable import one_line

log = logging.getLogger(__name__)
_refusals = logging.getLogger(f"{__name__}.refusals")
_refusals.addFilter(Sparingly())

TOKEN_KEY = "elasticdl-token-bin"
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Metric states are the largest messages; a model has a few hundred kilobytes of them."""

ATTEMPT_SECONDS = 10.0
"""Deadline of one attempt. A server that waits for something answers well before it."""

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0
_SECONDS_BETWEEN_COMPLAINTS = 10.0

_SIZE_LIMITS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
]
CLIENT_OPTIONS = [
    *_SIZE_LIMITS,
    # `Connection` repeats calls by itself. gRPC's own retries have lost calls: when a server
    # stopped, 8 of 2,000 streams never ended, not even by their deadline (grpcio 1.85.1). Without
    # gRPC's retries, none of 1,500 was lost.
    ("grpc.enable_retries", 0),
    # gRPC waits up to two minutes between two attempts to connect, but a master is back sooner.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # The limit of one attempt to connect: at the address of a machine that is gone, there is no
    # answer at all.
    ("grpc.min_reconnect_backoff_ms", 3000),
    # A master that comes back elsewhere keeps its name. gRPC looks the name up every 30 s at most.
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
    # A machine that vanished closes no socket, and a stream has no deadline that would find out.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # A proxy from the environment must not stand between two processes of a job.
    ("grpc.enable_http_proxy", 0),
]
SERVER_OPTIONS = [
    *_SIZE_LIMITS,
    # Otherwise two servers may share a port, and a port that is taken goes unnoticed.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.max_metadata_size", 8 * 1024),
    # A client that connects and sends nothing, or shows no certificate, is closed.
    ("grpc.server_handshake_timeout_ms", 5_000),
]


def server_options() -> list[tuple[str, int]]:
    """Return the options of a server that limit connections, so that files remain for its work."""
    return [*SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", open_files.limit() // 2)]


_TRANSIENT = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,  # by a server that stops
        # A proxy between the two answers so: a refusal of the master has another code.
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
)

DEFECT = grpc.StatusCode.ABORTED
"""The master's answer if the master fails while it works on a call: another attempt would fail too.

gRPC would answer UNKNOWN, as proxies do when they know no better code.
"""


class Connection:
    """A channel to the master that authenticates each call and repeats calls without an answer.

    Every call of the service may be repeated, so one rule is enough for all of them. gRPC's own
    retry policy is not used: it ends after five attempts, and this connection waits for an
    unreachable master without limit. Any number of threads may use it.
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
        """Prepare to connect; nothing is sent yet.

        Args:
            address: `host:port`.
            token: The job's secret.
            on_unreachable: Receives a message now and then while the master does not answer.
                Default: a warning in the log.
            attempt_seconds: Deadline of one attempt.
            tls: The files of TLS; None: clear text.
            where: Called after a failed attempt; returns the master's present address, if known.

        Raises:
            ConfigError: A file of TLS is missing.
        """
        self.address = address
        self._where = where
        self._tls = tls
        self._channels: list[Any] = []  # the newest last; an older one may have calls under way
        self._stamp: tuple[str, Stamp] = ("", ())
        self._opening = threading.Lock()
        self._has_answered = False
        self.metadata = ((TOKEN_KEY, token),)
        self._on_unreachable = on_unreachable or log.warning
        self._attempt_seconds = attempt_seconds
        self._closed = threading.Event()
        self.channel()

    def channel(self) -> Any:
        """Return the channel; it changes with a new certificate or a new address of the master."""
        with self._opening:
            stamp = (self.address, self._tls.stamp() if self._tls is not None else ())
            if self._channels and stamp == self._stamp:
                return self._channels[-1]
            self._channels.append(open_channel(self.address, CLIENT_OPTIONS, self._tls))
            self._stamp = stamp
            # The calls of the old channel go on until the next renewal.
            for old in self._channels[:-2]:
                old.close()
            del self._channels[:-2]
            return self._channels[-1]

    def stub(self, make: Callable[[Any], Any]) -> Any:
        """Return a stub; each of its calls uses the newest channel of that time."""
        return _Stub(self, make)

    def answered(self) -> None:
        """Note that the master answers, and accepts this process."""
        self._has_answered = True

    def call(self, method: Any, request: Any, give_up_seconds: float | None = None) -> Any:
        """Call a method of the service until it answers.

        Args:
            method: A unary method of the stub.
            request: The message of the call.
            give_up_seconds: Raise UnavailableError after this time; None: never.

        Raises:
            AuthenticationError: The master does not accept the token or the certificate, or its own
                certificate is not valid.
            UnavailableError: `close` was called, or the time is over.
            ElasticdlError: The master refused the request; the error says why.
        """
        retry = self.retry(give_up_seconds)
        while True:
            try:
                answer = method(
                    request,
                    timeout=self._attempt_seconds,
                    metadata=self.metadata,
                    # Without this the call fails at once while the channel connects, which is no
                    # news.
                    wait_for_ready=True,
                )
                self.answered()
                return answer
            except (grpc.RpcError, ValueError) as error:
                retry.after(error)

    def retry(self, give_up_seconds: float | None = None) -> Retry:
        """Return the pauses for one call."""
        return Retry(
            self.address,
            self._on_unreachable,
            self._closed,
            give_up_seconds,
            self._why_refused,
            self._look_again,
        )

    def _look_again(self) -> None:
        """Read the master's present address; the next attempt uses a channel to it."""
        found = self._where() if self._where is not None else None
        if found and found != self.address:
            log.info("the master is at %s now, and was at %s", found, self.address)
            self.address = found

    def _why_refused(self) -> str:
        """Return the problem with TLS; "" if none is known.

        Raises:
            AuthenticationError: There is a problem, and no master has ever answered. Later the port
                of a dead master may belong to another program, until the master is back.
        """
        words = why_refused(self.address, self._tls)
        if words and not self._has_answered:
            raise AuthenticationError(f"the master at {self.address}: {words}")
        return words

    def close(self) -> None:
        """End all running calls with UnavailableError."""
        self._closed.set()
        with self._opening:
            for channel in self._channels:
                channel.close()


class _Stub:
    """Looks a method up when the method is called."""

    def __init__(self, connection: Connection, make: Callable[[Any], Any]) -> None:
        self._connection = connection
        self._make = make
        self._made: tuple[Any, Any] = (None, None)  # a channel, and the stub of it

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            return getattr(self._newest(), name)(*arguments, **keywords)

        return call

    def _newest(self) -> Any:
        channel = self._connection.channel()
        # One read of the pair: another thread may replace it at any moment.
        of, stub = self._made
        if of is not channel:
            stub = self._make(channel)
            self._made = (channel, stub)
        return stub


class Retry:
    """The pauses of one call: 50 ms, doubled up to one second, and a message now and then."""

    def __init__(
        self,
        address: str,
        complain: Callable[[str], None],
        closed: threading.Event,
        give_up_seconds: float | None = None,
        why_refused: Callable[[], str] = str,
        look_again: Callable[[], None] | None = None,
    ) -> None:
        self._why_refused = why_refused
        self._look_again = look_again
        self._address = address
        self._complain = complain
        self._closed = closed
        self._give_up_seconds = give_up_seconds
        self._started = self._complained = time.monotonic()
        self._pause_seconds = _FIRST_PAUSE_SECONDS

    def after(self, error: Exception) -> None:
        """Pause after a failed attempt.

        Raises:
            ElasticdlError: Another attempt would fail too; see `Connection.call`.
        """
        if self._closed.is_set() or isinstance(error, ValueError):
            # gRPC raises ValueError for a call on a closed channel.
            raise UnavailableError(f"the connection to the master at {self._address} is closed")
        _raise_unless_transient(error, self._address)
        # Another master may run on another machine by now; its address is in the job's folder.
        if self._look_again is not None:
            self._look_again()
        now = time.monotonic()
        silent_seconds = now - self._started
        if self._give_up_seconds is not None and silent_seconds >= self._give_up_seconds:
            raise UnavailableError(
                f"the master at {self._address} did not answer for {silent_seconds:.0f} s"
                f"{_as_said(error)}{self._reason()}"
            ) from error
        if now - self._complained >= _SECONDS_BETWEEN_COMPLAINTS:
            self._complained = now
            self._complain(
                f"the master at {self._address} has not answered for {silent_seconds:.0f} s, since "
                f"{_clock_before(silent_seconds)}{_as_said(error)}; still trying{self._reason()}"
            )
        self.pause()

    def _reason(self) -> str:
        words = self._why_refused()
        return f" ({words})" if words else ""

    def pause(self) -> None:
        """Wait, and double the next pause; `Connection.close` ends the waiting."""
        self._closed.wait(self._pause_seconds)
        self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)


def _clock_before(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(time.time() - seconds))


def _raise_unless_transient(error: Exception, address: str) -> None:
    code = error.code() if hasattr(error, "code") else None
    if code in _TRANSIENT:
        return
    details = error.details() if hasattr(error, "details") else str(error)
    if code is grpc.StatusCode.UNAUTHENTICATED:
        raise AuthenticationError(f"the master at {address}: {details}") from error
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        raise ElasticdlError(
            f"the master at {address}: a message is larger than {MAX_MESSAGE_BYTES} bytes: "
            f"{details}"
        ) from error
    raise ElasticdlError(f"the master at {address} refused the request: {details}") from error


def _as_said(error: Exception) -> str:
    """Return the obstacle in words, if there is one besides silence."""
    code = error.code() if hasattr(error, "code") else None
    if code not in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN):
        return ""
    details = error.details() if hasattr(error, "details") else ""
    return f" ({code.name}: {details})"


class Defects(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc is untyped here
    """Answers a call with `DEFECT` if the master itself fails in it."""

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """Return the handler of a call, with its defects caught."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler  # a method that there is not; a stream, which its client begins again
        behave = handler.unary_unary

        async def guarded(request: Any, context: Any) -> Any:
            try:
                return await behave(request, context)
            except (grpc.aio.AbortError, asyncio.CancelledError):
                raise
            except Exception as error:
                log.exception("a defect in the master, in %s", handler_call_details.method)
                said = f"a defect in the master ({type(error).__name__}: {error}); see its log"
                await context.abort(DEFECT, said)

        return grpc.unary_unary_rpc_method_handler(
            guarded, handler.request_deserializer, handler.response_serializer
        )


class Authentication(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc is untyped here
    """Refuses calls without the job's token before any of their content is read.

    A call is also refused if the role in the caller's certificate has no right to it.
    """

    def __init__(self, token: bytes) -> None:
        self._token = token
        # A handler of streams: gRPC hands it the call without having received a message.
        self._refusal = grpc.stream_stream_rpc_method_handler(_refuse)

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """Return the handler of a call: the right handler, or the handler that refuses."""
        method = handler_call_details.method
        for key, value in handler_call_details.invocation_metadata:
            if key == TOKEN_KEY and hmac.compare_digest(value, self._token):
                return _for_roles(await continuation(handler_call_details), method)
        _refusals.warning("refused a call of %s without the job's token", one_line(method))
        return self._refusal


def _for_roles(handler: Any, method: str) -> Any:
    """Return a handler that first checks the caller's right to call the method."""
    if handler is None:
        return None
    if handler.unary_unary is not None:
        answer = handler.unary_unary

        async def answer_once(request: Any, context: Any) -> Any:
            await _check_right(context, method)
            return await answer(request, context)

        return grpc.unary_unary_rpc_method_handler(
            answer_once, handler.request_deserializer, handler.response_serializer
        )
    stream = handler.unary_stream

    async def answer_often(request: Any, context: Any) -> AsyncIterator[Any]:
        await _check_right(context, method)
        async for answer in stream(request, context):
            yield answer

    return grpc.unary_stream_rpc_method_handler(
        answer_often, handler.request_deserializer, handler.response_serializer
    )


async def _check_right(context: Any, method: str) -> None:
    names = context.auth_context().get("peer_uri", ())
    role = rights.role_of([bytes(name).decode(errors="replace") for name in names])
    if not rights.may(role, method):
        name = method.rpartition("/")[2]
        _refusals.warning("refused a call of %s by a %s", name, one_line(role or ""))
        await context.abort(
            grpc.StatusCode.PERMISSION_DENIED,
            f"a process of the role {role} may not call {name}: its certificate is no user's",
        )


async def _refuse(_requests: Any, context: Any) -> None:
    await context.abort(
        grpc.StatusCode.UNAUTHENTICATED,
        "expected the token of this job, found none or another; use the job's --token_file",
    )

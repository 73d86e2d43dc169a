"""The server: answers over HTTP with the version that is loaded, and follows the export.

One thread computes: it scores, and it changes the version between two requests. So no request sees
half of a version. Another thread looks at the export and loads new versions.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from aiohttp import web, web_protocol

from elasticdl.errors import ConfigError, DataError, ElasticdlError, RequestTooLargeError
from elasticdl.packages.serving.chain import Pointer
from elasticdl.packages.serving.metrics import ServerMetrics
from elasticdl.packages.serving.model import Scorer
from elasticdl.packages.serving.places import Places, Transfer
from elasticdl.packages.serving.records import ARROW, Most, from_arrow, from_json, to_arrow, to_json
from elasticdl.packages.serving.unpacking import Unpacking, give_back_memory
from elasticdl.packages.serving.versions import Version, Versions
from elasticdl.runtime.log_lines import Sparingly
from elasticdl.settings.reader_params import without_password

log = logging.getLogger(__name__)
_requests_log = logging.getLogger(f"{__name__}.requests")
_requests_log.addFilter(Sparingly(lines=1))

_BODY_SECONDS = 30.0  # for a request to come, once its headers are there, and for an answer to go
_QUIET_SECONDS = 60.0  # between two requests of a connection, with the headers of the second
_LOOK_SECONDS = 1.0  # between two looks for connections that are quiet
_LARGE_BYTES = 1 << 20  # of a request or an answer, after which memory is given back
_REFUSED_SECONDS = 1.0  # until what was refused is looked at again
_MOST_HEADERS = 64  # of a request; none may have more than 8 KiB

# A client may send requests before it has its answer. Their headers are in no count of bytes, and
# by itself aiohttp keeps those of 32 requests of each connection.
web_protocol.MAX_MSG_QUEUE_SIZE = 1


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits for requests of strangers.

    request_bytes: The bytes of a request after unpacking.
    connections: The connections at one time.
    records: The records of a request.
    bytes_in_flight: The bytes of all requests and answers together.
    waiting: The requests that may wait.
    """

    request_bytes: int = 16 << 20
    connections: int = 256
    records: int = 1 << 17
    bytes_in_flight: int = 256 << 20
    waiting: int = 64

    @property
    def most(self) -> Most:
        """The limits of one request and its answer."""
        return Most(self.request_bytes, self.records, 4 * self.request_bytes)


class Server:
    """Serves one export until it is asked to end."""

    def __init__(
        self,
        versions: Versions,
        limits: RequestLimits | None = None,
        poll_seconds: float = 0.1,
        tell: Callable[[str], None] = log.info,
    ) -> None:
        """Prepare to serve.

        Args:
            versions: The versions of the export.
            limits: The limits for requests of strangers.
            poll_seconds: How often the export is looked at.
            tell: Called with messages for people.
        """
        self._versions = versions
        self._limits = limits or RequestLimits()
        self._poll_seconds = poll_seconds
        self._tell = tell
        self._scorer: Scorer | None = None
        self._problem = ""
        self._wanted: Pointer | None = None  # the version that was begun to be loaded last
        self._rests_until = 0.0
        self._waiting = 0
        self._compute = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")
        # Loading takes seconds, in which the other thread goes on answering.
        self._load = ThreadPoolExecutor(max_workers=1, thread_name_prefix="load")
        self._busy: set[object] = set()  # connections whose request is being answered
        self._places = Places(max(self._limits.bytes_in_flight, self._limits.request_bytes))
        self._is_swollen = False  # by a large request: memory that is free may be given back
        self.metrics = ServerMetrics(lambda: self.version)
        self.port = 0

    @property
    def version(self) -> Version | None:
        """The version that is served; None before the first is loaded."""
        return None if self._scorer is None else self._scorer.version

    async def run(
        self, host: str, port: int, when_ready: Callable[[], None] = lambda: None
    ) -> None:
        """Serve until cancelled.

        Raises:
            ConfigError: The server cannot listen there.
        """
        # The server unpacks requests itself, so that it can measure them.
        runner = web.ServerRunner(
            web.Server(
                self._answer_safely,
                access_log=None,
                logger=_requests_log,
                auto_decompress=False,
                max_headers=_MOST_HEADERS,
            )
        )
        await runner.setup()
        handler = runner.server
        assert handler is not None

        def make_protocol() -> asyncio.BaseProtocol:
            if len(handler.connections) < self._limits.connections:
                return handler()
            now = time.monotonic()
            self._places.look(handler.connections, self._busy, now)
            connection = self._places.first_to_go(now)
            if connection is None:
                return _Refused()
            _hang_up(connection)
            return handler()

        loop = asyncio.get_running_loop()
        try:
            listening = await loop.create_server(make_protocol, host, port)
        except OSError as error:
            await runner.cleanup()
            raise ConfigError(f"cannot listen at {host}:{port}: {error.strerror}") from error
        self.port = listening.sockets[0].getsockname()[1]
        hanging_up = loop.create_task(self._hang_up(handler))
        when_ready()
        try:
            while True:
                await self._follow_once()
                await asyncio.sleep(max(self._poll_seconds, self._rests_until - loop.time()))
        finally:
            hanging_up.cancel()
            listening.close()
            await runner.cleanup()
            for pool in (self._compute, self._load):
                pool.shutdown(wait=False, cancel_futures=True)

    def join(self) -> None:
        """Wait, after `run`, until a version that is being loaded needs its files no more."""
        for pool in (self._compute, self._load):
            pool.shutdown(wait=True)

    async def _hang_up(self, handler: web.Server) -> None:
        """Close connections that hold a place without sending requests, again and again."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now = time.monotonic()
            self._places.look(handler.connections, self._busy, now)
            for connection in self._places.silent(now - _QUIET_SECONDS):
                _hang_up(connection)
            # Giving memory back takes a while, so it waits until nothing is on its way.
            if self._is_swollen and not self._places.num_bytes:
                self._is_swollen = False
                give_back_memory()

    # --- following -------------------------------------------------------------------------------

    async def _follow_once(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._load, self._next)
            if found is not None:
                await loop.run_in_executor(self._compute, self._put_in_place, found)
        except Exception as error:
            self._refuse(error)
            self._rests_until = loop.time() + _REFUSED_SECONDS
            # The version that is served stays. A broken export is looked at more seldom, since a
            # look may take long.
            return
        if self._problem and found is None:
            self._tell("the export is sound again")
        self._problem = ""

    def _next(self) -> Scorer | None:
        """Load the version to serve, if it is another one, and its program."""
        version = self._versions.next(self.version, self._begins)
        return None if version is None else Scorer.of(version, self._scorer)

    def _begins(self, wanted: Pointer) -> None:
        """Forget the problem before a version is loaded, unless it is a problem of this version."""
        if wanted != self._wanted:
            self._wanted, self._problem = wanted, ""

    def _put_in_place(self, found: Scorer) -> None:
        """Score with another version from now on; called in the thread that computes."""
        try:
            found.ready()
        except BaseException:
            if self._scorer is not None:
                self._scorer.ready()  # they may have the same program
            raise
        self._scorer = found
        self.metrics.loaded.inc()
        manifest = found.version.manifest
        kind = "base" if manifest.is_base else "delta"
        self._tell(
            f"version {manifest.number} ({kind}) is served, of model version "
            f"{manifest.model_version:,}"
        )

    def _refuse(self, error: Exception) -> None:
        # Anybody may ask `/healthz` for it, and the place of the export may have a password.
        problem = without_password(str(error) or type(error).__name__)
        self.metrics.refused.inc()
        # The same problem is told once, not with each look.
        if problem != self._problem:
            if not isinstance(error, ElasticdlError):
                log.error("a version could not be loaded", exc_info=error)
            served = self.version
            if served is None:
                self._tell(f"nothing is served yet: {problem}")
            else:
                number = served.manifest.number
                self._tell(f"refused: {problem}; version {number} is served on")
        self._problem = problem

    # --- answers ---------------------------------------------------------------------------------

    async def _answer_safely(self, request: web.BaseRequest) -> web.StreamResponse:
        self._busy.add(request.protocol)
        # From here on the connection is no longer quiet, whatever the last look said.
        self._places.asks(request.protocol)
        try:
            response = await self._answer(request)
        except web.HTTPException as error:
            response = _error(error.status, error.text or error.reason)
        except RequestTooLargeError as error:
            response = _error(413, str(error))
        except (ConnectionError, web.RequestPayloadError) as error:
            response = _error(400, f"the request does not come to its end: {error}")
        except DataError as error:
            response = _error(400, str(error))
        except ElasticdlError as error:
            response = _error(500, str(error))
        except Exception as error:
            _requests_log.exception("a request failed")
            response = _error(500, f"{type(error).__name__}: the model failed; see the log")
        finally:
            self._busy.discard(request.protocol)
        self.metrics.requests.labels(str(response.status)).inc()
        return response

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        # HEAD is answered as GET is, without the body, which aiohttp leaves out.
        method = "GET" if request.method == "HEAD" else request.method
        match (method, request.path):
            case ("POST", "/v1/predict"):
                return await self._predict(request)
            case ("GET", "/healthz"):
                return self._health()
            case ("GET", "/metrics"):
                body, content_type = self.metrics.exposition(request.headers.get("Accept", ""))
                return web.Response(body=body, headers={"Content-Type": content_type})
            case ("GET", "/v1/model"):
                return self._describe()
            case (_, "/v1/predict" | "/healthz" | "/metrics" | "/v1/model" as path):
                expected = "POST" if path == "/v1/predict" else "GET"
                response = _error(405, f"{path}: expected {expected}, found {request.method}")
                response.headers["Allow"] = expected
                return response
            case _:
                raise web.HTTPNotFound(text="expected /v1/predict, /v1/model, /healthz or /metrics")

    def _nothing_served(self) -> web.HTTPServiceUnavailable:
        why = self._problem or "the first version is being loaded"
        return web.HTTPServiceUnavailable(text=f"nothing is served yet: {why}")

    async def _predict(self, request: web.BaseRequest) -> web.Response:
        if self._scorer is None:
            raise self._nothing_served()
        self._check_waiting()
        transfer = Transfer(request.protocol, time.monotonic())
        self._places.begin(transfer)
        content = bytearray()
        try:
            await self._read(request, transfer, content)
            body = bytes(content)
            content.clear()
            self._check_waiting()
            answer, version, kind = await self._computed(request, body)
        finally:
            content.clear()  # an error that is kept has this frame
            transfer.cut = None
            self._places.end(transfer)
            self._is_swollen |= transfer.num_bytes > _LARGE_BYTES
        self._is_swollen |= len(answer) > _LARGE_BYTES
        del body
        headers = {"X-Elasticdl-Version": str(version)}
        response = web.Response(body=answer, content_type=kind, headers=headers)
        await self._send(request, response, len(answer))
        return response

    def _check_waiting(self) -> None:
        if self._waiting >= self._limits.waiting:
            raise web.HTTPServiceUnavailable(text="too many requests wait; try again")

    async def _computed(self, request: web.BaseRequest, body: bytes) -> tuple[bytes, int, str]:
        """Return the answer, the number of its version, and its type."""
        is_arrow = request.content_type == ARROW

        def work() -> tuple[bytes, int]:
            # A client may hang up while its request waits. Computing for it would delay the others.
            if request.transport is None:
                raise ConnectionResetError("the client has gone")
            return self._predicted(body, is_arrow)

        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            with self.metrics.seconds.time():
                content, version = await loop.run_in_executor(self._compute, work)
        finally:
            self._waiting -= 1
        return content, version, ARROW if is_arrow else "application/json"

    async def _read(self, request: web.BaseRequest, transfer: Transfer, content: bytearray) -> None:
        """Read a request, unpack it, and check it against the limits."""
        most = self._limits.request_bytes
        # The client says itself that the body is too large, so none of it is read.
        if (request.content_length or 0) > most:
            raise _too_large(most)
        unpack = Unpacking(request.headers.get("Content-Encoding", ""), most)
        try:
            async with asyncio.timeout(_BODY_SECONDS) as limit:
                transfer.cut = functools.partial(end_at_once, limit)
                await _say_go_on(request)
                async for packed in request.content.iter_any():
                    piece = unpack(packed, len(content))
                    if len(content) + len(piece) > most:
                        raise _too_large(most)
                    if not self._places.grow(transfer, len(piece), time.monotonic()):
                        raise web.HTTPServiceUnavailable(text="too much is asked; try again")
                    content += piece
                transfer.cut = None
        except TimeoutError:
            # A time-out before its time means that the place was given to another request.
            if time.monotonic() - transfer.since < _BODY_SECONDS:
                text = "the request comes slowly, and its place is needed; try again"
                raise web.HTTPServiceUnavailable(text=text) from None
            text = f"the request did not come within {_BODY_SECONDS:.0f} s"
            raise web.HTTPRequestTimeout(text=text) from None
        unpack.finish()

    async def _send(self, request: web.BaseRequest, response: web.Response, size: int) -> None:
        """Send an answer; close the connection if the client does not take it."""
        transfer = Transfer(request.protocol, time.monotonic(), num_bytes=size)
        try:
            async with asyncio.timeout(_BODY_SECONDS) as limit:
                transfer.cut = functools.partial(end_at_once, limit)
                self._places.begin(transfer)
                await response.prepare(request)
                await response.write_eof()
                transfer.cut = None
        except TimeoutError:
            transfer.cut = None
            _hang_up(request.protocol)
        finally:
            self._places.end(transfer)

    def _predicted(self, body: bytes, is_arrow: bool) -> tuple[bytes, int]:
        """Score a request with one version; called in the thread that computes."""
        scorer = self._scorer
        assert scorer is not None, "a version is loaded before anybody is answered"
        specs, manifest = scorer.program.features, scorer.version.manifest
        numbers, most = (manifest.number, manifest.model_version), self._limits.most
        if is_arrow:
            features = from_arrow(body, specs, most)
            outputs = scorer.score(features)
            content = to_arrow(outputs, *numbers, most)
        else:
            features, is_single = from_json(body, specs, most)
            outputs = scorer.score(features)
            content = to_json(outputs, is_single, *numbers, most)
        self.metrics.records.inc(len(next(iter(features.values()))))
        return content, manifest.number

    def _health(self) -> web.Response:
        """Answer whether the server serves and follows the export; 503 if nothing is served."""
        version = self.version
        word = "ok" if version is not None else "loading"
        content = {
            "status": "behind" if self._problem else word,
            "version": None if version is None else version.manifest.number,
            "problem": self._problem,
        }
        return web.json_response(content, status=503 if version is None else 200)

    def _describe(self) -> web.Response:
        scorer = self._scorer
        if scorer is None:
            raise self._nothing_served()
        manifest = scorer.version.manifest
        features = [
            {"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape)}
            for spec in scorer.program.features
        ]
        content = {
            "version": manifest.number,
            "model_version": manifest.model_version,
            "written": manifest.written,
            "features": features,
            "tables": list(manifest.tables),
        }
        return web.json_response(content)


class _Refused(asyncio.Protocol):
    """Refuses a connection for which there is no room."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        text = b'{"error": "all places are taken; try again"}'
        transport.write(
            b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text)
        )
        transport.close()


def _hang_up(connection: Any) -> None:
    """Close a connection at once, with all that is still to be sent."""
    if connection is not None and (transport := connection.transport) is not None:
        transport.abort()


async def _say_go_on(request: web.BaseRequest) -> None:
    """Tell a client that waits for it to send the body, as curl does with a large one."""
    # An application of aiohttp would say it; a server of it alone does not.
    expected = request.headers.get("Expect", "").lower()
    if expected == "100-continue" and request.version >= (1, 1):
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the answer has not begun


def end_at_once(limit: asyncio.Timeout) -> None:
    """Let a time-out end now, unless its time is over already and its task does not know yet."""
    if not limit.expired():
        limit.reschedule(0.0)


def _too_large(most: int) -> RequestTooLargeError:
    return RequestTooLargeError(f"expected at most {most:,} bytes (--max_request_bytes)")


def _error(status: int, text: str) -> web.Response:
    return web.Response(
        status=status,
        text=json.dumps({"error": text}),
        content_type="application/json",
        headers={"Retry-After": "1"} if status == 503 else None,
    )


def serve(server: Server, host: str, port: int, when_ready: Callable[[], Any]) -> None:
    """Serve until this process is interrupted or asked to end."""
    logging.getLogger("asyncio").addFilter(Sparingly(lines=1))  # of connections

    async def run() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        # Cancelling lets the finally blocks close the port and the threads.
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await server.run(host, port, when_ready)

    asyncio.run(run())
    # The event loop has given the signals back, so a second one ends this wait.
    server.join()

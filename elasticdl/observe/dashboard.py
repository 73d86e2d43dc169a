"""Serves the web page of a running job, and its metrics, beside the master's event loop.

The master only puts events into a queue. A thread with an event loop of its own adds them to a
history and answers browsers. So a slow browser slows down nothing else.

A request must prove that it knows the page's token before anything else of it is read. The token is
made from the job's secret by a one-way function. So every master of a job has the same token, and
somebody who reads it learns nothing that opens the job itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import hmac
import json
import logging
import queue
import secrets
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from elasticdl.distribution import install
from elasticdl.errors import ConfigError
from elasticdl.job import Event
from elasticdl.observe.door import Door
from elasticdl.observe.history.board import board
from elasticdl.observe.history.fold import History
from elasticdl.observe.report import asset
from elasticdl.runtime.log_lines import Sparingly
from elasticdl.runtime.printable import one_line

if TYPE_CHECKING:  # it comes with an extra
    from prometheus_client.core import Metric

_ADD_SECONDS = 0.5  # how often events are added while nobody asks
_ADD_AT_ONCE = 2_000  # before somebody else has a turn
_WATCHED_SECONDS = 5.0  # after an answer the page counts as open for so long
_REBIND_SECONDS = 5.0
_MOST_BYTES = 64_000  # of a request
_LOOPBACK = "127.0.0.1"
_ASSETS = {
    "": ("index.html", "text/html; charset=utf-8"),
    **{
        name: (name, "text/javascript; charset=utf-8")
        for name in (
            "uPlot.iife.min.js",
            "words.js",
            "store.js",
            "charts.js",
            "lanes.js",
            "panels.js",
            "main.js",
        )
    },
    **{name: (name, "text/css; charset=utf-8") for name in ("uPlot.min.css", "page.css")},
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}

log = logging.getLogger(__name__)
_asked = logging.getLogger(f"{__name__}.asked")  # what is wrong with what strangers ask
_asked.addFilter(Sparingly())


def page_token(job_token: bytes) -> str:
    """Return the token that opens a job's page, and nothing else."""
    return hmac.new(job_token, b"elasticdl page, read only", hashlib.sha256).hexdigest()[:40]


def page_url(address: str, token: str) -> str:
    """Return the address to open in a browser."""
    return f"{address}/?token={token}"


def is_same(given: str, secret: str) -> bool:
    """Return whether a given word is the secret; the time does not depend on the word.

    Bytes of a header that are not text arrive as surrogates, which need an encoding of their own.
    """
    return hmac.compare_digest(given.encode(errors="surrogatepass"), secret.encode())


class Dashboard:
    """Serves a page until it is closed. `put` is for any thread, and never waits."""

    def __init__(
        self,
        token: str,
        config: Mapping[str, Any],
        past: Callable[[], Iterable[Event]] = tuple,
    ) -> None:
        """Prepare to serve; events are collected from now on.

        Args:
            token: Every request must know it.
            config: The job's settings, without secrets.
            past: Returns the events before now, as far as they are known; called in a thread.
        """
        self._token = token
        self._config = config
        self._past = past
        self._since = time.time()
        self._log = secrets.token_hex(8)
        """Tells the versions of this page's history from those of an earlier master."""
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._history = History()
        self._has_past = False
        self._asked_at = 0.0
        self._told_end = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self.port = 0
        """The port at which it listens, once `start` has returned."""

    @property
    def address(self) -> str:
        """The address of the page."""
        return f"http://{_LOOPBACK}:{self.port}"

    def put(self, event: Event) -> None:
        """Add an event."""
        self._events.put(event)

    def start(self, port: int, patience_seconds: float = _REBIND_SECONDS) -> None:
        """Serve at a port, 0 for any; blocks until it does.

        Args:
            port: The port.
            patience_seconds: How long the port may still be taken by the master before.

        Raises:
            ConfigError: The port is taken, or a package is missing.
        """
        started: queue.SimpleQueue[BaseException | int] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._run,
            args=(port, patience_seconds if port else 0.0, started),
            name="dashboard",
            daemon=True,
        )
        self._thread.start()
        found = started.get()
        if isinstance(found, BaseException):
            raise found
        self.port = found

    def job_metrics(self, patience_seconds: float = 10.0) -> list[Metric]:
        """Return the metrics of the job as they are now; not for the page's own thread.

        Raises:
            TimeoutError: The page is busy with something else.
        """
        from elasticdl.observe.metrics import JobCollector

        async def collect() -> list[Metric]:
            await self._add()
            return list(JobCollector(self._history).collect())

        assert self._loop is not None, "it was started"
        found = asyncio.run_coroutine_threadsafe(collect(), self._loop)
        return found.result(patience_seconds)

    def tell_end(self, seconds: float) -> None:
        """Wait until an open page has shown that the job is over, within a limited time."""
        if time.monotonic() - self._asked_at < _WATCHED_SECONDS:
            self._told_end.wait(seconds)

    def close(self) -> None:
        """Stop serving."""
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread is not None:
            self._thread.join(2.0)

    # --- the thread ------------------------------------------------------------------------------

    def _run(
        self, port: int, patience_seconds: float, started: queue.SimpleQueue[BaseException | int]
    ) -> None:
        try:
            import aiohttp.web  # noqa: F401 - said here, because it is an extra
            import prometheus_client  # noqa: F401
        except ImportError as error:
            started.put(
                ConfigError(
                    f"--dashboard_port needs a package that is missing ({error.name}): "
                    f"{install('dashboard')}"
                )
            )
            return
        try:
            asyncio.run(self._serve(port, patience_seconds, started))
        except ConfigError as error:
            started.put(error)
        except Exception:
            log.exception("the job's page has ended; the job goes on")

    async def _serve(
        self, port: int, patience_seconds: float, started: queue.SimpleQueue[BaseException | int]
    ) -> None:
        from aiohttp import web

        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        door: list[Door] = []
        guard = self._guard(lambda request: door[0].proven(request.transport))
        app = web.Application(middlewares=[guard], client_max_size=_MOST_BYTES)
        served = {name: _served(*found) for name, found in _ASSETS.items()}

        def give(name: str) -> Callable[[web.Request], Awaitable[Any]]:
            body, content_type = served[name]

            async def handler(request: web.Request) -> Any:
                return _answer(request, body, content_type, is_packed=True)

            return handler

        for name in served:
            app.router.add_get(f"/{name}", give(name))
        app.router.add_get("/board", self._give_board)
        app.router.add_get("/metrics", self._give_metrics)
        runner = web.AppRunner(app, access_log=None, logger=_asked, keepalive_timeout=30.0)
        await runner.setup()
        try:
            listening = await _listen(port, patience_seconds)
            assert runner.server is not None, "it was set up"
            door.append(Door(listening, runner.server))
            accepting = asyncio.ensure_future(door[0].serve())
            started.put(listening.getsockname()[1])
            try:
                await self._until_stopped()
            finally:
                accepting.cancel()
                await asyncio.gather(accepting, return_exceptions=True)
        finally:
            await runner.cleanup()

    async def _until_stopped(self) -> None:
        assert self._stop is not None
        await self._add_past()
        while not self._stop.is_set():
            await self._add()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ADD_SECONDS):
                    await self._stop.wait()

    async def _add_past(self) -> None:
        number = 0
        try:
            # The loop gives way at times: the files of a long job take seconds to read.
            for event in self._past():
                if event["time"] < self._since:
                    self._history.add(event)
                number += 1
                if number % _ADD_AT_ONCE == 0:
                    await asyncio.sleep(0.0)
        except Exception as error:  # whatever an earlier version has left in the files
            log.warning("the job's page lacks what was before this master: %s", error)
        self._has_past = True

    async def _add(self) -> None:
        """Add the waiting events, after those that came before them."""
        # The history must be in order: the events of earlier masters are read first.
        if not self._has_past:
            return
        number = 0
        while True:
            try:
                event = self._events.get_nowait()
            except queue.Empty:
                return
            self._history.add(event)
            number += 1
            if number % _ADD_AT_ONCE == 0:
                await asyncio.sleep(0.0)

    # --- answers ---------------------------------------------------------------------------------

    def _guard(self, proven: Callable[[Any], None]) -> Any:
        """Return the middleware that refuses requests without the token.

        `proven` is called with each request that knows the token.
        """
        from aiohttp import web

        cookie = f"elasticdl-page-{hashlib.sha256(self._token.encode()).hexdigest()[:8]}"

        @web.middleware
        async def guard(
            request: web.Request,
            handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
        ) -> web.StreamResponse:
            asked = request.query.get("token")
            if not self._is_known(asked, request.cookies.get(cookie, ""), request.headers):
                return web.Response(
                    status=401,
                    text="401: this page needs the token that is in the address that the job has "
                    "printed\n",
                    headers={**_HEADERS, "WWW-Authenticate": "Bearer", "Connection": "close"},
                )
            proven(request)
            try:
                if asked is not None and request.path == "/":
                    # The token goes into a cookie, so that it does not stay in the address, where
                    # others may see it.
                    answer: web.StreamResponse = web.Response(status=303, headers={"Location": "/"})
                    answer.set_cookie(
                        cookie, self._token, httponly=True, samesite="Strict", path="/"
                    )
                else:
                    answer = await handler(request)
            except web.HTTPException as error:
                answer = web.Response(status=error.status, text=f"{error.status}\n")
            except Exception:
                _asked.exception("the page has no answer to %s", one_line(request.path))
                answer = web.Response(status=500, text="500\n")
            # Also to errors: no answer may be framed, cached or run foreign scripts.
            answer.headers.update(_HEADERS)
            return answer

        return guard

    def _is_known(self, asked: str | None, held: str, headers: Mapping[str, str]) -> bool:
        scheme, _, sent = headers.get("Authorization", "").partition(" ")
        given = [asked or "", held, sent.strip() if scheme.lower() == "bearer" else ""]
        return any(is_same(one, self._token) for one in given)

    async def _give_board(self, request: Any) -> Any:
        since, generation = (_number(request.query.get(name)) for name in ("since", "generation"))
        # A page of an earlier master counts its versions from another history, so it gets
        # everything.
        if request.query.get("log", self._log) != self._log:
            since = -1
        self._asked_at = time.monotonic()
        await self._add()
        found = board(self._history, since, generation, self._config)
        found["log"] = self._log
        body = json.dumps(found, separators=(",", ":"), allow_nan=False).encode()
        if found["ended"] is not None:
            self._told_end.set()
        # Small answers are not worth it. A large one is packed in a thread, so that the loop stays
        # free.
        if len(body) > 4_000:
            body = await asyncio.to_thread(gzip.compress, body, 5)
            return _answer(request, body, "application/json", is_packed=True)
        return _answer(request, body, "application/json")

    async def _give_metrics(self, request: Any) -> Any:
        from aiohttp import web

        from elasticdl.observe.metrics import exposition

        await self._add()
        body, content_type = exposition(self._history, request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})


async def _listen(port: int, patience_seconds: float) -> socket.socket:
    """Open a port; the master before may still hold it for a while.

    Raises:
        ConfigError: The port is taken.
    """
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            return socket.create_server((_LOOPBACK, port))
        except OSError as error:
            if time.monotonic() >= deadline:
                raise ConfigError(
                    f"--dashboard_port={port}: cannot listen at {_LOOPBACK}:{port}: "
                    f"{error.strerror}; choose another one, or 0 for any that is free"
                ) from error
            await asyncio.sleep(0.1)


def _served(name: str, content_type: str) -> tuple[bytes, str]:
    return gzip.compress(asset(name).encode(), 9, mtime=0), content_type


def _answer(request: Any, body: bytes, content_type: str, is_packed: bool = False) -> Any:
    from aiohttp import web

    headers = {"Content-Type": content_type}
    if is_packed and "gzip" in request.headers.get("Accept-Encoding", ""):
        headers["Content-Encoding"] = "gzip"
    elif is_packed:
        body = gzip.decompress(body)
    return web.Response(body=body, headers=headers)


def _number(word: str | None) -> int:
    """Return a number of a query; other words count as missing."""
    try:
        return int(word) if word is not None else -1
    except ValueError:
        return -1

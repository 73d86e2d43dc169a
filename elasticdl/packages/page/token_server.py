"""Serves an HTTP application behind the token of a job's page, in a thread of its own.

The thread has an event loop of its own. So a slow client slows down nothing else of the process.

A request must prove that it knows the page's token before anything else of it is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import queue
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from elasticdl.distribution import install
from elasticdl.errors import ConfigError
from elasticdl.packages.page.door import Door
from elasticdl.runtime.log_lines import Sparingly
from elasticdl.runtime.printable import one_line

_MOST_BYTES = 64_000  # of a request
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}

Certificate = tuple[Path, Path]
"""Files with a certificate and its key, which may be renewed."""

log = logging.getLogger(__name__)
_asked = logging.getLogger(f"{__name__}.asked")  # faults in the requests of strangers
_asked.addFilter(Sparingly())


def page_token(job_token: bytes) -> str:
    """Return the token that opens a job's page, and nothing else.

    It is made from the job's secret by a one-way function. So every master of a job has the same
    token, and somebody who reads it learns nothing that opens the job itself.
    """
    return hmac.new(job_token, b"elasticdl page, read only", hashlib.sha256).hexdigest()[:40]


def _is_same(given: str, secret: str) -> bool:
    """Return whether a given word is the secret; the time does not depend on the word.

    Bytes of a header that are not text arrive as surrogates, which need an encoding of their own.
    """
    return hmac.compare_digest(given.encode(errors="surrogatepass"), secret.encode())


async def _until(stop: asyncio.Event) -> None:
    await stop.wait()


class TokenServer:
    """Serves an application from `start` to `close`."""

    def __init__(
        self,
        flag: str,
        token: str,
        add_routes: Callable[[Any], None],
        work: Callable[[asyncio.Event], Awaitable[None]] = _until,
        certificate: Certificate | None = None,
    ) -> None:
        """Prepare to serve.

        Args:
            flag: The flag of the port; used in messages and as the thread's name.
            token: Every request must know it.
            add_routes: Adds the routes to an application of aiohttp.
            work: Runs in the loop while it serves, until the given event is set.
            certificate: The certificate for TLS; None: clear text.
        """
        self._flag, self._token, self._add_routes = flag, token, add_routes
        self._work, self._certificate = work, certificate
        self.loop: asyncio.AbstractEventLoop | None = None
        """The loop of the thread, once `start` has returned."""
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    def start(self, bind: str, port: int, patience_seconds: float = 0.0) -> int:
        """Serve; block until it does, and return the port.

        Args:
            bind: The address to listen at.
            port: The port; 0: any free one.
            patience_seconds: How long the port may still be taken by another process.

        Raises:
            ConfigError: The port is taken, a package is missing, or it cannot be served for another
                reason.
        """
        started: queue.SimpleQueue[BaseException | int] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._run,
            args=(bind, port, patience_seconds, started),
            name=self._flag.strip("-"),
            daemon=True,
        )
        self._thread.start()
        found = started.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def close(self) -> None:
        """Stop serving."""
        if self.loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self.loop.call_soon_threadsafe(self._stop.set)
        if self._thread is not None:
            self._thread.join(2.0)

    # --- the thread ------------------------------------------------------------------------------

    def _run(
        self,
        bind: str,
        port: int,
        patience_seconds: float,
        started: queue.SimpleQueue[BaseException | int],
    ) -> None:
        try:
            self._check_packages()
            asyncio.run(self._serve(bind, port, patience_seconds, started))
        except ConfigError as error:
            started.put(error)
        except Exception as error:
            log.exception("the server of %s has failed; the job goes on without it", self._flag)
            # `start` waits for this if the error came before the port was open.
            why = f"{type(error).__name__}: {error}"
            started.put(ConfigError(f"{self._flag}={port}: cannot be served: {why}"))

    def _check_packages(self) -> None:
        try:
            import aiohttp.web  # noqa: F401 - said here, because it is an extra
            import prometheus_client  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                f"{self._flag} needs a package that is missing ({error.name}): "
                f"{install('dashboard')}"
            ) from error

    async def _serve(
        self,
        bind: str,
        port: int,
        patience_seconds: float,
        started: queue.SimpleQueue[BaseException | int],
    ) -> None:
        from aiohttp import web

        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        door: list[Door] = []
        guard = self._guard(lambda request: door[0].proven(request.transport))
        app = web.Application(middlewares=[guard], client_max_size=_MOST_BYTES)
        self._add_routes(app)
        runner = web.AppRunner(app, access_log=None, logger=_asked, keepalive_timeout=30.0)
        await runner.setup()
        try:
            listening = await self._listen(bind, port, patience_seconds)
            assert runner.server is not None, "it was set up"
            door.append(Door(listening, runner.server, self._secure))
            accepting = asyncio.ensure_future(door[0].serve())
            started.put(listening.getsockname()[1])
            try:
                await self._work(self._stop)
            finally:
                accepting.cancel()
                await asyncio.gather(accepting, return_exceptions=True)
        finally:
            await runner.cleanup()

    async def _listen(self, bind: str, port: int, patience_seconds: float) -> socket.socket:
        """Open the port; the process before may still hold it for a while.

        Raises:
            ConfigError: The port is taken.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_seconds
        while True:
            try:
                return socket.create_server((bind, port), backlog=128)
            except OSError as error:
                if loop.time() >= deadline:
                    raise ConfigError(
                        f"{self._flag}={port}: cannot listen at {bind}:{port}: "
                        f"{error.strerror}; choose another one, or 0 for any that is free"
                    ) from error
                await asyncio.sleep(0.1)

    def _secure(self) -> ssl.SSLContext | None:
        if self._certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # anew: it may have been renewed
        context.load_cert_chain(*self._certificate)
        return context

    # --- the guard -------------------------------------------------------------------------------

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
        return any(_is_same(one, self._token) for one in given)

"""Serves the web page of a running job, and its metrics, beside the master's event loop.

The master only puts events into a queue. The thread of `TokenServer` adds them to a history and
answers browsers.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import logging
import queue
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from elasticdl.job import Event
from elasticdl.packages.page.document import asset
from elasticdl.packages.page.history.board import board
from elasticdl.packages.page.history.fold import History
from elasticdl.packages.page.token_server import TokenServer

if TYPE_CHECKING:  # it comes with an extra
    from prometheus_client.core import Metric

_ADD_SECONDS = 0.5  # how often events are added while nobody asks
_ADD_AT_ONCE = 2_000  # before somebody else has a turn
_WATCHED_SECONDS = 5.0  # after an answer the page counts as open for so long
_REBIND_SECONDS = 5.0
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
log = logging.getLogger(__name__)


def page_url(address: str, token: str) -> str:
    """Return the address to open in a browser."""
    return f"{address}/?token={token}"


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
        self._config = config
        self._past = past
        self._since = time.time()
        self._log = secrets.token_hex(8)
        """Tells the versions of this page's history from those of an earlier master."""
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._history = History()
        self._has_past = asyncio.Event()
        self._asked_at = 0.0
        self._told_end = threading.Event()
        self._server = TokenServer("--dashboard_port", token, self._add_routes, self._collect)
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
        self.port = self._server.start(_LOOPBACK, port, patience_seconds if port else 0.0)

    def job_metrics(self, patience_seconds: float = 10.0) -> list[Metric]:
        """Return the metrics of the job as they are now; not for the page's own thread.

        Raises:
            TimeoutError: The page is busy with something else.
        """
        from elasticdl.packages.page.metrics import JobCollector

        async def collect() -> list[Metric]:
            await self._add_all()
            return list(JobCollector(self._history).collect())

        assert self._server.loop is not None, "it was started"
        found = asyncio.run_coroutine_threadsafe(collect(), self._server.loop)
        return found.result(patience_seconds)

    def tell_end(self, seconds: float) -> None:
        """Wait until an open page has shown that the job is over, within a limited time."""
        if time.monotonic() - self._asked_at < _WATCHED_SECONDS:
            self._told_end.wait(seconds)

    def close(self) -> None:
        """Stop serving."""
        self._server.close()

    # --- the thread ------------------------------------------------------------------------------

    def _add_routes(self, app: Any) -> None:
        for name, found in _ASSETS.items():
            app.router.add_get(f"/{name}", _giver(*_served(*found)))
        app.router.add_get("/board", self._give_board)
        app.router.add_get("/metrics", self._give_metrics)

    async def _collect(self, stop: asyncio.Event) -> None:
        """Add events to the history until the page is closed."""
        await self._add_past()
        while not stop.is_set():
            await self._add()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ADD_SECONDS):
                    await stop.wait()

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
        self._has_past.set()

    async def _add(self) -> None:
        """Add the waiting events, after those that came before them."""
        # The history must be in order: the events of earlier masters are read first.
        if not self._has_past.is_set():
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

    async def _add_all(self) -> None:
        """Add the waiting events once those before them were read.

        A counter that is lower for the moment would have begun anew for Prometheus.
        """
        await self._has_past.wait()
        await self._add()

    # --- answers ---------------------------------------------------------------------------------

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

        from elasticdl.packages.page.metrics import exposition

        await self._add_all()
        body, content_type = exposition(self._history, request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})


def _served(name: str, content_type: str) -> tuple[bytes, str]:
    return gzip.compress(asset(name).encode(), 9, mtime=0), content_type


def _giver(body: bytes, content_type: str) -> Callable[[Any], Awaitable[Any]]:
    async def give(request: Any) -> Any:
        return _answer(request, body, content_type, is_packed=True)

    return give


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

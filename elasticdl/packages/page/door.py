"""Guards a port: it limits who may be connected without a proof, and for how long.

A process of the job proves itself in a moment. So if there is no room, the oldest connection
without a proof is closed. Strangers that say nothing can thus keep no process out. `edl-wire` does
the same.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any

MOST_UNPROVEN = 64
"""The largest number of connections without a proof at one time."""

PATIENCE_SECONDS = 10.0
"""The longest time that a connection may be without a proof."""

_ACCEPT_PAUSE_SECONDS = 0.05  # after an `accept` that failed: no file descriptors, say

log = logging.getLogger(__name__)


class Door:
    """Accepts connections in an event loop; an error in one of them harms no other."""

    def __init__(
        self,
        listening: socket.socket,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        secure: Callable[[], ssl.SSLContext | None] = lambda: None,
        most_unproven: int = MOST_UNPROVEN,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """Prepare to accept.

        Args:
            listening: A socket that listens; `serve` closes it.
            make_protocol: Makes the protocol that answers one connection.
            secure: Returns what a connection is secured with; None: clear text.
            most_unproven: The largest number of connections without a proof at one time.
            patience_seconds: The longest time without a proof.
        """
        self._listening = listening
        self._make_protocol, self._secure = make_protocol, secure
        self._most_unproven = most_unproven
        self._patience_seconds = patience_seconds
        # In the order of their arrival: each with what is to be closed, and its timer. A connection
        # is its task until it is secured, and its transport from then on.
        self._unproven: dict[asyncio.Task[None] | asyncio.BaseTransport, asyncio.TimerHandle] = {}

    async def serve(self) -> None:
        """Accept until cancelled."""
        loop = asyncio.get_running_loop()
        self._listening.setblocking(False)
        try:
            while True:
                try:
                    accepted, _ = await loop.sock_accept(self._listening)
                except OSError as error:
                    log.debug("a connection was not accepted: %s", error)
                    # Without a pause, a lack of file descriptors would keep the loop busy.
                    await asyncio.sleep(_ACCEPT_PAUSE_SECONDS)
                    continue
                self._admit(accepted)
                await asyncio.sleep(0.0)  # the connections have a turn before the next one comes
        finally:
            self._listening.close()
            for one in list(self._unproven):
                self._turn_away(one)

    def proven(self, transport: asyncio.BaseTransport | None) -> None:
        """Note that a peer has proven that it may be here."""
        if transport is not None:
            self._forget(transport)

    def _admit(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        # Connections that were closed meanwhile make room first.
        for one in list(self._unproven):
            if isinstance(one, asyncio.BaseTransport) and one.is_closing():
                self._forget(one)
        while len(self._unproven) >= self._most_unproven:
            self._turn_away(next(iter(self._unproven)))
        until = loop.time() + self._patience_seconds
        task = loop.create_task(self._connect(accepted, until))
        task.add_done_callback(lambda done: self._connected(done, accepted))
        self._await_proof(task, until)

    async def _connect(self, accepted: socket.socket, until: float) -> None:
        """Secure a connection if it must be, which waits for the peer; then let it be answered."""
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_accepted_socket(
            self._make_protocol, accepted, ssl=self._secure()
        )
        self._await_proof(transport, until)

    def _connected(self, task: asyncio.Task[None], accepted: socket.socket) -> None:
        self._forget(task)
        if task.cancelled() or task.exception() is not None:
            if not task.cancelled():
                log.debug("a connection ended as it began: %s", task.exception())
            accepted.close()

    def _await_proof(self, one: asyncio.Task[None] | asyncio.BaseTransport, until: float) -> None:
        loop = asyncio.get_running_loop()
        self._unproven[one] = loop.call_at(until, self._turn_away, one)

    def _forget(self, one: asyncio.Task[None] | asyncio.BaseTransport) -> None:
        timer = self._unproven.pop(one, None)
        if timer is not None:
            timer.cancel()

    def _turn_away(self, one: Any) -> None:
        self._forget(one)
        if isinstance(one, asyncio.Task):
            one.cancel()
        else:
            one.abort()

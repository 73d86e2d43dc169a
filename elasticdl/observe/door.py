"""Guards a port: it limits who may be connected without a proof, and for how long.

A process of the job proves itself in a moment. So if there is no room, the oldest connection
without a proof is closed. Strangers that say nothing can thus keep no process out. `edl-wire` does
the same.
"""

from __future__ import annotations

import asyncio
import logging
import socket
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
        most_unproven: int = MOST_UNPROVEN,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """Prepare to accept.

        Args:
            listening: A socket that listens; `serve` closes it.
            make_protocol: Makes the protocol that answers one connection.
            most_unproven: The largest number of connections without a proof at one time.
            patience_seconds: The longest time without a proof.
        """
        self._listening = listening
        self._make_protocol = make_protocol
        self._most_unproven = most_unproven
        self._patience_seconds = patience_seconds
        # In the order of their arrival.
        self._unproven: dict[asyncio.BaseTransport, asyncio.TimerHandle] = {}

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
                await self._admit(accepted)
        finally:
            self._listening.close()
            for timer in self._unproven.values():
                timer.cancel()

    def proven(self, transport: asyncio.BaseTransport | None) -> None:
        """Note that a peer has proven that it may be here."""
        timer = self._unproven.pop(transport, None) if transport is not None else None
        if timer is not None:
            timer.cancel()

    async def _admit(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        # Connections that were closed meanwhile make room first.
        for transport in [one for one in self._unproven if one.is_closing()]:
            self.proven(transport)
        while len(self._unproven) >= self._most_unproven:
            self._turn_away(next(iter(self._unproven)))
        try:
            transport, _ = await loop.connect_accepted_socket(self._make_protocol, accepted)
        except OSError as error:
            log.debug("a connection ended as it began: %s", error)
            accepted.close()
            return
        self._unproven[transport] = loop.call_later(
            self._patience_seconds, self._turn_away, transport
        )

    def _turn_away(self, transport: Any) -> None:
        self.proven(transport)
        transport.abort()

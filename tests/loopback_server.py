"""An HTTP server for tests: on a port of loopback, in threads, and gone when it is closed."""

from __future__ import annotations

import socket
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_LOOK_SECONDS = 0.01  # within which it sees that it is to end; Python's own is half a second


class LoopbackServer(ThreadingHTTPServer):
    """Serves from when it is made until `close`, a thread for each connection."""

    daemon_threads = False  # so that they are waited for

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self._lock = threading.Lock()
        self._connections: set[Any] = set()
        self._thread = threading.Thread(target=self.serve_forever, args=(_LOOK_SECONDS,))
        self._thread.start()

    def process_request(self, request: Any, client_address: Any) -> None:
        # Else an answer whose head is sent first waits 40 ms for the client to confirm the head.
        request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client may hang up
            super().handle_error(request, client_address)

    def close(self) -> None:
        """Listen no more, hang up on whoever is connected, and wait for all threads.

        May be called again.
        """
        self.shutdown()
        self._thread.join()
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):  # it has hung up
                    connection.shutdown(socket.SHUT_RDWR)
        self.server_close()

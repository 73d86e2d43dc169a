"""Forwards a port of this machine to a port of a pod, through the API server."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from typing import Any

from elasticdl.packages.kubernetes.client import Api

_BYTES = 1 << 16

log = logging.getLogger(__name__)


class Forward:
    """Listens on the loopback address; each connection gets its own connection to the pod."""

    def __init__(self, api: Api, pod_name: str, port: int) -> None:
        """Begin to listen."""
        self._api = api
        self._pod_name = pod_name
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, name="forward", daemon=True).start()

    @property
    def address(self) -> str:
        """The address at which it listens, HOST:PORT."""
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def close(self) -> None:
        """Take no more connections; open connections go on to their end."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                way = self._api.forward(self._pod_name, self._port)
            except Exception as error:
                log.warning("no way to %s through the API server: %s", self._pod_name, error)
                return
            with contextlib.closing(way):
                far = way.socket(self._port)
                back = threading.Thread(target=_copy, args=(far, connection), daemon=True)
                back.start()
                _copy(connection, far)
                back.join()


def _copy(source: Any, target: Any) -> None:
    """Copy bytes until one side ends, and then end the other side."""
    with contextlib.suppress(OSError):
        while piece := source.recv(_BYTES):
            target.sendall(piece)
    for side in (source, target):
        with contextlib.suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)

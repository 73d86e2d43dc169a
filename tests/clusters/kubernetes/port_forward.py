"""Connections to ports of pods by way of the API server, as a kubelet makes them.

Played is the protocol `v4.channel.k8s.io` on a WebSocket, which the Python client speaks: channel 0
is the first port's data, channel 1 its errors, and each begins with the number of the port.
kubectl's own (SPDY, perhaps in a tunnel) is refused.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import select
import socket
import ssl
import threading
from http.server import BaseHTTPRequestHandler

from websocket import ABNF, WebSocketException
from websocket._abnf import frame_buffer

PROTOCOL = "v4.channel.k8s.io"
_MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # of RFC 6455
_DATA, _ERRORS = b"\x00", b"\x01"
_CONNECT_SECONDS = 5.0
_BLOCK = 1 << 16


class RefusedError(Exception):
    """The request is none that is played, or leads nowhere; the text says why."""


def serve(handler: BaseHTTPRequestHandler, address: str, port: int) -> None:
    """Answer a request for a port of a pod, up to the end of either side.

    Raises:
        RefusedError: Nothing was answered yet.
    """
    key = handler.headers.get("Sec-WebSocket-Key", "")
    offered = handler.headers.get("Sec-WebSocket-Protocol", "").replace(" ", "").split(",")
    if not key or PROTOCOL not in offered:
        raise RefusedError(f"the test cluster forwards ports by {PROTOCOL} alone, not {offered}")
    try:
        pod = socket.create_connection((address, port), _CONNECT_SECONDS)
    except OSError as error:
        raise RefusedError(f"no connection to port {port} of the pod: {error}") from error
    pod.settimeout(None)
    handler.close_connection = True
    handler.send_response(101)
    handler.send_header("Upgrade", "websocket")
    handler.send_header("Connection", "Upgrade")
    handler.send_header("Sec-WebSocket-Accept", _accept(key))
    handler.send_header("Sec-WebSocket-Protocol", PROTOCOL)
    handler.end_headers()
    assert isinstance(handler.connection, ssl.SSLSocket)
    _Way(handler.connection, pod).serve(port)


class _Way:
    """A WebSocket and a connection to a pod: what one says is passed on to the other."""

    def __init__(self, near: ssl.SSLSocket, pod: socket.socket) -> None:
        self._near = near
        self._pod = pod
        self._near.setblocking(False)
        self._tls = threading.Lock()  # a session of TLS is for one thread at a time
        self._frame = threading.Lock()  # frames are written by both threads

    def serve(self, port: int) -> None:
        """Pass on what is said until one side ends."""
        number = port.to_bytes(2, "little")
        for channel in (_DATA, _ERRORS):
            self._send(channel + number)
        back = threading.Thread(target=self._from_pod, daemon=True)
        back.start()
        try:
            self._to_pod()
        finally:
            with contextlib.suppress(OSError):
                self._pod.shutdown(socket.SHUT_RDWR)
            back.join()
            self._pod.close()

    def _to_pod(self) -> None:
        frames = frame_buffer(self._receive, skip_utf8_validation=True)
        with contextlib.suppress(OSError, WebSocketException):
            while True:
                frame = frames.recv_frame()
                if frame.opcode == ABNF.OPCODE_CLOSE:
                    return
                if frame.opcode == ABNF.OPCODE_PING:
                    self._send(frame.data, ABNF.OPCODE_PONG)
                elif frame.data[:1] == _DATA:
                    self._pod.sendall(frame.data[1:])

    def _from_pod(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._pod.recv(_BLOCK):
                self._send(_DATA + data)
            self._send(b"", ABNF.OPCODE_CLOSE)
            self._near.shutdown(socket.SHUT_RDWR)

    def _receive(self, count: int) -> bytes:
        while True:
            try:
                with self._tls:
                    data = self._near.recv(count)
            except ssl.SSLWantReadError:
                select.select([self._near], [], [])
                continue
            if not data:
                raise ConnectionError("the API server has closed the connection")
            return data

    def _send(self, data: bytes, opcode: int = ABNF.OPCODE_BINARY) -> None:
        rest = memoryview(ABNF(fin=1, opcode=opcode, mask_value=0, data=data).format())
        with self._frame:
            while rest:
                try:
                    with self._tls:
                        sent = self._near.send(rest)
                except ssl.SSLWantWriteError:
                    select.select([], [self._near], [])
                else:
                    rest = rest[sent:]


def _accept(key: str) -> str:
    return base64.b64encode(hashlib.sha1((key + _MAGIC).encode()).digest()).decode()

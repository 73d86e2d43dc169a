"""Serves the logs and ports of a node's pods to the API server, as a kubelet does.

`kubectl exec` and `attach` are not played.
"""

from __future__ import annotations

import os
import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from . import port_forward

FindLog = Callable[[str, str, str, bool], Callable[[], tuple[Path, bool] | None] | None]
"""(namespace, pod, container, previous) -> a function that says the file and whether more comes."""

FindAddress = Callable[[str, str], str]
"""(namespace, pod) -> its address, "" if it has none."""

_NOT_PLAYED = ("timestamps", "sinceSeconds", "sinceTime")
_LOOK_AGAIN_SECONDS = 0.1
_BLOCK = 1 << 16


class LogServer:
    """An HTTPS server: `/containerLogs/NAMESPACE/POD/CONTAINER`, `/portForward/NAMESPACE/POD`."""

    def __init__(
        self,
        host: str,
        certificate: tuple[str, str],
        find: FindLog,
        find_address: FindAddress,
    ):
        """Listen; only who shows the same certificate is let in."""
        finds = {"find": staticmethod(find), "find_address": staticmethod(find_address)}
        handler = type("Handler", (_Handler,), finds)
        self._server = ThreadingHTTPServer((host, 0), handler)
        self._server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        context.load_verify_locations(certificate[0])
        context.verify_mode = ssl.CERT_REQUIRED
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.port = self._server.server_address[1]

    def start(self) -> None:
        """Serve, in a thread that ends with the process."""
        threading.Thread(target=self._server.serve_forever, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    find: FindLog
    find_address: FindAddress

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(address.query).items()}
        parts = address.path.strip("/").split("/")
        if parts[0] == "portForward" and len(parts) == 3 and query.get("port", "").isdecimal():
            self._forward(parts[1], parts[2], int(query["port"]))
            return
        if len(parts) != 4 or parts[0] != "containerLogs":
            words = "serves logs, and forwards one port at a time"
            self._refuse(404, f"the node of the test cluster {words}, not {self.path}")
            return
        unknown = [key for key in _NOT_PLAYED if query.get(key, "false") != "false"]
        if unknown:
            self._refuse(400, f"the test cluster's logs do not know {', '.join(unknown)}")
            return
        look = self.find(parts[1], parts[2], parts[3], query.get("previous") == "true")
        found = look() if look else None
        if look is None or found is None:
            self._refuse(404, f"container {parts[3]} of pod {parts[2]} has no log")
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._send_log(found[0], query, look)
        self.wfile.write(b"0\r\n\r\n")

    def _forward(self, namespace: str, name: str, port: int) -> None:
        address = self.find_address(namespace, name)
        if not address:
            self._refuse(404, f"pod {name} has no address")
            return
        try:
            port_forward.serve(self, address, port)
        except port_forward.RefusedError as error:
            self._refuse(400, str(error))

    def _send_log(
        self,
        path: Path,
        query: dict[str, str],
        look: Callable[[], tuple[Path, bool] | None],
    ) -> None:
        left = int(query["limitBytes"]) if "limitBytes" in query else None
        follows = query.get("follow") == "true"
        with path.open("rb") as file:
            if "tailLines" in query:
                file.seek(_start_of_last_lines(path, int(query["tailLines"])))
            while left is None or left > 0:
                found = look() if follows else None
                # Asked before reading: what was written before the end is still read.
                more_comes = found is not None and found == (path, True)
                block = file.read(_BLOCK if left is None else min(left, _BLOCK))
                if block:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(block), block))
                    self.wfile.flush()
                    left = None if left is None else left - len(block)
                elif more_comes:
                    time.sleep(_LOOK_AGAIN_SECONDS)
                else:
                    return

    def _refuse(self, code: int, words: str) -> None:
        body = words.encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Requests are not logged."""


def _start_of_last_lines(path: Path, count: int) -> int:
    content = path.read_bytes()
    end = len(content) - 1 if content.endswith(b"\n") else len(content)
    position = end if count else len(content)
    for _ in range(count):
        position = content.rfind(b"\n", 0, position)
        if position < 0:
            return 0
    return position + 1 if count else os.path.getsize(path)

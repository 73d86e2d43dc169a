"""A stand-in for HDFS behind WebHDFS: its REST calls that fsspec's driver uses, on a local folder.

It is written from Hadoop's description of the WebHDFS REST API; nobody has compared it with a real
name node. As there, a name node answers what is asked of names, and sends those who read or write a
file to a data node, which is another port here.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections import deque
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from tests.loopback_server import LoopbackServer

PREFIX = "/webhdfs/v1"
OF_DATA_NODES = ("OPEN", "CREATE", "APPEND")


class WebHdfsServer:
    """Serves a folder of this machine.

    faults: Each is for one OPEN, in order: (`break` or `stall`, after how many bytes); "" is none.
    asked: The ranges that were read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.faults: deque[tuple[str, int]] = deque()
        self.asked: list[tuple[int, int]] = []
        self.met: list[str] = []
        self.done = threading.Event()
        self._servers = [self._serve(self._name_node), self._serve(self._data_node)]

    @property
    def url(self) -> str:
        """The root of the file system."""
        return f"webhdfs://127.0.0.1:{self._servers[0].server_port}"

    def close(self) -> None:
        self.done.set()
        for server in self._servers:
            server.close()

    def _serve(self, answer: Any) -> LoopbackServer:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                url = urlsplit(self.path)
                query = dict(parse_qsl(url.query))
                name = unquote(url.path.removeprefix(PREFIX))
                answer(self, query, name, body)

            do_GET = do_PUT = do_POST = do_DELETE = handle_any

        return LoopbackServer(Handler)

    # --- the name node ---------------------------------------------------------------------------

    def _name_node(
        self, request: BaseHTTPRequestHandler, query: dict[str, str], name: str, body: bytes
    ) -> None:
        operation, path = query["op"], self.folder / name.strip("/")
        if name.startswith("/private"):
            return _refuse(request, 403, "AccessControlException", f"Permission denied: {name}")
        if operation == "OPEN" and not path.is_file():
            return _refuse(request, 404, "FileNotFoundException", f"File does not exist: {name}")
        if operation in OF_DATA_NODES:
            assert not body, "data goes to data nodes"
            port = self._servers[1].server_port
            target = f"http://127.0.0.1:{port}{request.path.partition('?')[0]}?{urlencode(query)}"
            return _send(request, 307, b"", Location=target)
        if operation in ("GETFILESTATUS", "LISTSTATUS") and not path.exists():
            return _refuse(request, 404, "FileNotFoundException", f"File does not exist: {name}")
        return _send(request, 200, json.dumps(self._done(operation, path, query)).encode())

    def _done(self, operation: str, path: Path, query: dict[str, str]) -> dict[str, Any]:
        """Return the answer of an operation on names."""
        match operation:
            case "GETFILESTATUS":
                return {"FileStatus": _status(path, "")}
            case "LISTSTATUS":
                found = sorted(path.iterdir()) if path.is_dir() else [path]
                names = [file.name if path.is_dir() else "" for file in found]
                statuses = [_status(f, name) for f, name in zip(found, names, strict=True)]
                return {"FileStatuses": {"FileStatus": statuses}}
            case "MKDIRS":
                path.mkdir(parents=True, exist_ok=True)
                return {"boolean": True}
            case "RENAME":
                target = self.folder / query["destination"].strip("/")
                is_free = path.exists() and not target.exists()
                if is_free:
                    path.rename(target)
                return {"boolean": is_free}
            case "DELETE":
                was_there = path.exists()
                if path.is_dir():
                    shutil.rmtree(path) if query.get("recursive") == "true" else path.rmdir()
                else:
                    path.unlink(missing_ok=True)
                return {"boolean": was_there}
        raise AssertionError(f"{operation}: not spoken by this stand-in")

    # --- a data node -----------------------------------------------------------------------------

    def _data_node(
        self, request: BaseHTTPRequestHandler, query: dict[str, str], name: str, body: bytes
    ) -> None:
        operation, path = query["op"], self.folder / name.strip("/")
        if operation == "OPEN":
            return self._open(request, path, query)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb" if operation == "CREATE" else "ab") as file:
            file.write(body)
        return _send(request, 201 if operation == "CREATE" else 200, b"")

    def _open(self, request: BaseHTTPRequestHandler, path: Path, query: dict[str, str]) -> None:
        content = path.read_bytes()
        start = int(query.get("offset", 0))
        part = content[start : start + int(query.get("length", len(content)))]
        self.asked.append((start, start + len(part)))
        fault, at = self.faults.popleft() if self.faults else ("", 0)
        _head(request, 200, len(part))
        with suppress(OSError):
            request.wfile.write(part[:at] if fault else part)
            request.wfile.flush()
        if fault:
            self.met.append(fault)
            request.close_connection = True
        if fault == "stall":
            self.done.wait(60)


def _status(path: Path, name: str) -> dict[str, Any]:
    found = path.stat()
    return {
        "pathSuffix": name,
        "type": "DIRECTORY" if path.is_dir() else "FILE",
        "length": 0 if path.is_dir() else found.st_size,
        "modificationTime": found.st_mtime_ns // 1_000_000,
        "accessTime": found.st_mtime_ns // 1_000_000,
        "owner": "somebody",
        "group": "users",
        "permission": "755",
        "replication": 1,
        "blockSize": 134_217_728,
    }


def _head(request: BaseHTTPRequestHandler, status: int, length: int, **headers: str) -> None:
    request.send_response(status)
    request.send_header("Content-Length", str(length))
    for name, value in headers.items():
        request.send_header(name, value)
    request.end_headers()


def _send(request: BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
    _head(request, status, len(body), **headers)
    with suppress(OSError):
        request.wfile.write(body)


def _refuse(request: BaseHTTPRequestHandler, status: int, kind: str, message: str) -> None:
    said = {"RemoteException": {"exception": kind, "javaClassName": kind, "message": message}}
    _send(request, status, json.dumps(said).encode())

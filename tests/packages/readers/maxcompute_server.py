"""A stand-in for MaxCompute: it speaks that part of its protocol which reading a table uses.

It is written from what pyodps sends and expects; nobody has compared it with Alibaba's servers. It
answers: the schema of a table, its partitions, opening a download session of the tunnel, and rows
of a range of it as Arrow in chunks with their CRC32C. It checks the signature of each request.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import json
import struct
import threading
from collections import deque
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

import pyarrow

from tests.loopback_server import LoopbackServer

CHUNK_BYTES = 4096
BATCH_ROWS = 3000
_TYPES = {
    "int64": "bigint",
    "int32": "int",
    "double": "double",
    "float": "float",
    "string": "string",
    "binary": "binary",
    "bool": "boolean",
    "timestamp[ms]": "datetime",
    "date32[day]": "date",
    "decimal128(10, 2)": "decimal(10,2)",
    "list<item: int64>": "array<bigint>",
    "map<string, int64>": "map<string,bigint>",
}


class MaxComputeServer:
    """Serves tables of one project, `project`.

    tables: Arrow tables by `TABLE` or `TABLE/key=value/...`.
    faults: Each is for one download of rows, in order: (what, how many bytes are sent whole).
        `break` and `stall` end there, `garble` changes the next byte, `""` is no fault.
    asked: What ranges of rows were asked for.
    """

    def __init__(self, access_id: str = "reader", access_key: str = "never-shown") -> None:
        self.tables: dict[str, pyarrow.Table] = {}
        self.faults: deque[tuple[str, int]] = deque()
        self.asked: list[tuple[int, int]] = []
        self.sessions: dict[str, pyarrow.Table] = {}
        self.met: list[str] = []
        self.login = access_id, access_key
        self.done = threading.Event()
        self._numbers = itertools.count(1)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.answer(self)

            def do_GET(self) -> None:
                outer.answer(self)

        self.server = LoopbackServer(Handler)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/api"

    @property
    def params(self) -> str:
        """What a reader is given to reach it."""
        access_id, access_key = self.login
        return f"access_id={access_id};access_key={access_key};endpoint={self.endpoint}"

    def close(self) -> None:
        self.done.set()
        self.server.close()

    # --- the protocol ----------------------------------------------------------------------------

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        url = urlsplit(request.path)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        if not self._is_signed(request):
            return _refuse(request, 403, "Unauthorized", "The signature does not match")
        words = url.path.removeprefix("/api/projects/").split("/")
        if words[0] != "project":
            return _refuse(request, 404, "NoSuchProject", f"no project {words[0]}")
        if words[1] == "tunnel":
            return _send(request, f"127.0.0.1:{self.server.server_port}/api".encode())
        partition = query.get("partition", "").replace("'", "").replace(",", "/")
        name = words[2]
        if name not in {known.partition("/")[0] for known in self.tables}:
            return _refuse(request, 404, "NoSuchTable", f"no table {name}")
        if "downloads" in query:
            return self._open(request, f"{name}/{partition}" if partition else name)
        if "downloadid" in query:
            return self._download(request, query)
        if "partitions" in query:
            return _send(request, self._partitions(name))
        schema = escape(json.dumps(self._schema(name)))
        return _send(
            request, f"<Table><Name>{name}</Name><Schema>{schema}</Schema></Table>".encode()
        )

    def _is_signed(self, request: BaseHTTPRequestHandler) -> bool:
        """Compare with the signature of the documented text, by the key that the server knows."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        named = {name: headers.get(name, "") for name in ("content-type", "content-md5", "date")}
        named |= {name: value for name, value in headers.items() if name.startswith("x-odps-")}
        path, _, query = request.path.removeprefix("/api").partition("?")
        pairs = sorted(parse_qsl(unquote(query), keep_blank_values=True))
        resource = unquote(path)
        if pairs:
            resource += "?" + "&".join(f"{k}={v}" if v else k for k, v in pairs)
        lines = [request.command]
        for name in sorted(named):
            is_own = name.startswith("x-odps-")
            lines.append(f"{name}:{named[name]}" if is_own else named[name])
        access_id, key = self.login
        said = hmac.new(key.encode(), "\n".join([*lines, resource]).encode(), hashlib.sha1).digest()
        expected = f"ODPS {access_id}:{base64.b64encode(said).decode()}"
        return hmac.compare_digest(headers.get("authorization", ""), expected)

    def _schema(self, name: str) -> dict[str, Any]:
        known = next(key for key in self.tables if key.partition("/")[0] == name)
        keys = [word.partition("=")[0] for word in known.split("/")[1:]]
        return {
            "columns": [
                {"name": field.name, "type": _TYPES[str(field.type)], "isNullable": True}
                for field in self.tables[known].schema
            ],
            "partitionKeys": [{"name": key, "type": "string"} for key in keys],
        }

    def _partitions(self, name: str) -> bytes:
        specs = [key.split("/")[1:] for key in self.tables if key.startswith(f"{name}/")]
        items = "".join(
            "<Partition>"
            + "".join('<Column Name="{}" Value="{}"/>'.format(*word.split("=")) for word in spec)
            + "</Partition>"
            for spec in specs
        )
        return f"<Partitions><Marker/><MaxItems>100</MaxItems>{items}</Partitions>".encode()

    def _open(self, request: BaseHTTPRequestHandler, name: str) -> None:
        if name not in self.tables:
            return _refuse(request, 404, "NoSuchPartition", f"no partition {name}")
        session = f"session-{next(self._numbers)}"
        table = self.sessions[session] = self.tables[name]
        said = {
            "DownloadID": session,
            "Status": "normal",
            "RecordCount": table.num_rows,
            "Schema": self._schema(name.partition("/")[0]),
        }
        return _send(request, json.dumps(said).encode())

    def _download(self, request: BaseHTTPRequestHandler, query: dict[str, str]) -> None:
        table = self.sessions.get(query["downloadid"])
        if table is None:
            return _refuse(request, 404, "NoSuchDownload", "the session has ended")
        assert {"data", "arrow"} <= set(query), "this stand-in sends rows as Arrow alone"
        start, count = map(int, query["rowrange"].strip("()").split(","))
        self.asked.append((start, count))
        names = query.get("columns", ",".join(table.column_names)).split(",")
        chosen = table.select([name for name in table.column_names if name in names])
        body = framed(chosen.slice(start, count))
        fault, at = self.faults.popleft() if self.faults else ("", 0)
        if fault:
            self.met.append(fault)
        if fault == "garble":
            body = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        with suppress(OSError):
            request.wfile.write(body[:at] if fault in ("break", "stall") else body)
            request.wfile.flush()
        if fault == "stall":
            self.done.wait(60)
        request.close_connection = fault in ("break", "stall")
        return None


def framed(table: pyarrow.Table) -> bytes:
    """Return record batches as the tunnel sends them: chunks, each with the CRC32C of its bytes.

    The schema is not sent. In the place of the last chunk's checksum is that of all bytes.
    """
    raw = b"".join(
        batch.serialize().to_pybytes()
        for batch in table.combine_chunks().to_batches(max_chunksize=BATCH_ROWS)
    )
    parts = [struct.pack("!I", CHUNK_BYTES)]
    for at in range(0, len(raw) - CHUNK_BYTES + 1, CHUNK_BYTES):
        chunk = raw[at : at + CHUNK_BYTES]
        parts += [chunk, _checksum(chunk)]
    parts += [raw[len(raw) - len(raw) % CHUNK_BYTES :], _checksum(raw)]
    return b"".join(parts)


def _checksum(data: bytes) -> bytes:
    from odps.tunnel.checksum import Checksum  # whose package takes seconds to import

    checksum = Checksum()
    checksum.update(data)
    return struct.pack("!I", int(checksum.getvalue()) & 0xFFFFFFFF)


def _send(request: BaseHTTPRequestHandler, body: bytes, status: int = 200) -> None:
    request.send_response(status)
    request.send_header("Content-Length", str(len(body)))
    request.send_header("x-odps-request-id", "request-1")
    request.end_headers()
    with suppress(OSError):
        request.wfile.write(body)


def _refuse(request: BaseHTTPRequestHandler, status: int, code: str, message: str) -> None:
    said = {"Code": code, "Message": message, "RequestId": "request-1", "HostId": "stand-in"}
    _send(request, json.dumps(said).encode(), status)

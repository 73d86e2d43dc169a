"""An API server that fails as told: what the real one cannot be made to do at a given moment.

It keeps pods in memory, answers over real sockets, and has no scheduler and no nodes: a test says
what becomes of a pod.
"""

import base64
import json
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

_SLASHES_OF_A_LIST = 5  # /api/v1/namespaces/NAMESPACE/KIND


class FakeApiServer:
    """Pods by name, and the events of a watch."""

    def __init__(self):
        self.lock = threading.Condition()
        self.objects = {}  # (kind, name) -> object
        self.events = []  # (version, type, pod)
        self.version = 100
        self.oldest = 0  # version from which watches may begin
        self.faults = deque()  # of POSTs: HTTP status, or "lost" (done, and not answered)
        self.requests = []
        self.num_lists = 0
        self.watches = 0
        self.watch_lines = deque()  # that the next watches get as they are; then they end
        handler = type("Handler", (_Handler,), {"api": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        with self.lock:
            self.version = -1  # ends the watches
            self.lock.notify_all()

    def wait_until(self, holds, seconds=100.0):
        with self.lock:
            assert self.lock.wait_for(holds, seconds), "it did not come about"

    def pods(self):
        return {name: pod for (kind, name), pod in self.objects.items() if kind == "pods"}

    def put(self, pod, kind="MODIFIED"):
        """Let a pod be as it is now, and tell whoever watches."""
        with self.lock:
            self.version += 1
            pod["metadata"]["resourceVersion"] = str(self.version)
            name = pod["metadata"]["name"]
            if kind == "DELETED":
                self.objects.pop(("pods", name), None)
            else:
                self.objects["pods", name] = pod
            self.events.append((self.version, kind, json.loads(json.dumps(pod))))
            self.lock.notify_all()

    def set_status(self, name, **status):
        self.put(self.pods()[name] | {"status": status})

    def forget_history(self):
        """Watches end, and cannot go on from where they were: 410."""
        with self.lock:
            self.oldest = self.version + 1
            self.version += 1
            self.lock.notify_all()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: FakeApiServer

    def log_message(self, *arguments):
        pass

    def do_GET(self):
        url = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        if query.get("watch") == "true":
            self._watch(int(query["resourceVersion"]))
            return
        *_, kind = url.path.split("/")
        if url.path.count("/") > _SLASHES_OF_A_LIST:
            self._get(*url.path.split("/")[-2:])
            return
        with self.api.lock:
            self.api.num_lists += 1
            items = [found for (of, _), found in self.api.objects.items() if of == kind]
            metadata = {"resourceVersion": str(self.api.version)}
            body = {"items": items, "metadata": metadata}
            self.api.lock.notify_all()
        self._answer(200, body)

    def _get(self, kind, name):
        with self.api.lock:
            found = self.api.objects.get((kind, name))
        if found is None:
            self._refuse(404, f'{kind} "{name}" not found')
            return
        words = found.get("stringData", {})
        data = {key: base64.b64encode(word.encode()).decode() for key, word in words.items()}
        self._answer(200, {"data": data} | found)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        *_, kind = urlsplit(self.path).path.split("/")
        name = body["metadata"]["name"]
        with self.api.lock:
            self.api.requests.append(("POST", kind, name))
            fault = self.api.faults.popleft() if self.api.faults else None
            exists = (kind, name) in self.api.objects
            self.api.lock.notify_all()
        if isinstance(fault, tuple):
            self._refuse(*fault)
            return
        if exists:
            self._refuse(409, f'{kind} "{name}" already exists')
            return
        body.setdefault("metadata", {})["uid"] = f"uid-of-{name}"
        if kind == "pods":
            self.api.put(body | {"status": {"phase": "Pending"}}, "ADDED")
        else:
            with self.api.lock:
                self.api.objects[kind, name] = body
                self.api.lock.notify_all()
        if fault == "lost":
            self.close_connection = True
            self.connection.close()
            return
        self._answer(201, body)

    def do_PATCH(self):
        """Merge the status of an object; nothing else is changed."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        *_, kind, name, _ = urlsplit(self.path).path.split("/")
        with self.api.lock:
            found = self.api.objects[kind, name]
            found["status"] = found.get("status", {}) | body["status"]
            self.api.lock.notify_all()
        self._answer(200, found)

    def do_DELETE(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        *_, kind, name = urlsplit(self.path).path.split("/")
        with self.api.lock:
            self.api.requests.append(("DELETE", kind, name, body.get("gracePeriodSeconds")))
            found = self.api.objects.get((kind, name))
            self.api.lock.notify_all()
        if found is None:
            self._refuse(404, f'{kind} "{name}" not found')
            return
        self.api.put(found, "DELETED")
        self._answer(200, {})

    def _watch(self, since):
        with self.api.lock:
            self.api.watches += 1
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        begun = self.api.oldest
        if self.api.watch_lines:
            self._send_chunk(self.api.watch_lines.popleft())
            self._chunk(None)
            return
        if since < begun:
            gone = {"kind": "Status", "code": 410, "message": "too old resource version"}
            self._chunk({"type": "ERROR", "object": gone})
            self._chunk(None)
            return
        while True:
            news, is_over = self._news(since, begun)
            for version, kind, pod in news:
                self._chunk({"type": kind, "object": pod})
                since = version
            if is_over:
                self._chunk(None)
                return

    def _news(self, since, begun):
        api = self.api

        def is_over():
            return api.oldest > begun or api.version < 0

        with api.lock:
            api.lock.wait_for(lambda: is_over() or (api.events and api.events[-1][0] > since), 10.0)
            return [event for event in api.events if event[0] > since], is_over()

    def _chunk(self, event):
        self._send_chunk(b"" if event is None else json.dumps(event).encode() + b"\n")

    def _send_chunk(self, line):
        try:
            self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        except OSError:
            self.close_connection = True

    def _refuse(self, code, message):
        self._answer(code, {"kind": "Status", "code": code, "message": message})

    def _answer(self, code, body):
        encoded = json.dumps(body).encode()
        self.send_response(code)
        if code == 429:
            self.send_header("Retry-After", "0")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

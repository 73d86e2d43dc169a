"""As much of a server of Weights & Biases as a run asks that logs numbers and a model."""

import gzip
import http.server
import json
import threading


class Run:
    """What the server knows of a run: its rows, what it was told of it, how it ended."""

    def __init__(self):
        self.rows, self.config, self.exit_code = [], {}, None
        self.num_begun, self.num_preempted = 0, 0

    def stream(self, message):
        """Take in rows; they stand where their sender says."""
        part = message.get("files", {}).get("wandb-history.jsonl")
        if part is not None:
            self.rows[part["offset"] :] = map(json.loads, part["content"])
        self.num_preempted += bool(message.get("preempting"))
        if message.get("complete"):
            self.exit_code = message["exitcode"]


class Server(http.server.ThreadingHTTPServer):
    """Answers the library's requests."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.runs, self.artifacts, self.unknown = {}, [], set()
        self.lock = threading.Lock()

    def answer(self, name, asked):
        """Return the data of a request of GraphQL."""
        match name:
            case "Viewer":
                teams = {"edges": []}
                return {"viewer": {"id": "v", "entity": "me", "flags": "{}", "teams": teams}}
            case "ServerFeaturesQuery":
                return {"serverInfo": {"features": []}}
            case "RunResumeStatus":
                run = self.runs.get(asked["name"])
                return {"model": run and self._resumed(asked, run)}
            case "UpsertBucket":
                return {"upsertBucket": self._begun(asked)}
            case "CreateRunFiles":
                return {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": []}}
            case "ArtifactType":
                return {"project": None}
            case "CreateArtifact":  # with all its files, so none is sent
                self.artifacts.append(asked["input"])
                artifact = {"id": "a", "state": "COMMITTED", "artifactSequence": {"id": "s"}}
                return {"createArtifact": {"artifact": artifact}}
        self.unknown.add(name)
        return None

    def _resumed(self, asked, run):
        last = [json.dumps(row) for row in run.rows[-1:]]
        bucket = {"name": asked["name"], "summaryMetrics": "{}", "displayName": "", "tags": []}
        bucket |= {"logLineCount": 0, "historyLineCount": len(run.rows), "eventsLineCount": 0}
        bucket |= {"historyTail": json.dumps(last), "eventsTail": "[]", "notes": ""}
        bucket |= {"id": "b", "config": json.dumps(run.config), "wandbConfig": '{"t": 1}'}
        return {"id": "m", "name": asked["project"], "entity": _ME, "bucket": bucket}

    def _begun(self, asked):
        is_new = asked["name"] not in self.runs
        run = self.runs.setdefault(asked["name"], Run())
        if asked["displayName"] is not None:  # not what is said of it later
            run.num_begun += 1
        run.config |= json.loads(asked["config"] or "{}")
        project = {"id": "p", "name": asked["project"], "entity": _ME}
        bucket = {"id": "b", "name": asked["name"], "displayName": "", "description": ""}
        bucket |= {"config": "{}", "sweepName": "", "project": project}
        return {"bucket": bucket | {"historyLineCount": len(run.rows)}, "inserted": is_new}


_ME = {"id": "e", "name": "me"}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        with self.server.lock:
            if self.path.endswith("/file_stream"):
                self.server.runs[self.path.split("/")[-2]].stream(json.loads(body))
                answer = {"exitcode": None, "limits": {}}
            elif not self.path.endswith("/graphql"):  # how the library itself is doing
                self.send_error(404)
                return
            else:
                message = json.loads(body)
                name = message["query"].split("(")[0].split("{")[0].split()[-1]
                answer = {"data": self.server.answer(name, message.get("variables") or {})}
        words = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(words)))
        self.end_headers()
        self.wfile.write(words)

    def log_message(self, *words):
        pass

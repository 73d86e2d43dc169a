"""A server answers with one version, follows the export, and refuses what is not right."""

import asyncio
import contextlib
import gzip
import http.client
import json
import os
import re
import signal
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("aiohttp")

from elasticdl.backends.served import FeatureSpec
from elasticdl.errors import ExportError
from elasticdl.packages.serving import model
from elasticdl.packages.serving.chain import folder_of
from elasticdl.packages.serving.command import exports as exports_command
from elasticdl.packages.serving.command import serve as serve_command
from elasticdl.packages.serving.publishing import Publisher, point_to
from elasticdl.packages.serving.server import RequestLimits, Server, end_at_once, serve
from elasticdl.packages.serving.versions import Versions
from tests.packages.serving.exporting_job import PROGRAM, Job, program_at, publish


class Program:
    """Adds up the rows of an id in both tables, and the first dense parameter."""

    features = (FeatureSpec("id", "int64", ()),)
    lookups = ("word/é", "number")
    num_ids = {"number": 500}  # noqa: RUF012

    def set_parameters(self, dense, state):
        self.dense = dense

    def ids(self, features):
        return [features["id"], features["id"]]

    def score(self, features, rows):
        return {"output": rows[0].sum(axis=1) + rows[1][:, 0] + self.dense[0]}


class Exporting:
    """A job, its export, and a server that follows it."""

    def __init__(self, tmp_path, limits):
        self.directory = tmp_path / "exports"
        self.job, self.rng = Job(tmp_path / "scratch"), np.random.default_rng(0)
        program_at(self.directory)
        self.publisher = Publisher(self.directory, "job")
        self.told = []
        self.server = Server(
            Versions(self.directory, tmp_path), limits, poll_seconds=0.01, tell=self.told.append
        )
        self._loop = asyncio.new_event_loop()
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._is_ready.wait(30)

    def _run(self):
        self._task = self._loop.create_task(self.server.run("127.0.0.1", 0, self._is_ready.set))
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._task)
        self._loop.close()

    def close(self):
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()
        self.job.close()

    def export(self, program=PROGRAM):
        self.job.update(self.rng, np.arange(20))
        return publish(self.publisher, self.job, program).number

    def expected(self, ids):
        """What the job's own parameters give; 0.05 is the centre of both tables."""
        pulled = self.job.client.pull([(0, np.array(ids)), (1, np.array(ids))], training=False)
        return pulled.rows[0].sum(axis=1) + pulled.rows[1][:, 0] + pulled.dense[0]

    def ask(self, method, path, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def predict(self, ids):
        status, body = self.ask("POST", "/v1/predict", json.dumps({"inputs": {"id": ids}}))
        return status, json.loads(body)

    def wait_for(self, is_so):
        deadline = time.monotonic() + 30
        while not is_so():
            assert time.monotonic() < deadline, self.told
            time.sleep(0.005)

    def health(self):
        return json.loads(self.ask("GET", "/healthz")[1])

    def wait_for_version(self, number):
        self.wait_for(lambda: self.health()["version"] == number)


@pytest.fixture
def limits():
    return RequestLimits()


@pytest.fixture
def exporting(tmp_path, limits, monkeypatch):
    monkeypatch.setattr(model, "load_served", lambda folder: Program())
    exporting = Exporting(tmp_path, limits)
    yield exporting
    exporting.close()


def test_each_version_is_answered_with_as_it_comes(exporting):
    assert exporting.ask("GET", "/healthz")[0] == 503
    status, said = exporting.predict([1])
    assert (status, "nothing is served yet" in said["error"]) == (503, True)
    for number in (1, 2, 3):
        exporting.export()
        exporting.wait_for_version(number)

        status, said = exporting.predict([0, 7, 19, 499])

        assert (status, said["version"], said["model_version"]) == (200, number, number)
        predictions = np.array(said["predictions"], np.float32)
        np.testing.assert_array_equal(predictions, exporting.expected([0, 7, 19, 499]))


def test_requests_are_answered_while_another_program_is_loaded(exporting, monkeypatch):
    exporting.export()
    exporting.wait_for_version(1)
    before, begun, goes_on = exporting.predict([3]), threading.Event(), threading.Event()

    def load_slowly(folder):
        begun.set()
        assert goes_on.wait(60)
        return Program()

    monkeypatch.setattr(model, "load_served", load_slowly)
    exporting.export(program_at(exporting.directory, "another"))
    try:
        assert begun.wait(30)

        assert exporting.predict([3]) == before
    finally:
        goes_on.set()
    exporting.wait_for_version(2)
    assert exporting.predict([3])[1]["predictions"] == pytest.approx(exporting.expected([3]))


def test_a_version_that_is_loaded_is_not_said_to_be_missing(exporting, monkeypatch):
    begun, goes_on = threading.Event(), threading.Event()

    def load_slowly(folder):
        begun.set()
        assert goes_on.wait(60)
        return Program()

    monkeypatch.setattr(model, "load_served", load_slowly)
    exporting.wait_for(lambda: "no version" in exporting.health()["problem"])
    exporting.export()
    try:
        assert begun.wait(30)

        assert exporting.health() == {"status": "loading", "version": None, "problem": ""}
    finally:
        goes_on.set()
    exporting.wait_for_version(1)


@pytest.mark.parametrize("shape", [(), (2, 1)])
def test_an_output_that_is_not_of_each_record_is_named(exporting, monkeypatch, shape):
    outputs = {"score": np.zeros((1, 1)), "scale": np.zeros(shape)}
    monkeypatch.setattr(Program, "score", lambda self, features, rows: outputs)
    exporting.export()
    exporting.wait_for_version(1)

    status, said = exporting.predict([3])

    words = f"output 'scale' of the model has the shape {list(shape)} for 1 records"
    assert (status, words in said["error"]) == (500, True)


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("HEAD", "/healthz", 200, b""),
        ("HEAD", "/v1/predict", 405, b""),
        ("GET", "/v1/predict", 405, b"/v1/predict: expected POST, found GET"),
        ("POST", "/healthz", 405, b"/healthz: expected GET, found POST"),
        ("GET", "/other", 404, b"expected /v1/predict, "),
    ],
)
def test_head_is_get_without_the_body_and_others_are_told(exporting, method, path, status, words):
    exporting.export()
    exporting.wait_for_version(1)

    found, body = exporting.ask(method, path)

    assert (found, words in body, bool(words)) == (status, True, bool(body))


def test_a_damaged_version_is_refused_by_name_and_the_last_good_one_served_on(exporting):
    exporting.export()
    exporting.wait_for_version(1)
    before = exporting.predict([3])
    point_to(exporting.directory, 1)
    exporting.export()
    manifest = exporting.directory / folder_of(2) / "manifest.json"
    content = manifest.read_bytes()
    point_to(exporting.directory, None)
    exporting.wait_for_version(2)
    point_to(exporting.directory, 1)
    exporting.wait_for_version(1)
    exporting.publisher.publish(5, PROGRAM, exporting.job.client.export)
    manifest.write_bytes(content.replace(b"delta", b"dalte"))
    current = exporting.directory / "another"
    current.write_text(json.dumps({"number": 2, "sha256": "0" * 64, "held": True}))
    current.rename(exporting.directory / "CURRENT")

    exporting.wait_for(lambda: exporting.health()["status"] == "behind")

    assert "version 2: its manifest is damaged or another one" in exporting.health()["problem"]
    assert exporting.predict([3]) == before
    assert "served on" in exporting.told[-1]
    metrics = exporting.ask("GET", "/metrics", Accept="text/plain; version=x")[1].decode()
    assert "elasticdl_serve_version 1.0" in metrics
    assert "elasticdl_serve_versions_refused_total 0" not in metrics
    manifest.write_bytes(content)
    point_to(exporting.directory, None)
    exporting.wait_for(lambda: exporting.health()["status"] == "ok")
    exporting.wait_for_version(3)


def test_arrow_is_answered_with_arrow(exporting):
    pa = pytest.importorskip("pyarrow")
    exporting.export()
    exporting.wait_for_version(1)
    batch = pa.record_batch([pa.array([5, 499])], names=["id"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    kind = {"Content-Type": "application/vnd.apache.arrow.stream"}

    status, body = exporting.ask("POST", "/v1/predict", sink.getvalue().to_pybytes(), **kind)

    with pa.ipc.open_stream(body) as reader:
        table = reader.read_all()
    assert status == 200
    np.testing.assert_array_equal(table["output"].to_numpy(), exporting.expected([5, 499]))
    assert table.schema.metadata[b"version"] == b"1"


DOCS = Path(__file__).parents[3] / "docs" / "serving.md"


def client_of_docs(number):
    """Return `predict` of a listing; what it calls it with there is left out."""
    listing = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)[number]
    names = {}
    exec(listing.partition("\n\n\nprint(")[0], names)
    return names["predict"]


def as_pyarrow(ids):
    return pytest.importorskip("pyarrow").table({"id": ids})


def as_pandas(ids):
    return pytest.importorskip("pandas").DataFrame({"id": ids})


def as_polars(ids):
    return pytest.importorskip("polars").DataFrame({"id": ids})


def as_duckdb(ids):
    return pytest.importorskip("duckdb").from_df(as_pandas(ids))


@pytest.mark.parametrize("make", [as_pyarrow, as_pandas, as_polars, as_duckdb])
@pytest.mark.parametrize("num_rows", [0, 25])
def test_tables_of_others_go_into_the_client_of_the_docs_as_they_are(exporting, make, num_rows):
    pytest.importorskip("pyarrow")
    exporting.export()
    exporting.wait_for_version(1)
    ids = np.arange(num_rows)
    address = f"http://127.0.0.1:{exporting.server.port}"
    scores = client_of_docs(1)(make(ids), address, rows=10)["output"].to_numpy()
    np.testing.assert_array_equal(scores, exporting.expected(ids))


def test_records_go_into_the_client_of_the_docs(exporting):
    exporting.export()
    exporting.wait_for_version(1)
    address = f"http://127.0.0.1:{exporting.server.port}"
    scores = client_of_docs(0)([{"id": 3}, {"id": 499}], address)
    np.testing.assert_array_equal(np.array(scores, np.float32), exporting.expected([3, 499]))


@pytest.mark.parametrize("limits", [RequestLimits(request_bytes=1000)])
def test_what_is_too_much_is_refused(exporting, limits):
    exporting.export()
    exporting.wait_for_version(1)
    status, said = exporting.predict(list(range(1000)))
    assert (status, "at most 1,000 bytes" in said["error"]) == (413, True)
    for ids, words in (["x"], "expected integers"), ([1.5], "expected integers"):
        status, said = exporting.predict(ids)
        assert (status, words in said["error"]) == (400, True)

    packed = gzip.compress(b" " * 2000 + b'{"inputs": {"id": [1]}}')
    small = gzip.compress(b'{"inputs": {"id": [1]}}')
    for content, status in ((packed, 413), (small[:-9], 400), (b"x", 400), (small, 200)):
        said = exporting.ask("POST", "/v1/predict", content, **{"Content-Encoding": "gzip"})
        assert said[0] == status
    good = gzip.compress(b'{"inputs": ') + gzip.compress(b'{"id": [1]}}')
    assert exporting.ask("POST", "/v1/predict", good, **{"Content-Encoding": "gzip"})[0] == 200
    assert exporting.ask("POST", "/v1/predict", good, **{"Content-Encoding": "br"})[0] == 400
    for ids, record in ([1, 2, -1], 2), ([1, 500], 1), ([-1, 500, 1], 0), ([1, 2, -1, 500], 2):
        status, said = exporting.predict(ids)
        assert (status, f"record {record}: " in said["error"]) == (400, True)


HEAD = b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


@pytest.mark.parametrize("said", [b"", HEAD % 20 + b"{"])
@pytest.mark.parametrize("limits", [RequestLimits(connections=3)])
def test_who_asks_has_the_place_of_who_does_not(exporting, limits, said, monkeypatch):
    monkeypatch.setattr("elasticdl.packages.serving.places._PATIENCE_SECONDS", 0.0)
    exporting.export()
    exporting.wait_for_version(1)
    address = ("127.0.0.1", exporting.server.port)
    with contextlib.ExitStack() as held:
        silent = [held.enter_context(socket.create_connection(address, 30)) for _ in range(4)]
        for connection in silent:
            with contextlib.suppress(OSError):
                connection.sendall(said)

        assert exporting.predict([3])[0] == 200


@pytest.mark.parametrize("limits", [RequestLimits(request_bytes=1 << 20, bytes_in_flight=1 << 20)])
def test_bodies_that_do_not_end_make_room(exporting, limits, monkeypatch):
    exporting.export()
    exporting.wait_for_version(1)
    address, places = ("127.0.0.1", exporting.server.port), exporting.server._places
    large = json.dumps({"inputs": {"id": [1] * 200_000}})
    with socket.create_connection(address, timeout=30) as slow:
        slow.sendall(HEAD % (1 << 20) + b" " * 1_000_000)
        exporting.wait_for(lambda: places.num_bytes > 900_000)

        assert exporting.predict([3])[0] == 200  # a small one has room
        monkeypatch.setattr("elasticdl.packages.serving.places._PATIENCE_SECONDS", 1e9)
        assert exporting.ask("POST", "/v1/predict", large)[0] == 503
        monkeypatch.setattr("elasticdl.packages.serving.places._PATIENCE_SECONDS", 0.0)
        assert exporting.ask("POST", "/v1/predict", large)[0] == 413  # too many records
        answer = slow.recv(1000)
        assert b" 503 " in answer
        assert b"Retry-After: 1" in answer
    exporting.wait_for(lambda: not places.num_bytes)


@pytest.mark.parametrize("limits", [RequestLimits(request_bytes=1000)])
def test_who_asks_before_the_body_is_told_to_go_on_or_that_it_is_too_large(exporting, limits):
    exporting.export()
    exporting.wait_for_version(1)
    body = json.dumps({"inputs": {"id": [3]}}).encode()
    head = HEAD.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n")
    with socket.create_connection(("127.0.0.1", exporting.server.port), timeout=30) as connection:
        connection.sendall(head % len(body))
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
    with socket.create_connection(("127.0.0.1", exporting.server.port), timeout=30) as connection:
        connection.sendall(head % 1001)
        assert connection.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_requests_before_the_answer_to_the_first_are_not_kept(exporting, monkeypatch):
    exporting.export()
    exporting.wait_for_version(1)
    goes_on, ids = threading.Event(), Program.ids
    monkeypatch.setattr(Program, "ids", lambda *given: goes_on.wait(30) and ids(*given))
    body, more = b'{"inputs": [3]}', b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 40
    with socket.create_connection(("127.0.0.1", exporting.server.port), timeout=30) as connection:
        try:
            connection.sendall(HEAD % len(body) + body + more)
            exporting.wait_for(lambda: exporting.server._waiting)
            (first,) = exporting.server._busy
            assert len(first._messages) < 5  # of 40
        finally:
            goes_on.set()
        answers = b""
        while answers.count(b"HTTP/1.1 200 ") < 41:
            answer = connection.recv(1 << 16)
            assert answer, answers
            answers += answer


def test_clients_that_leave_or_speak_no_http_fill_no_log(exporting, caplog):
    exporting.export()
    exporting.wait_for_version(1)
    for said in [HEAD % 1000 + b"{", b"GET / HTTP/9\r\n\r\n", b"POST /v1/predict HT\r\n"] * 5:
        with socket.create_connection(("127.0.0.1", exporting.server.port), 30) as connection:
            connection.sendall(said)
    exporting.wait_for(lambda: not exporting.server._busy)
    assert exporting.predict([3])[0] == 200
    assert len([each for each in caplog.records if each.name.startswith("elasticdl")]) <= 1


@pytest.mark.parametrize("said", [b"", b"POST /v1/predict HTTP/1.1\r\nHost"])
def test_who_connects_and_does_not_ask_is_hung_up_on(exporting, monkeypatch, said):
    monkeypatch.setattr("elasticdl.packages.serving.server._QUIET_SECONDS", 0.5)
    monkeypatch.setattr("elasticdl.packages.serving.server._LOOK_SECONDS", 0.05)
    began = time.monotonic()  # the server counts from the connection on
    with socket.create_connection(("127.0.0.1", exporting.server.port), timeout=30) as connection:
        connection.sendall(said)
        assert connection.recv(1) == b""
        assert time.monotonic() - began >= 0.4
    assert exporting.ask("GET", "/healthz")[0] == 503  # nothing is served yet


def test_a_request_whose_body_does_not_come_is_answered_so(exporting, monkeypatch):
    monkeypatch.setattr("elasticdl.packages.serving.server._BODY_SECONDS", 0.1)
    exporting.export()
    exporting.wait_for_version(1)
    with socket.create_connection(("127.0.0.1", exporting.server.port), timeout=30) as connection:
        connection.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        assert b" 408 " in connection.recv(100)
    # Nothing was scored, so the time of the client is no time of the server.
    assert b"elasticdl_serve_request_seconds_count 0.0" in exporting.ask("GET", "/metrics")[1]


@pytest.mark.parametrize("seconds", [0.0, 100.0])
def test_a_transfer_is_ended_for_another_also_as_its_time_is_over(seconds):
    ended = []

    async def another(limit):
        # This task has its turn between the end of the time and the task that hears of it.
        while not limit.expired() and seconds == 0.0:
            await asyncio.sleep(0.0)
        end_at_once(limit)
        ended.append(seconds)

    async def run():
        async with asyncio.timeout(None) as limit:
            task = asyncio.create_task(another(limit))
            limit.reschedule(asyncio.get_running_loop().time() + seconds)
            await asyncio.Event().wait()
        await task

    with pytest.raises(TimeoutError):
        asyncio.run(run())

    assert ended == [seconds]


def test_a_server_that_is_asked_to_end_waits_for_the_version_that_is_loaded():
    released, ended = threading.Event(), []

    class Loading:
        def next(self, *given):
            os.kill(os.getpid(), signal.SIGTERM)
            released.wait(30)
            ended.append("its files are needed no more")

    # The scratch folder is removed after `serve`, so the load must be over by then.
    timer = threading.Timer(1.0, released.set)
    try:
        serve(Server(Loading()), "127.0.0.1", 0, timer.start)
        assert ended
    finally:
        released.set()
        timer.join()


def test_an_error_that_stays_is_logged_once(monkeypatch, caplog):
    monkeypatch.setattr("elasticdl.packages.serving.server._REFUSED_SECONDS", 0.0)

    class Broken:
        num_looks = 0

        def next(self, *given):
            self.num_looks += 1
            if self.num_looks == 4:
                os.kill(os.getpid(), signal.SIGTERM)
            raise TypeError("of a library")

    serve(Server(Broken(), poll_seconds=0.01), "127.0.0.1", 0, lambda: None)

    assert [each.exc_info[0] for each in caplog.records if each.exc_info] == [TypeError]


def test_a_password_in_the_place_of_the_export_is_told_to_nobody():
    told = []
    server = Server(None, tell=told.append)
    server._refuse(ExportError("https://me:swordfish@host/exports?token=abc: cannot be read"))
    for words in (*told, server._health().text):
        assert "https://me:***@host/exports?token=***" in words
        assert "cannot be read" in words


def test_an_address_of_ipv6_is_told_as_browsers_take_it(monkeypatch):
    monkeypatch.setattr("elasticdl.packages.serving.server.serve", lambda *given: given[-1]())
    told = CliRunner().invoke(serve_command, ["exports", "--host=::1"])
    assert told.output == "listens at http://[::1]:0\n"


def test_an_address_that_is_empty_is_not_that_of_everybody():
    told = CliRunner().invoke(serve_command, ["exports", "--host="])
    assert (told.exit_code, "--host=: expected an address" in told.output) == (2, True)


@pytest.mark.parametrize("command", [serve_command, exports_command])
def test_a_model_of_the_jobs_end_is_refused(tmp_path, monkeypatch, command):
    monkeypatch.setattr("elasticdl.packages.serving.server.serve", lambda *given: None)
    (tmp_path / "saved_model.pb").touch()
    for place, found in (
        (tmp_path, "a model of --output"),
        (tmp_path / "saved_model.pb", "a file"),
    ):
        told = CliRunner().invoke(command, [str(place)]).exception
        assert f"expected the folder of --export_dir of a training job, found {found}" in str(told)

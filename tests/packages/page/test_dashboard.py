"""The page's server: who may ask, what is answered, and what it costs whoever puts events."""

import asyncio
import gzip
import http.client
import json
import socket
import time
import urllib.request
from functools import partialmethod
from types import SimpleNamespace

import pytest

from elasticdl.errors import ConfigError
from elasticdl.packages.page.dashboard import Dashboard
from elasticdl.packages.page.job_page import ServedPage
from elasticdl.packages.page.token_server import TokenServer, page_token
from elasticdl.runtime import process

pytest.importorskip("aiohttp", reason="the page needs elasticdl-train[dashboard]")
pytest.importorskip("prometheus_client", reason="the page needs elasticdl-train[dashboard]")

TOKEN = page_token(b"secret")
PATHS = ("/", "/board", "/metrics", "/main.js", "/nothing", "/../etc/passwd", "/?token=wrong")


def fact(text, **fields):
    names = {"time": time.time(), "role": "master", "index": 0, "event": "phase", "text": text}
    return {**names, "phase": "training", **fields}


@pytest.fixture
def page():
    page = Dashboard(TOKEN, {"model": {"model_def": "a.b"}}, past=lambda: [])
    page.start(0)
    yield page
    page.close()


def ask(page, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=100)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    if answer.headers.get("Content-Encoding") == "gzip":
        body = gzip.decompress(body)
    return answer, body


def with_token(page, path, **headers):
    return ask(page, path, Authorization=f"Bearer {TOKEN}", **headers)


def test_without_the_token_nothing_is_answered(page):
    asked = []
    page._give_board = asked.append
    for path in PATHS:
        for headers in ({}, {"Authorization": "Bearer x"}, {"Cookie": "elasticdl-page=x"}):
            answer, body = ask(page, path, **headers)
            assert answer.status == 401, path
            assert b"html" not in body
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(page, "/board", method)[0].status == 401
    assert not asked


def test_address_with_the_token_gives_a_cookie_that_scripts_cannot_read(page):
    answer, _ = ask(page, f"/?token={TOKEN}")
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    cookie = answer.headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))
    answer, body = ask(page, "/", Cookie=cookie.split(";")[0])
    assert answer.status == 200
    assert b"What each process did" in body
    assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
    assert answer.headers["Referrer-Policy"] == "no-referrer"


def test_token_of_the_page_is_not_that_of_the_job():
    assert page_token(b"secret") == TOKEN != page_token(b"other")
    assert b"secret".hex() not in TOKEN


def test_board_has_what_was_put_and_then_only_what_is_new(page):
    page.put(fact("one"))
    first = json.loads(with_token(page, "/board")[1])
    assert [f["text"] for f in first["facts"]] == ["one"]
    assert first["config"] == {"model": {"model_def": "a.b"}}
    page.put(fact("two"))
    path = f"/board?since={first['version']}&generation={first['generation']}"
    second = json.loads(with_token(page, path)[1])
    assert [f["text"] for f in second["facts"]] == ["two"]
    assert not second["whole"]
    whole = json.loads(with_token(page, "/board?since=x&generation=-9")[1])
    assert len(whole["facts"]) == 2


def test_page_that_knew_another_master_is_given_all(page):
    page.put(fact("one"))
    first = json.loads(with_token(page, "/board")[1])
    seen = f"since={first['version']}&generation={first['generation']}"
    known = json.loads(with_token(page, f"/board?log={first['log']}&{seen}")[1])
    other = json.loads(with_token(page, f"/board?log=other&{seen}")[1])
    assert (known["whole"], known["facts"]) == (False, [])
    assert other["whole"]
    assert [f["text"] for f in other["facts"]] == ["one"]


def test_events_before_this_master_come_first():
    past = [fact("long ago", time=time.time() - 100)]
    page = Dashboard(TOKEN, {}, past=lambda: past)
    page.put(fact("now"))
    page.start(0)
    try:
        found = json.loads(with_token(page, "/board")[1])
    finally:
        page.close()
    assert [f["text"] for f in found["facts"]] == ["long ago", "now"]


def test_past_that_cannot_be_read_does_not_keep_the_page_from_what_comes():
    def past():
        yield fact("long ago", time=time.time() - 100)
        raise ValueError("torn")

    page = Dashboard(TOKEN, {}, past=past)
    page.put(fact("now"))
    page.start(0)
    try:
        found = json.loads(with_token(page, "/board")[1])
    finally:
        page.close()
    assert [f["text"] for f in found["facts"]] == ["long ago", "now"]


def test_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        page = Dashboard(TOKEN, {})
        with pytest.raises(ConfigError, match=f"--dashboard_port={port}: cannot listen"):
            page.start(port, patience_seconds=0.0)


def test_a_server_that_cannot_begin_says_so_and_does_not_wait():
    def add_routes(app):
        raise MemoryError("no room for the page")

    server = TokenServer("--dashboard_port", TOKEN, add_routes)
    with pytest.raises(ConfigError, match=r"--dashboard_port=7: cannot be served: MemoryError: no"):
        server.start("127.0.0.1", 7)


def test_next_master_takes_the_port_of_the_one_before():
    first = Dashboard(TOKEN, {})
    first.start(0)
    port = first.port
    first.close()
    second = Dashboard(TOKEN, {})
    second.start(port)
    second.close()
    assert second.port == port


def test_next_master_takes_any_port_if_another_process_has_the_one_before(tmp_path, monkeypatch):
    at_once = partialmethod(Dashboard.start, patience_seconds=0.0)
    monkeypatch.setattr(Dashboard, "start", at_once)
    config = SimpleNamespace(shown=dict, launcher=SimpleNamespace(metrics=""))
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        before = {"address": f"http://127.0.0.1:{taken}"}
        (tmp_path / process.PAGE_FILE).write_text(json.dumps(before))
        page = ServedPage(tmp_path, b"secret", config)

        address = page.start(0)

        page.close()
        assert address != before["address"]
        assert json.loads((tmp_path / process.PAGE_FILE).read_text())["address"] == address
        with pytest.raises(ConfigError, match="choose another one"):
            ServedPage(tmp_path, b"secret", config).start(taken)


def test_metrics_are_those_of_the_history(page):
    page.put(fact("the job is training"))
    answer, body = with_token(page, "/metrics", Accept="application/openmetrics-text")
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    text = body.decode()
    assert 'elasticdl_events_total{event="phase"} 1.0' in text
    assert 'elasticdl_job_phase{elasticdl_job_phase="training"} 1.0' in text
    assert text.endswith("# EOF\n")


def test_counters_are_told_once_the_events_of_earlier_masters_are_read():
    past = [{**fact("again"), "time": 1.0 + number} for number in range(5_000)]
    page = Dashboard(TOKEN, {}, lambda: past)

    async def ask_meanwhile():
        reading = asyncio.ensure_future(page._add_past())
        await asyncio.sleep(0.0)
        assert not reading.done()
        answer = await page._give_metrics(SimpleNamespace(headers={}))
        return answer.body.decode()

    assert 'elasticdl_events_total{event="phase"} 5000.0' in asyncio.run(ask_meanwhile())


def test_metrics_are_given_to_who_asks_for_a_version_that_is_none(page):
    answer, body = with_token(page, "/metrics", Accept="text/plain; version=x")
    assert answer.status == 200
    assert b"elasticdl_job_age_seconds" in body


def test_a_stream_has_lag_late_records_and_its_watermark(page):
    from elasticdl.observe.kind import fields_of
    from elasticdl.observe.kinds import JobPicture

    nothing = dict.fromkeys((each.name for each in fields_of(JobPicture)), 0)
    given = {"staleness": [], "loss": None, "lag": 7, "num_late": 3, "watermark": 1.7e9}
    page.put(fact("", event="picture", **{**nothing, **given}))
    text = with_token(page, "/metrics")[1].decode()
    assert "elasticdl_stream_lag 7.0" in text
    assert "elasticdl_stream_late_total 3.0" in text
    assert "elasticdl_stream_watermark_timestamp_seconds 1.7e+09" in text


def test_a_server_for_other_hosts_gives_the_metrics_of_the_page(page):
    page.put(fact("the job is training"))
    from elasticdl.packages.page.own_metrics import JobMetrics, serving_at

    metrics = JobMetrics(page.job_metrics)
    with serving_at(metrics, "b", "127.0.0.1", 0) as port:
        asked = urllib.request.Request(
            f"http://127.0.0.1:{port}/metrics", headers={"Authorization": "Bearer b"}
        )
        with urllib.request.urlopen(asked, timeout=100) as answer:
            text = answer.read().decode()
    assert 'elasticdl_events_total{event="phase"} 1.0' in text


def test_to_put_an_event_waits_for_nobody():
    page = Dashboard(TOKEN, {})  # never started: nobody takes what is put
    began = time.thread_time()  # of this thread alone: other work of the machine does not count
    for _ in range(10_000):
        page.put({})  # to wait here would be to wait for ever
    assert time.thread_time() - began < 1.0

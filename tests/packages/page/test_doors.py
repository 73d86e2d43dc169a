"""What strangers can do to the ports of the page and of metrics: nothing."""

import contextlib
import http.client
import os
import socket
import ssl
import time

import pytest

from elasticdl.job import Label, Role, Usage
from elasticdl.runtime.credentials.authority import Authority, Identity

pytest.importorskip("aiohttp", reason="the page needs elasticdl-train[dashboard]")
pytest.importorskip("prometheus_client", reason="metrics need elasticdl-train[dashboard]")

from elasticdl.packages.page import door
from elasticdl.packages.page.dashboard import Dashboard
from elasticdl.packages.page.own_metrics import OwnMetrics, serving_at

USAGE = Usage(0.0, Label.TRAIN, {"train": 7.0}, 0.0, 0, 0, 0)
NUM_STRANGERS = 300
SECONDS = 30.0
BROKEN = ["Bearer \udcff", "Bearer \u00e9", "\x00", "Bearer", "", "Basic \udc80\udc81", "x" * 4000]


@contextlib.contextmanager
def page(tmp_path):
    served = Dashboard("t", {}, past=lambda: [])
    served.start(0)
    try:
        yield served.port, None
    finally:
        served.close()


@contextlib.contextmanager
def metrics(tmp_path):
    with serving_at(OwnMetrics(lambda: USAGE), "t", "127.0.0.1", 0) as port:
        yield port, None


@contextlib.contextmanager
def secured_metrics(tmp_path):
    files = Authority.create(tmp_path, "job").issue(tmp_path, Identity("job", Role.PS, 0), 3600)
    trust = ssl.create_default_context(cafile=files.authority)
    certificate = files.as_tuple()[1:]
    with serving_at(OwnMetrics(lambda: USAGE), "t", "127.0.0.1", 0, certificate) as port:
        yield port, trust


DOORS = pytest.mark.parametrize("door_of", [page, metrics, secured_metrics])


def ask(port, trust, sent):
    """Return the answer to one who knows the token, or says something else."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    connection.connect()
    if trust is not None:
        connection.sock = trust.wrap_socket(connection.sock, server_hostname="ps.elasticdl")
    # As a browser that sends any bytes; http.client itself would refuse some.
    words = f"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: {sent}\r\n\r\n"
    connection.sock.sendall(words.encode(errors="surrogateescape"))
    answer = http.client.HTTPResponse(connection.sock)
    answer.begin()
    answer.read()
    connection.close()
    return answer


def num_sockets():
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return found


def until(holds):
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@DOORS
def test_silent_strangers_have_few_places_and_keep_nobody_out(door_of, tmp_path):
    with contextlib.ExitStack() as stack, door_of(tmp_path) as (port, trust):
        before = num_sockets()
        for _ in range(NUM_STRANGERS):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), SECONDS))
        # Both ends are in this process.
        until(lambda: num_sockets() <= before + NUM_STRANGERS + door.MOST_UNPROVEN)
        assert ask(port, trust, "Bearer t").status == 200


@DOORS
def test_who_goes_on_slowly_goes_all_the_same(door_of, tmp_path, monkeypatch):
    *others, _ = door.Door.__init__.__defaults__
    monkeypatch.setattr(door.Door.__init__, "__defaults__", (*others, 0.3))
    with (
        door_of(tmp_path) as (port, _),
        socket.create_connection(("127.0.0.1", port), SECONDS) as slow,
    ):
        slow.sendall(b"GET / HTTP/1.1\r\n")
        until(lambda: is_cut_by(slow, b"x"))


def is_cut_by(connection, words):
    """Send a little more; return whether the other end has ended the connection."""
    try:
        connection.sendall(words)
        connection.setblocking(False)
        return connection.recv(1 << 16) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.settimeout(SECONDS)


@DOORS
@pytest.mark.parametrize("sent", BROKEN, ids=ascii)
def test_a_broken_proof_is_a_wrong_one(door_of, sent, tmp_path):
    with door_of(tmp_path) as (port, trust):
        answer = ask(port, trust, sent)
        assert answer.status in (400, 401)
        if answer.status == 401:
            assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert ask(port, trust, "Bearer t").status == 200

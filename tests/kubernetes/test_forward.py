"""The way to a pod through the API server, for who has no other."""

from __future__ import annotations

import os
import socket
from contextlib import closing

import pytest

from elasticdl.launchers.kubernetes.client import Api
from elasticdl.launchers.kubernetes.forward import Forward
from scripts.cluster.namespace import Namespace

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]

PORT = 7000
ECHO = f"""
import socket, threading

def answer(connection):
    while data := connection.recv(65536):
        connection.sendall(data)
    connection.close()

listener = socket.create_server(("", {PORT}))
print("listens", flush=True)
while True:
    threading.Thread(target=answer, args=(listener.accept()[0],)).start()
"""


@pytest.fixture
def api(namespace: Namespace, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(namespace.cluster.kubeconfig))
    return Api.connect(namespace.name)


@pytest.fixture
def echo(namespace: Namespace):
    namespace.run("echo", "python", "-c", ECHO, terminationGracePeriodSeconds=0)
    namespace.wait("echo", "Running")
    namespace.cluster.wait_for(
        namespace.path("pods", "echo"), lambda _: namespace.log("echo") == "listens\n"
    )
    return "echo"


def connect(forward):
    host, port = forward.address.split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def received(connection, count):
    found = b""
    while len(found) < count:
        piece = connection.recv(1 << 16)
        assert piece, f"ended after {len(found)} of {count} bytes"
        found += piece
    return found


def test_bytes_come_and_go_through_the_api_server(api, echo):
    payload = os.urandom(1 << 20)
    with (
        closing(Forward(api, echo, PORT)) as forward,
        closing(connect(forward)) as one,
        closing(connect(forward)) as other,
    ):
        other.sendall(b"other")
        for start in range(0, len(payload), 1 << 16):
            piece = payload[start : start + (1 << 16)]
            one.sendall(piece)
            assert received(one, len(piece)) == piece
        assert received(other, 5) == b"other"


def test_a_port_that_nobody_listens_at_ends_the_connection_and_says_so(api, echo, caplog):
    with closing(Forward(api, echo, PORT + 1)) as forward, closing(connect(forward)) as one:
        assert one.recv(1) == b""
    assert "no way to echo through the API server" in caplog.text

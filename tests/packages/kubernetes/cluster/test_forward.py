"""The way to a pod through the API server, for who has no other."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from contextlib import closing, contextmanager

import pytest

from elasticdl.packages.kubernetes.client import Api
from elasticdl.packages.kubernetes.forward import Forward
from scripts.chaos import job as counting
from tests.clusters.kubernetes.namespace import Namespace
from tests.packages.kubernetes.cluster.job import CLI, ClusterJob

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]

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


@contextmanager
def outside(cluster):
    """A network namespace that reaches the API server and no pod; gives what runs a command there.

    As a laptop does: the cluster's own addresses mean nothing to it.
    """
    network = cluster.network
    sandbox = subprocess.Popen(
        ["unshare", "--net", "--", "sh", "-c", "echo ready; exec sleep infinity"],
        stdout=subprocess.PIPE,
    )
    try:
        assert sandbox.stdout.readline()
        here, there = f"10.{network.x}.254.1", f"10.{network.x}.254.2"
        inside = ["nsenter", "--target", str(sandbox.pid), "--net", "--"]
        name = f"out{sandbox.pid}"
        for command in (
            f"ip link add {name} type veth peer name eth0 netns {sandbox.pid}",
            f"ip addr add {here}/30 dev {name}",
            f"ip link set {name} up",
        ):
            subprocess.run(command.split(), check=True)
        for command in (
            f"ip addr add {there}/30 dev eth0",
            "ip link set lo up",
            "ip link set eth0 up",
            f"ip route add {network.host}/32 via {here}",
        ):
            subprocess.run([*inside, *command.split()], check=True)
        environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
        yield lambda *words: subprocess.run(
            [*inside, *CLI, *words],
            env=environment,
            cwd=counting.ROOT,
            capture_output=True,
            text=True,
            timeout=120,
        )
    finally:
        sandbox.kill()  # its wires go with it
        sandbox.wait()
        sandbox.stdout.close()


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


def test_status_and_attach_reach_a_job_from_outside_of_the_cluster(namespace, tmp_path):
    job = ClusterJob(namespace, tmp_path)
    job.epochs = 30  # so that commands, which take a second to begin, meet it
    try:
        job.start()
        job.until_records(4_000)
        with outside(namespace.cluster) as elasticdl:
            name = f"{namespace.name}/{job.name}"
            pod = job.pods("master")[0]["status"]["podIP"]
            shown = elasticdl("status", name, "--json")
            assert shown.returncode == 0, shown.stderr
            assert json.loads(shown.stdout)["status"] == "running"
            attached = elasticdl("attach", name)
            assert attached.returncode == 0, attached.stderr
            assert "records" in attached.stdout
            assert pod not in attached.stdout
        assert job.end() == 0, "".join(job.lines)
        assert job.is_exact()
    finally:
        job.close()

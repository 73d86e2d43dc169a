"""Nodes of the test cluster are lost and come back; the control plane is killed and started."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.clusters.kubernetes.api import Object
from tests.clusters.kubernetes.cluster import Cluster, NodeProcess
from tests.clusters.kubernetes.namespace import HELD, Namespace

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]  # the first test starts the cluster

REPOSITORY = Path(__file__).parents[4]
IN_VAIN_SECONDS = 3  # in which a pod that still runs would write
BEATS = "while true; do date +%s%N > /host/beat; sleep 0.05; done"


def on(node: NodeProcess, folder: Path) -> dict:
    """Return what puts a pod on a node, with a folder that a test can look into."""
    folder.chmod(0o777)
    return {
        "nodeSelector": {"kubernetes.io/hostname": node.name},
        "volumes": [{"name": "host", "hostPath": {"path": str(folder)}}],
        "container": {"volumeMounts": [{"name": "host", "mountPath": "/host"}]},
        "terminationGracePeriodSeconds": 1,
    }


def wait_for_beat(folder: Path, seconds: float = 60) -> bool:
    """Return whether the pod writes a new time within some seconds."""
    deadline = time.monotonic() + seconds
    before = read(folder / "beat")
    while time.monotonic() < deadline:
        if read(folder / "beat") not in ("", before):
            return True
        time.sleep(0.02)
    return False


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def is_deleted(found: Object) -> bool:
    return "deletionTimestamp" in found.get("metadata", {})


def test_pods_of_a_frozen_node_live_on_and_are_ended_when_it_is_back(
    namespace: Namespace, node: NodeProcess, tmp_path: Path
):
    namespace.run("one", "sh", "-c", BEATS, **on(node, tmp_path))
    namespace.wait("one", "Running")

    node.freeze()

    node.wait_until(ready=False)
    namespace.cluster.wait_for(namespace.path("pods", "one"), is_deleted)
    assert wait_for_beat(tmp_path)  # a zombie: deleted, and alive
    node.thaw()
    namespace.wait_gone("one")
    assert not wait_for_beat(tmp_path, IN_VAIN_SECONDS)


def test_pod_deleted_by_force_on_a_frozen_node_is_ended_when_it_is_back(
    namespace: Namespace, node: NodeProcess, tmp_path: Path
):
    namespace.run("one", "sh", "-c", BEATS, **on(node, tmp_path))
    namespace.wait("one", "Running")
    node.freeze()
    namespace.delete("one", grace_seconds=0)
    namespace.wait_gone("one")
    assert wait_for_beat(tmp_path)

    node.thaw()

    deadline = time.monotonic() + 120
    while wait_for_beat(tmp_path, IN_VAIN_SECONDS):
        assert time.monotonic() < deadline, "the pod still runs"


def test_connections_to_a_node_that_is_cut_off_are_silent_until_it_is_mended(
    namespace: Namespace, node: NodeProcess, tmp_path: Path
):
    serves = """
import socket
listener = socket.create_server(("0.0.0.0", 7000))
print("listens", flush=True)
connection, _ = listener.accept()
while data := connection.recv(100):
    connection.sendall(data)
"""
    namespace.run("one", "python", "-c", serves, **on(node, tmp_path))
    address = namespace.wait("one", "Running")["status"]["podIP"]
    assert namespace.log("one", follow="true", limitBytes="8") == "listens\n"
    with socket.create_connection((address, 7000), timeout=30) as connection:
        connection.sendall(b"before")
        assert connection.recv(100) == b"before"

        node.cut()

        connection.settimeout(1)
        connection.sendall(b"during")
        with pytest.raises(TimeoutError):
            connection.recv(100)
        node.mend()
        connection.settimeout(30)
        assert connection.recv(100) == b"during"


def test_crash_of_a_node_ends_its_pods_which_have_failed_when_it_is_back(
    cluster: Cluster, namespace: Namespace, tmp_path: Path
):
    node = cluster.nodes[-1]
    namespace.run("one", "sh", "-c", BEATS, **on(node, tmp_path), metadata={"finalizers": [HELD]})
    namespace.wait("one", "Running")
    assert wait_for_beat(tmp_path)

    node.crash()

    assert not wait_for_beat(tmp_path, IN_VAIN_SECONDS)
    node.start()
    found = namespace.wait("one", "Failed")
    reason = found["status"]["containerStatuses"][0]["state"]["terminated"]["reason"]
    assert reason == "ContainerStatusUnknown"


def test_pods_do_not_notice_that_the_api_server_is_away(
    cluster: Cluster, namespace: Namespace, tmp_path: Path
):
    waits = "while test ! -e /host/end; do sleep 0.05; done; exit 7"
    namespace.run("one", "sh", "-c", waits, **on(cluster.nodes[0], tmp_path))
    namespace.wait("one", "Running")

    cluster.control_plane.api_server.kill()
    (tmp_path / "end").touch()
    cluster.control_plane.api_server.start()
    cluster.control_plane.wait_for_api_server()

    found = namespace.wait("one", "Failed")
    assert found["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 7


def test_nothing_is_left_of_a_cluster_whose_process_was_killed(cluster: Cluster):
    other = subprocess.Popen(
        [sys.executable, "-m", "tests.clusters.kubernetes", "--nodes", "1"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    try:
        assert other.stdout
        with other.stdout:
            kubeconfig = Path(other.stdout.readline().removeprefix("export KUBECONFIG=").strip())
        access = json.loads(kubeconfig.read_text())["clusters"][0]["cluster"]
        address = access["server"].removeprefix("https://").partition(":")[0]
        assert all(left_of(kubeconfig.parent, address).values())
    finally:
        other.kill()
        other.wait()

    deadline = time.monotonic() + 120
    while any(left_of(kubeconfig.parent, address).values()):
        assert time.monotonic() < deadline, left_of(kubeconfig.parent, address)
        time.sleep(0.05)


def left_of(folder: Path, address: str) -> dict:
    addresses = subprocess.run(["ip", "address"], check=True, capture_output=True, text=True)
    return {
        "folder": folder.exists(),
        "address": f" {address}/" in addresses.stdout,
        "processes": processes_of(str(folder)),
    }


def processes_of(folder: str) -> list:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if folder.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found

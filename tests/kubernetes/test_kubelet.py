"""A real kubelet with containerd says the same of a pod as a node of our own."""

from __future__ import annotations

import pytest

from scripts.cluster import kubelet
from scripts.cluster.api import Object
from scripts.cluster.cluster import Cluster
from scripts.cluster.namespace import HELD, Namespace

pytestmark = [pytest.mark.kubelet, pytest.mark.timeout(300)]  # the first test starts the cluster

SIGTERM_HEEDED = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("ready", flush=True)
while True:
    signal.pause()
"""
OVER_ITS_LIMIT = "bytearray(300 << 20)"
NODES = ("node-0", kubelet.NAME)


@pytest.fixture(scope="module", autouse=True)
def real_node(cluster: Cluster):
    lacks = kubelet.missing()
    if lacks:
        pytest.skip(lacks)
    kubelet.start(cluster)


def run(namespace: Namespace, node: str, *command: str, **container) -> str:
    """Run a command on a node; return the pod's name."""
    name = f"on-{node}"
    spec: dict = {"nodeName": node, "metadata": {"finalizers": [HELD]}}
    container = {"image": kubelet.IMAGE, **container}
    if node == kubelet.NAME:
        programs = kubelet.host_programs()
        spec |= {"hostNetwork": True, "volumes": programs["volumes"]}
        container |= {key: programs[key] for key in ("volumeMounts", "env")}
    namespace.run(name, *command, container=container, **spec)
    return name


def is_over(found: Object) -> str:
    """Return the phase of a pod whose network is gone, or an empty string."""
    status = found.get("status", {})
    conditions = {each["type"]: each["status"] for each in status.get("conditions", [])}
    return status["phase"] if conditions.get("PodReadyToStartContainers") == "False" else ""


def told(namespace: Namespace, name: str, *phases: str) -> dict:
    """Return what the status of a pod says at its end, without times, addresses and ids."""
    found = namespace.cluster.wait_for(
        namespace.path("pods", name), lambda found: is_over(found) in phases
    )
    status = found["status"]
    (container,) = status["containerStatuses"]
    ended = container["state"]["terminated"]
    conditions = {each["type"]: each["status"] for each in status["conditions"]}
    conditions.pop("PodScheduled", None)
    return {
        "phase": status["phase"],
        "ended": {key: ended.get(key) for key in ("exitCode", "reason", "message")},
        "restarts": container["restartCount"],
        "ready": container["ready"],
        "deleted": "deletionTimestamp" in found["metadata"],
        "conditions": conditions,
    }


def test_exit_codes_and_last_words_are_told_alike(namespace: Namespace):
    command = ("sh", "-c", "echo out; echo err >&2; exit 3")
    policy = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    names = [run(namespace, node, *command, **policy) for node in NODES]

    ours, theirs = [told(namespace, name, "Failed") for name in names]

    assert ours == theirs
    assert namespace.log(names[0]) == namespace.log(names[1]) == "out\nerr\n"


def test_success_is_told_alike(namespace: Namespace):
    names = [run(namespace, node, "true") for node in NODES]

    ours, theirs = [told(namespace, name, "Succeeded") for name in names]

    assert ours == theirs


def test_want_of_memory_is_told_alike(namespace: Namespace):
    limits = {"resources": {"limits": {"memory": "100Mi"}}}
    names = [run(namespace, node, "python", "-c", OVER_ITS_LIMIT, **limits) for node in NODES]

    ours, theirs = [told(namespace, name, "Failed") for name in names]

    assert ours == theirs
    assert theirs["ended"]["reason"] == "OOMKilled"


@pytest.mark.parametrize("command", [("python", "-c", SIGTERM_HEEDED), ("sleep", "1000")])
def test_deletion_is_told_alike(namespace: Namespace, command: tuple):
    names = [run(namespace, node, *command) for node in NODES]
    for name in names:
        namespace.wait(name, "Running")
        if command[0] == "python":
            assert namespace.log(name, follow="true", limitBytes="6") == "ready\n"
        namespace.delete(name, grace_seconds=2)

    ours, theirs = [told(namespace, name, "Succeeded", "Failed") for name in names]

    assert ours == theirs

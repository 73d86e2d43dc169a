"""A real kubelet with containerd says the same of a pod as a node of our own."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from scripts.chaos import job as counting
from tests.clusters.etcd import free_ports
from tests.clusters.kubernetes import kubelet
from tests.clusters.kubernetes.api import Object
from tests.clusters.kubernetes.cluster import Cluster
from tests.clusters.kubernetes.namespace import HELD, Namespace
from tests.packages.kubernetes.cluster.job import ClusterJob

pytestmark = [pytest.mark.kubelet, pytest.mark.timeout(600)]  # the first test starts the cluster

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


ON_KUBELET = """
import json

PROGRAMS, NODE, ADDRESS, NAMES, VARIABLES = json.loads({given!r})


def with_service(service):
    service.spec.cluster_ip = ADDRESS
    return service


def with_pod(pod):
    spec, (container,) = pod.spec, pod.spec.containers
    spec.node_selector = {{"kubernetes.io/hostname": NODE}}
    spec.host_network = True  # there is no network plugin
    spec.host_aliases = [{{"ip": ADDRESS, "hostnames": NAMES}}]  # nor a name server
    spec.volumes += PROGRAMS["volumes"]
    container.volume_mounts += PROGRAMS["volumeMounts"]
    container.env += PROGRAMS["env"] + VARIABLES
    return pod
"""


def test_a_job_on_a_real_kubelet_loses_a_worker_and_is_exact(namespace: Namespace, tmp_path: Path):
    network = namespace.cluster.network
    master = f"counting.{namespace.name}.svc"
    server = urlsplit(namespace.cluster.control_plane.access.server)
    variables = [
        {"name": "KUBERNETES_SERVICE_HOST", "value": server.hostname},
        {"name": "KUBERNETES_SERVICE_PORT", "value": str(server.port)},
    ]
    address = f"10.{network.x}.190.7"
    given = [kubelet.host_programs(), kubelet.NAME, address, [master], variables]
    spec = tmp_path / "on_kubelet.py"
    spec.write_text(ON_KUBELET.format(given=json.dumps(given)))
    small = "cpu=300m,memory=512Mi"  # a real limit
    job = ClusterJob(namespace, tmp_path)
    try:
        job.start_staged(
            seconds=0.01,
            image_name=kubelet.IMAGE,
            model_zoo=counting.ROOT / "model_zoo",
            cluster_spec=spec,
            master_port=free_ports(network.host)[0],
            **{f"{role}_resource_request": small for role in ("master", "worker", "ps")},
        )
        job.until_records(4_000)
        job.namespace.delete(next(iter(job.running("worker"))))
        assert job.end() == 0, "".join(job.lines)
        assert job.is_exact(), "".join(job.lines)
        assert {pod["spec"]["nodeName"] for pod in job.pods("worker")} == {kubelet.NAME}
    finally:
        job.close()

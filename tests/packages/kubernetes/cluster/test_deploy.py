"""What is in deploy/ applies to a real API server, and does there what it says."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clusters.kubernetes.api import ApiError
from tests.clusters.kubernetes.namespace import Namespace

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not there"),
]

DEPLOY = Path(__file__).resolve().parents[4] / "deploy"


def apply(namespace, folder):
    """Run `kubectl apply -k`; return a line for each object: its name, and what became of it."""
    done = subprocess.run(
        [
            *("kubectl", f"--kubeconfig={namespace.cluster.kubeconfig}", "apply", "-k"),
            *(str(folder), f"--namespace={namespace.name}"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split(" ") for line in done.stdout.splitlines())


def test_a_namespace_is_made_ready_twice_to_the_same_end(namespace: Namespace):
    first = apply(namespace, DEPLOY)
    assert set(first.values()) == {"created"}
    assert "networkpolicy.networking.k8s.io/elasticdl" in first
    assert set(apply(namespace, DEPLOY).values()) <= {"unchanged", "configured"}


def test_of_two_ps_replicas_one_may_be_evicted(namespace: Namespace, tmp_path):
    copy = tmp_path / "job"
    shutil.copytree(DEPLOY / "job", copy)
    settings = copy / "job.yaml"
    settings.write_text(settings.read_text().replace("name: JOB", "name: clicks"))
    budget = namespace.path("poddisruptionbudgets", "clicks-ps", group="apis/policy/v1")
    for index in range(2):
        labels = {"elasticdl-job-name": "clicks", "elasticdl-replica-type": "ps"}
        namespace.run(f"ps-{index}", "sleep", "600", metadata={"labels": labels})
        namespace.wait(f"ps-{index}", "Running")
    assert set(apply(namespace, copy).values()) == {"created"}
    namespace.cluster.wait_for(
        budget, lambda found: found.get("status", {}).get("disruptionsAllowed") == 1
    )

    evict(namespace, "ps-0")
    namespace.wait_gone("ps-0")
    with pytest.raises(ApiError, match="disruption budget"):
        evict(namespace, "ps-1")


def evict(namespace, name):
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace.name},
    }
    namespace.cluster.api.create(namespace.path("pods", name, "eviction"), body)

"""The scheduler and the controllers, which are the real ones, find nodes that behave."""

from __future__ import annotations

import pytest

from tests.clusters.kubernetes.api import Object
from tests.clusters.kubernetes.namespace import HELD, Namespace

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]  # the first test starts the cluster


def needs(cpus: int) -> dict:
    return {"resources": {"requests": {"cpu": str(cpus)}}}


def conditions(found: Object) -> dict:
    return {each["type"]: each for each in found.get("status", {}).get("conditions", [])}


@pytest.fixture
def priorities(namespace: Namespace):
    names = {}
    for word, value in (("low", 1), ("high", 1000)):
        names[word] = f"{word}-{namespace.name}"
        body = {"metadata": {"name": names[word]}, "value": value}
        namespace.cluster.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", body)
    return names


def test_pod_that_fits_nowhere_waits_and_is_told_why(namespace: Namespace):
    namespace.run("one", "true", container=needs(9))

    found = namespace.cluster.wait_for(
        namespace.path("pods", "one"), lambda found: "PodScheduled" in conditions(found)
    )

    scheduled = conditions(found)["PodScheduled"]
    assert scheduled["reason"] == "Unschedulable"
    assert "Insufficient cpu" in scheduled["message"]


def test_pod_of_low_priority_makes_room_for_one_of_high_priority(namespace: Namespace, priorities):
    for number in range(3):
        namespace.run(
            f"low-{number}",
            "sleep",
            "1000",
            container=needs(8),
            priorityClassName=priorities["low"],
            terminationGracePeriodSeconds=1,
            metadata={"finalizers": [HELD]},
        )
        namespace.wait(f"low-{number}", "Running")

    namespace.run("high", "sleep", "1000", container=needs(8), priorityClassName=priorities["high"])

    namespace.wait("high", "Running")
    low = [namespace.wait(f"low-{number}", "Running", "Failed") for number in range(3)]
    preempted = [found for found in low if "DisruptionTarget" in conditions(found)]
    assert len(preempted) == 1
    assert conditions(preempted[0])["DisruptionTarget"]["reason"] == "PreemptionByScheduler"
    assert preempted[0]["status"]["phase"] == "Failed"


def test_delete_of_the_owner_removes_what_it_owns(namespace: Namespace):
    owner = namespace.create("configmaps", {"metadata": {"name": "owner"}})
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner"}
    owned = {"ownerReferences": [{**reference, "uid": owner["metadata"]["uid"]}]}
    namespace.run("one", "sleep", "1000", metadata=owned, terminationGracePeriodSeconds=1)
    namespace.wait("one", "Running")

    namespace.cluster.api.delete(namespace.path("configmaps", "owner"))

    namespace.wait_gone("one")


def test_job_makes_another_pod_when_its_pod_is_deleted(namespace: Namespace):
    container = {"name": "main", "image": "i", "command": ["sleep", "1000"]}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    template["spec"]["terminationGracePeriodSeconds"] = 1
    namespace.create(
        "jobs", {"metadata": {"name": "job"}, "spec": {"template": template}}, "apis/batch/v1"
    )
    first = _running(namespace, set())

    namespace.delete(first["metadata"]["name"])

    second = _running(namespace, {first["metadata"]["uid"]})
    assert second["metadata"]["ownerReferences"][0]["kind"] == "Job"


def _running(namespace: Namespace, but: set) -> Object:
    def others(listed: Object) -> list:
        return [
            pod
            for pod in listed["items"]
            if pod["metadata"]["uid"] not in but and pod["status"]["phase"] == "Running"
        ]

    return others(
        namespace.cluster.wait_for(namespace.path("pods"), lambda all: bool(others(all)))
    )[0]

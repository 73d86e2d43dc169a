"""What the status of a pod says about its process."""

import pytest

from elasticdl.launchers.base import ExitReason
from elasticdl.packages.kubernetes.observe import (
    PodEnded,
    PodRunning,
    Waiting,
    memory_limit,
    observe,
)

DELETED = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


def pod(phase="Running", state=None, conditions=(), metadata=None, **status):
    statuses = [{"name": "sidecar", "state": {"running": {}}}]
    if state is not None:
        statuses.append({"name": "elasticdl", "state": state})
    return {
        "metadata": {"name": "a"} | (metadata or {}),
        "spec": {
            "nodeName": "node-1",
            "containers": [
                {"name": "sidecar"},
                {"name": "elasticdl", "resources": {"limits": {"memory": "1Gi"}}},
            ],
        },
        "status": {
            "phase": phase,
            "containerStatuses": statuses,
            "conditions": list(conditions),
            **status,
        },
    }


def terminated(code, reason="Error", message=""):
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


def disrupted(reason, message="words"):
    return {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}


TAKEN_BACK = disrupted("WorkloadEvicted") | {"type": "TerminationTarget"}
GATED = pod(
    "Pending",
    conditions=[{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}],
    metadata={"labels": {"kueue.x-k8s.io/queue-name": "team"}},
)
GATED["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
NOT_READY = {"type": "Ready", "status": "False"}
READY = {"type": "Ready", "status": "True"}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (pod("Succeeded", terminated(0, "Completed")), PodEnded(ExitReason.FINISHED, 0)),
        (pod("Failed", terminated(1, message="x")), PodEnded(ExitReason.FAILED, 1, "", "x")),
        (pod("Failed", terminated(70)), PodEnded(ExitReason.FAILED, 70)),
        (pod("Failed", terminated(139)), PodEnded(ExitReason.FAILED, 139)),  # 128 + SIGSEGV
        (pod("Failed", terminated(137)), PodEnded(ExitReason.KILLED, 137)),
        (pod("Failed", terminated(143)), PodEnded(ExitReason.KILLED, 143)),
        (
            pod("Failed", terminated(137, "OOMKilled")),
            PodEnded(ExitReason.OUT_OF_MEMORY, 137, "its limit was 1Gi"),
        ),
        (  # the pod runs on for its other containers
            pod("Running", terminated(137, "OOMKilled")),
            PodEnded(ExitReason.OUT_OF_MEMORY, 137, "its limit was 1Gi"),
        ),
        (
            pod("Failed", terminated(128, "StartError", "exec: no such file")),
            PodEnded(ExitReason.FAILED, 128, "exec: no such file"),
        ),
        (  # it ended in order within its grace, which is no end of its work
            pod("Succeeded", terminated(0), [disrupted("PreemptionByScheduler")], DELETED),
            PodEnded(ExitReason.PREEMPTED, 0, "preempted: words"),
        ),
        (
            pod("Failed", terminated(137), [disrupted("PreemptionByScheduler")], DELETED),
            PodEnded(ExitReason.PREEMPTED, 137, "preempted: words"),
        ),
        (
            pod("Succeeded", terminated(0), metadata=DELETED),
            PodEnded(ExitReason.PREEMPTED, 0, "its pod was deleted"),
        ),
        (
            pod("Failed", terminated(143), [disrupted("EvictionByEvictionAPI")], DELETED),
            PodEnded(ExitReason.PREEMPTED, 143, "evicted: words"),
        ),
        (  # by Kueue
            pod("Failed", terminated(143), [TAKEN_BACK], DELETED),
            PodEnded(ExitReason.PREEMPTED, 143, "taken away: words"),
        ),
        (
            pod("Failed", terminated(137), reason="Evicted", message="low on memory"),
            PodEnded(ExitReason.PREEMPTED, 137, "evicted: low on memory"),
        ),
        (
            pod("Failed", None, reason="OutOfcpu", message="no cpu left"),
            PodEnded(ExitReason.PREEMPTED, None, "OutOfcpu: no cpu left"),
        ),
        (
            pod(
                "Running",
                {"running": {}},
                [NOT_READY, disrupted("DeletionByTaintManager")],
                DELETED,
            ),
            PodEnded(ExitReason.NODE_LOST, None, "node node-1: words"),
        ),
        (
            pod("Failed", None, [disrupted("DeletionByPodGC")]),
            PodEnded(ExitReason.NODE_LOST, None, "node node-1: words"),
        ),
        # A taint of an administrator, on a node that lives: the process is told to end.
        (
            pod("Running", {"running": {}}, [READY, disrupted("DeletionByTaintManager")], DELETED),
            PodRunning(),
        ),
        (
            pod("Failed", terminated(143), [disrupted("DeletionByTaintManager")], DELETED),
            PodEnded(ExitReason.PREEMPTED, 143, "taken away: words"),
        ),
        (pod("Running", {"running": {}}), PodRunning()),
        (pod("Running", {"running": {}}, metadata=DELETED), PodRunning()),  # within its grace
        (pod("Pending"), Waiting()),
        (pod("Pending", {"waiting": {"reason": "ContainerCreating"}}), Waiting()),
        (
            pod("Pending", {"waiting": {"reason": "ErrImagePull", "message": "not found"}}),
            Waiting("ErrImagePull: not found"),
        ),
        (GATED, Waiting("it waits in the queue team", lacks_room=True)),
        (GATED | {"spec": pod()["spec"]}, Waiting()),  # it was let go just now
        (
            pod(
                "Pending",
                None,
                [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/3 nodes are available: 3 Insufficient cpu.",
                    }
                ],
            ),
            Waiting("Unschedulable: 0/3 nodes are available: 3 Insufficient cpu.", True),
        ),
    ],
)
def test_why_a_process_waits_or_has_ended(found, expected):
    assert observe(found) == expected


@pytest.mark.parametrize(
    ("code", "reason"), [(0, ExitReason.FINISHED), (137, ExitReason.KILLED), (1, ExitReason.KILLED)]
)
def test_a_process_that_we_asked_to_end_was_not_taken_away(code, reason):
    found = pod("Failed", terminated(code), metadata=DELETED)
    assert observe(found, was_asked=True) == PodEnded(reason, code)


def test_a_pod_that_is_gone_has_ended_however_it_was_last():
    ended = observe(pod("Running", {"running": {}}, metadata=DELETED), is_deleted=True)
    assert ended == PodEnded(ExitReason.PREEMPTED, None, "its pod was deleted")
    assert observe({"metadata": {"name": "a"}}, is_deleted=True) == PodEnded(ExitReason.PREEMPTED)


def test_the_limit_is_that_of_our_container():
    assert memory_limit(pod()) == "1Gi"
    assert memory_limit({"metadata": {}, "spec": {"containers": []}}) == ""

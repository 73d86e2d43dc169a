"""Reads the state of a process from the status of its pod. The functions have no effects."""

from __future__ import annotations

from dataclasses import dataclass

from elasticdl.launchers.base import ExitReason
from elasticdl.packages.kubernetes.names import CONTAINER, QUEUE_LABEL
from elasticdl.packages.kubernetes.resource import Resource

_SIGNALLED = (137, 143)  # 128 + SIGKILL or SIGTERM
_GATE = "kueue.x-k8s.io/admission"  # of a pod that Kueue has not admitted
_NOT_BEGUN = ("StartError", "ContainerCannotRun")
_OF_THE_NODE = ("DeletionByTaintManager", "DeletionByPodGC")
_DISRUPTIONS = {
    "PreemptionByScheduler": "preempted",
    "EvictionByEvictionAPI": "evicted",
    "TerminationByKubelet": "evicted",
}


@dataclass(frozen=True, slots=True)
class Waiting:
    """The process has not begun; `why` is in the cluster's own words, "" if there is no news.

    lacks_room: No node has room for the process, or its queue has not admitted it.
    """

    why: str = ""
    lacks_room: bool = False


@dataclass(frozen=True, slots=True)
class PodRunning:
    """The process runs."""


@dataclass(frozen=True, slots=True)
class PodEnded:
    """The process has ended, or its node is lost.

    code: The exit code; None if unknown. why: The cluster's own words, if they say more than the
        reason.
    log: The end of the process's log, if the process failed.
    """

    reason: ExitReason
    code: int | None = None
    why: str = ""
    log: str = ""


Observed = Waiting | PodRunning | PodEnded


def observe(pod: Resource, is_deleted: bool = False, was_asked: bool = False) -> Observed:
    """Return what became of a pod's process.

    Args:
        pod: The pod as the API server returns it.
        is_deleted: The pod is gone, and `pod` is its last state.
        was_asked: The launcher has asked the pod to end. If not, a deletion takes the pod away from
            the job: then even exit code 0 does not mean that the work is done.
    """
    status = pod.get("status", {})
    phase = status.get("phase", "Pending")
    state = _state(status)
    terminated = state.get("terminated")
    if terminated or is_deleted or phase in ("Succeeded", "Failed"):
        return _ended(pod, terminated or {}, was_asked)
    if _is_on_lost_node(pod):
        return PodEnded(ExitReason.NODE_LOST, None, _message_of(pod))
    if "running" in state:
        return PodRunning()
    return _waiting(pod, state)


def ended_at(pod: Resource) -> str:
    """Return when the process of a pod ended, or else when its pod was made, as text that sorts."""
    terminated = _state(pod.get("status", {})).get("terminated") or {}
    return str(terminated.get("finishedAt") or pod["metadata"].get("creationTimestamp", ""))


def _ended(pod: Resource, terminated: Resource, was_asked: bool) -> PodEnded:
    status = pod.get("status", {})
    code = terminated.get("exitCode")
    log = terminated.get("message", "")
    if terminated.get("reason") == "OOMKilled":
        return PodEnded(ExitReason.OUT_OF_MEMORY, code, _limit_of(pod))
    if status.get("reason") == "Evicted":
        return PodEnded(ExitReason.PREEMPTED, code, f"evicted: {status.get('message', '')}")
    # The second condition is Kueue's.
    disruption = _condition(status, "DisruptionTarget") or _condition(status, "TerminationTarget")
    if not terminated and (
        disruption.get("reason") in _OF_THE_NODE or status.get("reason") == "NodeLost"
    ):
        return PodEnded(ExitReason.NODE_LOST, None, _message_of(pod))
    if was_asked:
        return PodEnded(ExitReason.FINISHED if code == 0 else ExitReason.KILLED, code)
    if disruption:
        what = _DISRUPTIONS.get(disruption.get("reason", ""), "taken away")
        return PodEnded(ExitReason.PREEMPTED, code, f"{what}: {disruption.get('message', '')}")
    if pod["metadata"].get("deletionTimestamp"):
        return PodEnded(ExitReason.PREEMPTED, code, "its pod was deleted")
    if code is None:
        # The node refused the pod, or was lost with it: the process never ran, or its end was not
        # seen.
        words = [word for word in (status.get("reason"), status.get("message")) if word]
        return PodEnded(ExitReason.PREEMPTED, None, ": ".join(words))
    if code == 0:
        return PodEnded(ExitReason.FINISHED, 0)
    if terminated.get("reason") in _NOT_BEGUN:
        return PodEnded(ExitReason.FAILED, code, log)
    return PodEnded(ExitReason.KILLED if code in _SIGNALLED else ExitReason.FAILED, code, "", log)


def _is_on_lost_node(pod: Resource) -> bool:
    """Return whether a pod is being deleted because its node gives no sign of life."""
    status = pod.get("status", {})
    is_ready = _condition(status, "Ready")
    disruption = _condition(status, "DisruptionTarget")
    return disruption.get("reason") in _OF_THE_NODE and not is_ready


def _waiting(pod: Resource, state: Resource) -> Waiting:
    """Return why a process does not begin: a queue, no room, no image, or no volume."""
    status = pod.get("status", {})
    gates = [gate["name"] for gate in pod.get("spec", {}).get("schedulingGates", [])]
    if _GATE in gates:
        queue = pod["metadata"].get("labels", {}).get(QUEUE_LABEL, "")
        return Waiting(f"it waits in the queue {queue}", lacks_room=True)
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            is_old = condition.get("reason") == "SchedulingGated" and not gates
            lacks_room = condition.get("reason") == "Unschedulable"
            return Waiting() if is_old else Waiting(_words(condition), lacks_room)
    waiting = state.get("waiting", {})
    if waiting.get("reason") in (None, "ContainerCreating", "PodInitializing"):
        return Waiting(str(waiting.get("message", "")))
    return Waiting(_words(waiting))


def _words(found: Resource) -> str:
    words = [str(found[key]) for key in ("reason", "message") if found.get(key)]
    return ": ".join(words)


def _state(status: Resource) -> Resource:
    """Return the state of elasticdl's container; a sidecar of the user does not count."""
    containers = status.get("containerStatuses", [])
    for container in containers:
        if container["name"] == CONTAINER:
            state: Resource = container.get("state", {})
            return state
    return {}


def _condition(status: Resource, kind: str) -> Resource:
    """Return a condition that is true; {} if it is not."""
    for condition in status.get("conditions", []):
        if condition["type"] == kind and condition["status"] == "True":
            found: Resource = condition
            return found
    return {}


def _message_of(pod: Resource) -> str:
    node = pod.get("spec", {}).get("nodeName", "")
    message = _condition(pod.get("status", {}), "DisruptionTarget").get("message", "")
    return f"node {node}" + (f": {message}" if message else "")


def _limit_of(pod: Resource) -> str:
    limit = memory_limit(pod)
    return f"its limit was {limit}" if limit else ""


def memory_limit(pod: Resource) -> str:
    """Return the memory limit of the process; "" if there is no limit."""
    for container in pod.get("spec", {}).get("containers", []):
        if container["name"] == CONTAINER:
            return str(container.get("resources", {}).get("limits", {}).get("memory", ""))
    return ""

"""What a pod's status says, as the kubelet writes it. Nothing here has an effect."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from .api import Object

KILLED = 137  # 128 + SIGKILL

_NOT_PLAYED_OF_PODS = {
    "hostNetwork": "share the host's network",
    "hostPID": "see the host's processes",
    "shareProcessNamespace": "share processes among containers",
    "activeDeadlineSeconds": "have a deadline",
}
_NOT_PLAYED_OF_CONTAINERS = ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle")

ContainerState = tuple[Object, Object, int]
"""Its spec, its state, and how often it was started again."""


def now() -> str:
    """Return the time as the API writes it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def waiting(reason: str = "ContainerCreating", words: str = "") -> Object:
    """Return the state of a container that does not run yet."""
    return {"waiting": {"reason": reason, "message": words}}


def terminated(code: int, reason: str, started_at: str, words: str) -> Object:
    """Return the state of a container that ended."""
    ended: Object = {"exitCode": code, "reason": reason, "message": words}
    return {"terminated": {**ended, "startedAt": started_at, "finishedAt": now()}}


def unsupported(spec: Object) -> str:
    """Return what a pod asks for that this cluster does not play, or an empty string."""
    lacks = [words for key, words in _NOT_PLAYED_OF_PODS.items() if spec.get(key)]
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        lacks += [f"have a {key}" for key in _NOT_PLAYED_OF_CONTAINERS if key in container]
        if any("hostPort" in port for port in container.get("ports", [])):
            lacks.append("have a hostPort")
        if "restartPolicy" in container:
            lacks.append("have a restartPolicy of one container")
    return f"pods of this test cluster cannot {', or '.join(lacks)}" if lacks else ""


def status_of(
    pod: Object,
    phase: str,
    address: str,
    host: str,
    started_at: str,
    init: Sequence[ContainerState],
    main: Sequence[ContainerState],
    reason: tuple[str, str] | None,
) -> Object:
    """Return the patch of a pod's status; it is refused for a successor of the same name."""
    runs = all("running" in state for _, state, _ in main)
    begun = all("terminated" in state for _, state, _ in init)
    has_network = bool(address) and phase not in ("Succeeded", "Failed")
    status: Object = {
        "phase": phase,
        "hostIP": host,
        "hostIPs": [{"ip": host}],
        "startTime": started_at,
        "conditions": [
            _condition(pod, "PodReadyToStartContainers", has_network, ""),
            _condition(pod, "Initialized", begun, ""),
            _condition(pod, "Ready", runs, _why_not(phase, runs)),
            _condition(pod, "ContainersReady", runs, _why_not(phase, runs)),
        ],
        "containerStatuses": [_container(*each) for each in main],
    }
    if address:
        status |= {"podIP": address, "podIPs": [{"ip": address}]}
    if init:
        status["initContainerStatuses"] = [_container(*each) for each in init]
    if reason:
        status |= {"reason": reason[0], "message": reason[1]}
    return {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}


def _why_not(phase: str, runs: bool) -> str:
    if runs:
        return ""
    return {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase, "ContainersNotReady")


def _condition(pod: Object, kind: str, holds: bool, reason: str) -> Object:
    held = str(holds)
    for old in pod.get("status", {}).get("conditions", []):
        if old["type"] == kind and old["status"] == held:
            since = old["lastTransitionTime"]
            break
    else:
        since = now()
    return {"type": kind, "status": held, "reason": reason, "lastTransitionTime": since}


def _container(spec: Object, state: Object, restarts: int) -> Object:
    return {
        "name": spec["name"],
        "image": spec["image"],
        "imageID": f"local/{spec['image']}",
        "ready": "running" in state,
        "started": "running" in state,
        "restartCount": restarts,
        "state": state,
    }

"""A pod of a job, as the launcher keeps it; and what the launcher decides of the next one."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from elasticdl.config import JobConfig
from elasticdl.job import Role
from elasticdl.launchers.base import ExitReason, PendingProcess, ProcessHandle
from elasticdl.packages.kubernetes import memory, names
from elasticdl.packages.kubernetes.client import ApiError
from elasticdl.packages.kubernetes.observe import PodEnded, ended_at, memory_limit, observe
from elasticdl.packages.kubernetes.pods import GRACE_SECONDS
from elasticdl.packages.kubernetes.settings import KubernetesSection
from elasticdl.packages.kubernetes.watch import Pod
from elasticdl.packages.kubernetes.words import (
    HIGH,
    LOW,
    next_worker_is_high,
    parse_worker_priority,
)
from elasticdl.runtime import process
from elasticdl.runtime.addresses import Listening

_KEPT = 10  # pods of each role that have ended and are kept, for their logs

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class LaunchedPod:
    """A pod whose end was not told yet."""

    handle: ProcessHandle
    is_begun: bool = False  # a thread requests it
    is_there: bool = False  # it was created, or seen
    has_no_room: bool = False  # the last answer to the request was that a quota is used up
    is_adopted: bool = False  # an earlier master has asked for it
    is_started: bool = False  # `Started` was told
    has_certificate: bool = False  # it was made, or is being made
    was_asked: bool = False  # to end
    grace_seconds: float = GRACE_SECONDS  # it has so long then
    why: str = ""  # what was told of its waiting
    lacks_room: bool = False  # told with it
    priority: str = ""
    is_member: bool = False  # of the minimum that a queue admits at once

    def news(self, why: str, lacks_room: bool) -> PendingProcess | None:
        """Note why the pod waits; return what is to be told, if it was not told."""
        if not why and self.lacks_room:
            why = "it has a place by now, and begins"
        if not why or (why, lacks_room) == (self.why, self.lacks_room):
            return None
        self.why, self.lacks_room = why, lacks_room
        return PendingProcess(self.handle, why, lacks_room)


class KeptPods:
    """The pods that have ended and are kept, for their logs; the oldest of a role go."""

    def __init__(self) -> None:
        """Keep none yet."""
        self._of: dict[Role, deque[str]] = {role: deque() for role in Role}

    def add(self, handle: ProcessHandle) -> str:
        """Keep a pod; return the name of one that is to be deleted, or ""."""
        kept = self._of[handle.role]
        if handle.ref in kept:
            return ""
        kept.append(handle.ref)
        return kept.popleft() if len(kept) > _KEPT else ""


def ended_before(pods: Mapping[str, Pod], known: Container[str]) -> list[ProcessHandle]:
    """Return the processes of the pods that have ended and are not known, the oldest first."""
    others = (pod for name, pod in pods.items() if name not in known)
    ended = sorted((pod for pod in others if isinstance(observe(pod), PodEnded)), key=ended_at)
    return [
        ProcessHandle(
            Role(metadata["labels"][names.ROLE_LABEL]),
            int(metadata["labels"][names.INDEX_LABEL]),
            metadata["name"],
        )
        for metadata in (pod["metadata"] for pod in ended)
    ]


class MemoryOfRoles:
    """The memory of further pods of a role, which grows when one of them ran out of it."""

    def __init__(self, config: JobConfig) -> None:
        """Begin with the settings of the job."""
        self._config = config
        self._grown: dict[Role, str] = {}

    def of(self, role: Role) -> str:
        """Return the memory of the next pod; "" as the settings say."""
        return self._grown.get(role, "")

    def ended(self, role: Role, found: Pod, ended: PodEnded) -> None:
        """Take in the end of a pod."""
        if ended.reason is not ExitReason.OUT_OF_MEMORY:
            return
        had = memory_limit(found)
        requests = self._config.resources.requests(role)
        asked = self._config.of(KubernetesSection).limits(role, requests).get("memory", had)
        if had and memory.is_larger(wanted := memory.grown(had, asked), self.of(role)):
            self._grown[role] = wanted
            log.warning("each further %s gets %s of memory", role, wanted)


def command_in_pod(
    config: JobConfig, role: Role, index: int, master: str, listening: Listening, has_tls: bool
) -> tuple[str, ...]:
    """Return the command of a process, with the files that its pod has."""
    job_dir = config.cluster.job_dir
    assert job_dir is not None
    return process.command(
        role,
        index,
        job_dir,
        master,
        listening,
        python="python",
        config_file=Path(names.SETTINGS_DIR, names.CONFIG_KEY),
        token_file=Path(names.SECRET_DIR, names.TOKEN_KEY),
        tls_dir=Path(names.TLS_DIR) if has_tls else None,
    )


def priority_of(role: Role, settings: KubernetesSection, given: Sequence[str]) -> str:
    """Return the priority of the next pod of a role.

    Args:
        role: The role.
        settings: The settings of the job.
        given: The priorities that pods of the role have.
    """
    if role is not Role.WORKER:  # the workers wait for both of the others
        return settings.ps_pod_priority
    if not settings.worker_pod_priority:
        return ""
    share = parse_worker_priority(settings.worker_pod_priority)
    if isinstance(share, str):
        return share
    is_high = next_worker_is_high(share, list(given).count(HIGH), len(given))
    return HIGH if is_high else LOW


def is_queued(pod: Pod) -> bool:
    """Return whether a pod is admitted by itself, and not as a part of the minimum."""
    return names.QUEUE_LABEL in pod["metadata"].get("labels", {})


def is_of(pod: Pod, handle: ProcessHandle) -> bool:
    """Return whether a pod has the role and index of a process."""
    labels = pod["metadata"].get("labels", {})
    wanted = {names.ROLE_LABEL: str(handle.role), names.INDEX_LABEL: str(handle.index)}
    return bool(wanted.items() <= labels.items())


def belongs_to(pod: Pod, job: str) -> bool:
    """Return whether a pod belongs to the job with an id, and not to an earlier one of its name."""
    return any(owner["uid"] == job for owner in pod["metadata"].get("ownerReferences", []))


def refusal(handle: ProcessHandle, error: ApiError, what: str) -> str:
    """Return what is said where Kubernetes refuses a pod, or something that the pod needs."""
    words = f"Kubernetes refuses the {what} {handle.ref}: {error}"
    if error.code == 403 and "forbidden" in error.message and "cannot create" in error.message:
        words += "; elasticdl rbac prints the rights that the job needs"
    return words

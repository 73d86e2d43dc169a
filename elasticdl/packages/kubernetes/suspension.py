"""Ends the pods of a Job that is suspended, so that others can use their processors.

When a Job is suspended, Kubernetes deletes the pod of the master. It knows nothing of the pods that
the master has requested. So a master that is asked to end looks whether its Job is suspended. If it
is, the workers and ps replicas hand over and end (`KubernetesLauncher.leave`). A master that is
asked to end before it has begun becomes this module instead (`process_one`).
"""

from __future__ import annotations

import logging
import os
import sys
import time
from functools import partial
from pathlib import Path
from threading import Event

from elasticdl.config import JobConfig
from elasticdl.errors import ElasticdlError
from elasticdl.job import Role
from elasticdl.launchers.base import END_ORDER
from elasticdl.packages.kubernetes import names
from elasticdl.packages.kubernetes.client import Api, ApiError
from elasticdl.packages.kubernetes.observe import PodEnded, observe
from elasticdl.packages.kubernetes.pods import GRACE_SECONDS
from elasticdl.packages.kubernetes.resource import Resource
from elasticdl.packages.kubernetes.retry import given_up_after, persistently
from elasticdl.packages.kubernetes.settings import KubernetesSection
from elasticdl.runtime.log_lines import log_as
from elasticdl.runtime.process import STOPPED_EXIT_CODE

_ASK_SECONDS = 10.0
_HAND_OVER_SECONDS = 20.0  # of GRACE_SECONDS, after which this process is killed
_LOOK_SECONDS = 0.5

log = logging.getLogger(__name__)


def job_of(api: Api, job_name: str, uid: str, given_up: Event) -> Resource:
    """Return the Job of a master.

    Raises:
        ApiError: The Job was deleted, or cannot be looked at.
    """
    job = persistently(
        lambda: api.get(api.path("jobs", job_name)),
        given_up,
        lambda error: log.warning("the Job cannot be looked at yet: %s", error),
    )
    if job["metadata"]["uid"] != uid:
        raise ApiError(404, f"the Job was deleted, and another one has its name {job_name}")
    return job


def is_suspended(api: Api, job_name: str, uid: str) -> bool:
    """Return whether the Job of a master is suspended; False if the API server does not answer."""
    try:
        with given_up_after(_ASK_SECONDS) as given_up:
            job = job_of(api, job_name, uid, given_up)
    except ApiError as error:
        log.warning("the Job cannot be looked at, and its pods go on: %s", error)
        return False
    return bool(job["spec"].get("suspend"))


def main() -> None:
    """Delete the processes of a suspended Job, in place of its master."""
    log_as("master")
    try:
        config = JobConfig.read(Path(names.SETTINGS_DIR, names.CONFIG_KEY))
        _end_replicas(Api.in_pod(), config, os.environ[names.OWNER_VARIABLE])
    except ElasticdlError as error:
        log.error("%s: %s", type(error).__name__, error)
    sys.exit(STOPPED_EXIT_CODE)


def _end_replicas(api: Api, config: JobConfig, uid: str) -> None:
    """Make workers hand over and end, and after them the receivers of what they hand over."""
    job_name = config.cluster.job_name
    if not is_suspended(api, job_name, uid):
        return
    deadline, never = time.monotonic() + _HAND_OVER_SECONDS, Event()

    def failed(error: ApiError) -> None:
        log.warning("the processes of the suspended Job cannot be asked to end yet: %s", error)

    for role in END_ORDER:
        asked: set[str] = set()
        while pods := persistently(partial(_pods_of, api, job_name, role, uid), never, failed):
            for name in set(pods) - asked:
                log.info("the Job is suspended: %s hands over and goes", name)
                ask = partial(api.delete, api.path("pods", name), GRACE_SECONDS)
                persistently(ask, never, failed)
            asked |= set(pods)
            if time.monotonic() >= deadline:
                break  # the others are asked as well, before this process is killed
            time.sleep(_LOOK_SECONDS)
    if config.of(KubernetesSection).queue_name:
        leave = partial(api.delete, api.path("jobs", names.minimum_of(job_name)))
        persistently(leave, never, failed)


def _pods_of(api: Api, job_name: str, role: Role, uid: str) -> list[str]:
    """Return the pods of a role that a Job owns, and that have not ended."""
    selector = f"{names.selector_of_job(job_name)},{names.ROLE_LABEL}={role}"
    return [
        pod["metadata"]["name"]
        for pod in api.get(api.path("pods"), labelSelector=selector)["items"]
        if any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences", []))
        and not isinstance(observe(pod), PodEnded)
    ]


if __name__ == "__main__":
    main()

"""A Job that is suspended: its pods are to go, and its processors are somebody else's meanwhile.

Kubernetes deletes the pod of the master then, and knows nothing of the pods that the master has
asked for. So a master that is asked to end looks whether its Job is suspended, and if so has its
workers and ps replicas hand over and go (`KubernetesLauncher.leave`). One that is asked to end
before it has begun becomes this module instead (`process_one`).
"""

from __future__ import annotations

import logging
import os
import sys
from functools import partial
from pathlib import Path
from threading import Event

from elasticdl.config import JobConfig
from elasticdl.errors import ElasticdlError
from elasticdl.launchers.kubernetes import names
from elasticdl.launchers.kubernetes.client import Api, ApiError
from elasticdl.launchers.kubernetes.pods import GRACE_SECONDS
from elasticdl.launchers.kubernetes.retry import given_up_after, persistently
from elasticdl.runtime.log_lines import log_as
from elasticdl.runtime.process import STOPPED_EXIT_CODE

_ASK_SECONDS = 10.0

log = logging.getLogger(__name__)


def is_suspended(api: Api, job_name: str) -> bool:
    """Whether somebody has suspended the Job of a master; False if nobody can be asked."""
    try:
        with given_up_after(_ASK_SECONDS) as given_up:
            job = persistently(
                lambda: api.get(api.path("jobs", job_name)),
                given_up,
                lambda error: log.warning("the Job cannot be looked at yet: %s", error),
            )
    except ApiError as error:
        log.warning("the Job cannot be looked at, and its pods go on: %s", error)
        return False
    return bool(job["spec"].get("suspend"))


def main() -> None:
    """Delete the processes of a suspended Job, in place of its master."""
    log_as("master")
    try:
        config = JobConfig.read(Path(names.SETTINGS_DIR, names.CONFIG_KEY))
        _end_replicas(Api.connect(), config, os.environ[names.OWNER_VARIABLE])
    except ElasticdlError as error:
        log.error("%s: %s", type(error).__name__, error)
    sys.exit(STOPPED_EXIT_CODE)


def _end_replicas(api: Api, config: JobConfig, uid: str) -> None:
    job_name = config.cluster.job_name
    if not is_suspended(api, job_name):
        return
    selector = names.selector_of_replicas(job_name)
    for pod in api.get(api.path("pods"), labelSelector=selector)["items"]:
        about = pod["metadata"]
        if any(owner["uid"] == uid for owner in about.get("ownerReferences", [])):
            log.info("the Job is suspended: %s hands over and goes", about["name"])
            persistently(
                partial(api.delete, api.path("pods", about["name"]), GRACE_SECONDS),
                Event(),
                lambda error: log.warning("a pod cannot be deleted yet: %s", error),
            )
    if config.kubernetes.queue_name:
        api.delete(api.path("jobs", names.minimum_of(job_name)))


if __name__ == "__main__":
    main()

"""What a master needs of Kubernetes: a launcher, and a place for the job's last picture."""

from __future__ import annotations

import json
import logging
import os
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.config import JobConfig
from elasticdl.errors import ElasticdlError
from elasticdl.launchers.base import Launcher, OnEvent
from elasticdl.packages.kubernetes import names, suspension
from elasticdl.packages.kubernetes.client import Api, ApiError
from elasticdl.packages.kubernetes.launcher import KubernetesLauncher
from elasticdl.packages.kubernetes.pods import Plan, owners
from elasticdl.packages.kubernetes.resource import Resource
from elasticdl.packages.kubernetes.retry import given_up_after, persistently
from elasticdl.packages.kubernetes.settings import KubernetesSection
from elasticdl.packages.kubernetes.settle import has_secret
from elasticdl.packages.kubernetes.words import parse_variables
from elasticdl.runtime import process

if TYPE_CHECKING:
    from elasticdl.runtime.credentials.job_authority import JobAuthority

_TELL_SECONDS = 60.0

log = logging.getLogger(__name__)


def make_launcher(config: JobConfig, on_event: OnEvent, authority: JobAuthority | None) -> Launcher:
    """Return the launcher of a master that runs in a pod.

    Raises:
        ConfigError: This process is not in the pod of a master.
    """
    api = Api.in_pod()
    master = f"{names.host_of_master(config, api.namespace)}:{config.cluster.master_port}"
    files = Path(names.SETTINGS_DIR, names.MODEL_FILES_KEY)
    sends = config.of(KubernetesSection).sends_model_zoo
    model_files = json.loads(files.read_text()) if sends else {}
    owned_by = owners(
        config.cluster.job_name,
        os.environ[names.OWNER_VARIABLE],
        os.environ[names.CONTROLLER_VARIABLE],
    )
    return KubernetesLauncher(Plan(config, model_files), api, owned_by, master, on_event, authority)


def tell_end(config: JobConfig, job_dir: Path, code: int) -> None:
    """Store the last picture with the Job; a master that failed has no successor.

    A successor of a failed master would fail as well. A master that was asked to end, or was
    killed, has a successor. Such a master stores a picture only if its Job is suspended. Objects
    without use after the end are deleted.
    """
    has_ended = code != process.STOPPED_EXIT_CODE
    api, job_name, uid = Api.in_pod(), config.cluster.job_name, os.environ[names.OWNER_VARIABLE]
    if not has_ended and not suspension.is_suspended(api, job_name, uid):
        return
    change: Resource = {}
    try:
        name = process.PICTURE_FILE if has_ended else process.BEFORE_FILE
        picture = (job_dir / name).read_text()
        change["metadata"] = {"annotations": {names.PICTURE_ANNOTATION: picture}}
    except FileNotFoundError:
        log.debug("there is no last picture")
    if code and has_ended:
        change["spec"] = {"backoffLimit": 0}
    try:
        with given_up_after(_TELL_SECONDS) as given_up:
            suspension.job_of(api, job_name, uid, given_up)
            _store(api, api.path("jobs", job_name), change, given_up)
            if has_ended:
                _delete_leftovers(api, config, given_up)
    except ElasticdlError as error:
        log.error("the Job was not told how it ended, or things of it are left: %s", error)


def _store(api: Api, path: str, change: Resource, given_up: threading.Event) -> None:
    """Change a Job; without the picture if that is refused, for it may be too large.

    Raises:
        ApiError: The Job cannot be changed.
    """

    def patch(change: Resource) -> None:
        persistently(
            lambda: api.patch(path, change),
            given_up,
            lambda error: log.warning("the end cannot be written to the Job yet: %s", error),
        )

    try:
        patch(change)
    except ApiError as error:
        if error.is_transient:
            raise
        log.error("the last picture is not stored with the Job: %s", error)
        if "spec" in change:
            patch({"spec": change["spec"]})


def _delete_leftovers(api: Api, config: JobConfig, given_up: threading.Event) -> None:
    """Delete what has no use after the end: all but the Job and its pods, which have the logs."""

    def failed(error: ApiError) -> None:
        log.warning("a thing of the job cannot be deleted yet: %s", error)

    for path in persistently(partial(leftovers, api, config), given_up, failed):
        persistently(partial(api.delete, path), given_up, failed)


def leftovers(api: Api, config: JobConfig) -> list[str]:
    """Return the paths of all objects of the job except its Job and its pods.

    Objects that others may wait for come first, and then keys.

    A Secret is never listed, because a right to list Secrets is a right to read them.
    """
    job_name = config.cluster.job_name
    selector = names.selector_of_replicas(job_name)
    pods = api.get(api.path("pods"), labelSelector=selector)["items"]
    secrets = [names.authority_of(job_name), job_name]
    secrets += [pod["metadata"]["name"] for pod in pods]
    if has_secret(config):
        secrets.append(names.data_secret_of(job_name))
    own = names.env_secret_of(job_name)
    if any(each.secret == own for each in parse_variables(config.of(KubernetesSection).envs)):
        secrets.append(own)
    maps = [job_name]
    if config.of(KubernetesSection).sends_model_zoo:
        maps.append(names.model_map_of(job_name))
    minimum = [names.minimum_of(job_name)] if config.of(KubernetesSection).queue_name else []
    return [
        *(api.path("jobs", name) for name in minimum),
        *(api.path("secrets", name) for name in secrets),
        *(api.path("configmaps", name) for name in maps),
        api.path("services", job_name),
    ]

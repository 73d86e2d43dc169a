"""Starts jobs on a Kubernetes cluster, and finds jobs there, for a command."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Callable
from typing import TypeVar

from elasticdl.config import JobConfig
from elasticdl.errors import ConfigError, LaunchError
from elasticdl.launchers.base import SubmittedJob
from elasticdl.packages.kubernetes import names
from elasticdl.packages.kubernetes.client import Api, ApiError
from elasticdl.packages.kubernetes.job import KubernetesJob
from elasticdl.packages.kubernetes.launched_pod import belongs_to
from elasticdl.packages.kubernetes.manifests import manifests
from elasticdl.packages.kubernetes.pods import Manifest, owner_reference
from elasticdl.packages.kubernetes.resource import Resource
from elasticdl.packages.kubernetes.retry import Backoff, given_up_after, persistently
from elasticdl.packages.kubernetes.settings import KubernetesSection

_NAME = re.compile(r"([a-z0-9-]+/)?[a-z0-9-]+")
_LEFTOVER_ATTEMPTS = 12  # with pauses up to ten seconds: what a job before left is being deleted
_DRAW_BYTES = 8
_KINDS = {"ConfigMap": "configmaps", "Service": "services", "Secret": "secrets"}

T = TypeVar("T")


class KubernetesSubmitter:
    """`launchers.base.Submitter` of a cluster: the cluster that kubectl uses."""

    def submit(self, config: JobConfig, is_tied: bool) -> SubmittedJob:
        """Make the objects of a job: first the Job, which owns the other objects.

        A job on a cluster is never tied to a command.
        """
        api = Api.connect(config.of(KubernetesSection).namespace)
        if config.of(KubernetesSection).queue_name:
            check_queue(api, config.of(KubernetesSection).queue_name)
        *others, job = manifests(config)
        name, draw = config.cluster.job_name, secrets.token_hex(_DRAW_BYTES)
        job["metadata"].setdefault("annotations", {})[names.SUBMISSION_ANNOTATION] = draw
        try:
            uid = str(_make(api, job, draw)["metadata"]["uid"])
            for manifest in others:
                manifest["metadata"]["ownerReferences"] = [owner_reference(name, uid)]
                _make_part(api, manifest, uid)
        except BaseException:  # Ctrl-C too: its pods would wait for ever for what was not made
            if _is_of(_found(api, api.path("jobs", name)), draw):
                api.delete(api.path("jobs", name))
            raise
        return KubernetesJob(api, name)

    def find(self, name: str) -> SubmittedJob | None:
        """Return a job by its name, or NAMESPACE/NAME."""
        if not _NAME.fullmatch(name):
            return None  # the path of a folder, of which the server would say that it is forbidden
        namespace, _, job_name = name.rpartition("/")
        try:
            api = Api.connect(namespace)
        except ConfigError:
            return None  # no cluster is known here
        path = api.path("jobs", job_name)
        try:
            found = api.get(path)
        except ApiError as error:
            if error.code in (400, 404):
                return None
            raise LaunchError(
                f"there is no folder of a job {name!r} here, and the Kubernetes cluster does not "
                f"say whether it has the job: {error}"
            ) from error
        # A Job that stands in a queue for a job has the label too, and another name.
        is_ours = found["metadata"].get("labels", {}).get(names.JOB_LABEL) == job_name
        return KubernetesJob(api, job_name) if is_ours else None

    def places_of(self, name: str) -> str:
        """Return where `find` has looked."""
        if not _NAME.fullmatch(name):
            return ""
        namespace, _, job_name = name.rpartition("/")
        try:
            api = Api.connect(namespace)
        except ConfigError as error:
            return f"a job on Kubernetes ({error})"
        return f"the job {job_name} in the namespace {api.namespace} of the Kubernetes cluster"


def check_queue(api: Api, queue: str) -> None:
    """Refuse a queue that does not exist: a job would wait in it for ever.

    If this user may not look at queues, the queue is not checked.

    Raises:
        LaunchError: The cluster has no queues, or none of this name in the namespace.
    """
    if (group := _found(api, "/apis/kueue.x-k8s.io")) is None:
        raise LaunchError(
            f"--queue_name={queue}: this cluster has no Kueue, which would let the job begin: "
            "expected Kueue to be installed, or no --queue_name"
        )
    version = group.get("preferredVersion", {}).get("groupVersion")
    path = f"/apis/{version}/namespaces/{api.namespace}/localqueues/{queue}"
    if version and _found(api, path) is None:
        raise LaunchError(
            f"--queue_name={queue}: expected a LocalQueue of the namespace {api.namespace}: "
            f"kubectl get localqueues --namespace={api.namespace} shows which there are"
        )


def _found(api: Api, path: str) -> Resource | None:
    """Return the object at a path; None if there is none, {} if that cannot be told."""
    try:
        return api.get(path)
    except ApiError as error:
        return None if error.code == 404 else {}


def _is_of(job: Resource | None, draw: str) -> bool:
    """Return whether a Job was made by the command with this draw."""
    annotations = (job or {}).get("metadata", {}).get("annotations", {})
    return bool(annotations.get(names.SUBMISSION_ANNOTATION) == draw)


def _make(api: Api, job: Manifest, draw: str) -> Manifest:
    name = job["metadata"]["name"]
    try:
        return _try(lambda: api.create(api.path("jobs"), job))
    except ApiError as error:
        if error.code == 409:
            found = _found(api, api.path("jobs", name))
            if found and _is_of(found, draw):  # an answer was lost
                return found
            raise LaunchError(
                f"there is a job {name} in the namespace {api.namespace} already: elasticdl attach "
                f"{name} shows it, kubectl delete job {name} removes it; or give --job_name"
            ) from error
        if error.code == 404:
            raise LaunchError(
                f"the namespace {api.namespace} is not there: give --namespace, or make it with "
                f"kubectl create namespace {api.namespace}"
            ) from error
        raise LaunchError(f"Kubernetes refuses the job {name}: {error}") from error


def _make_part(api: Api, manifest: Manifest, uid: str) -> None:
    """Make an object that the job with an id owns; one of an earlier job may be going."""
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    path = api.path(_KINDS[kind])
    backoff = Backoff(threading.Event())
    for _ in range(_LEFTOVER_ATTEMPTS):
        try:
            _try(lambda: api.create(path, manifest))
            return
        except ApiError as error:
            if error.code != 409:
                raise LaunchError(f"Kubernetes refuses the {kind} {name}: {error}") from error
        found = _found(api, f"{path}/{name}")
        if found and belongs_to(found, uid):  # an answer was lost
            return
        backoff.pause()
    raise LaunchError(
        f"the {kind} {name} in the namespace {api.namespace} does not belong to this job: delete "
        "it, or give another --job_name"
    )


def _try(call: Callable[[], T]) -> T:
    """Call a function; repeat it for a while if its failure may pass."""
    with given_up_after(30.0) as given_up:
        return persistently(call, given_up, lambda error: None)

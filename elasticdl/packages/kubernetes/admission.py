"""Keeps the minimum of a job in a queue of Kueue, and tells whether the queue has admitted it.

Kueue admits a Job of Kubernetes as a whole, or not at all. The master's own Job contains only the
master, which asks for all other pods. So the master makes a second Job, NAME-minimum. The one pod
of this Job would request what all ps replicas, model servers and the first workers request
together. That pod is never made, because the Job's `managedBy` names the master as its controller.
When Kueue resumes the Job, there is room for all of them at once, and their pods are made. When
Kueue suspends the Job, the processes hand over and end.

Each further worker is a pod of its own in the queue: it is admitted by itself, and taken back by
itself.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping
from decimal import Decimal

from elasticdl.config import JobConfig
from elasticdl.job import Role
from elasticdl.packages.kubernetes import names
from elasticdl.packages.kubernetes.client import Api, ApiError
from elasticdl.packages.kubernetes.pods import Manifest
from elasticdl.packages.kubernetes.resource import Resource
from elasticdl.packages.kubernetes.retry import given_up_after, persistently
from elasticdl.packages.kubernetes.settings import KubernetesSection
from elasticdl.settings.resources import parse_quantity

CONTROLLER = "elasticdl.org/master"
_LOOK_SECONDS = 1.0
_GIVE_UP_SECONDS = 2.0  # the master is killed soon

log = logging.getLogger(__name__)


def members_of_minimum(config: JobConfig) -> dict[Role, int]:
    """Return how many processes of each role are admitted together."""
    return {
        Role.PS: config.num_ps,
        **config.other_processes,
        Role.WORKER: config.of(KubernetesSection).queue_min_workers,
    }


def minimum_job(config: JobConfig, samples: Mapping[Role, Manifest], owner: Manifest) -> Manifest:
    """Return the Job that stands in the queue for the minimum.

    Args:
        config: The settings.
        samples: A pod of each role of the minimum, in the form in which it would be made.
        owner: The Job of the master.
    """
    members = members_of_minimum(config)
    containers = [
        {
            "name": str(role),
            "image": config.of(KubernetesSection).image,
            "resources": {"requests": _requested(sample, members[role])},
        }
        for role, sample in samples.items()
    ]
    pods = [sample["spec"] for sample in samples.values()]
    template: Resource = {"restartPolicy": "Never", "containers": containers}
    for name in ("nodeSelector", "affinity", "tolerations", "priorityClassName"):
        if found := next((pod[name] for pod in pods if pod.get(name)), None):
            template[name] = found
    labels = names.labels_of(config) | {names.QUEUE_LABEL: config.of(KubernetesSection).queue_name}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": names.minimum_of(config.cluster.job_name),
            "labels": labels,
            "ownerReferences": [owner],
        },
        "spec": {
            "suspend": True,
            "managedBy": CONTROLLER,
            "template": {"spec": template},
        },
    }


def place(pod: Manifest, template: Resource) -> None:
    """Make a pod run where the queue has found room for the minimum.

    Args:
        pod: One of the minimum; it is changed.
        template: The pod template of the Job, to which Kueue has added the settings of its
            flavours.
    """
    spec, found = pod["spec"], template["spec"]
    if found.get("nodeSelector"):
        spec["nodeSelector"] = spec.get("nodeSelector", {}) | found["nodeSelector"]
    own = spec.get("tolerations", [])
    spec["tolerations"] = own + [each for each in found.get("tolerations", []) if each not in own]


def _requested(pod: Manifest, number: int) -> dict[str, str]:
    """Return the requests of a number of pods, with the containers that users add to them."""
    total: dict[str, Decimal] = {}
    for container in pod["spec"]["containers"]:
        for name, quantity in container.get("resources", {}).get("requests", {}).items():
            total[name] = total.get(name, Decimal(0)) + parse_quantity(str(quantity))
    return {name: _quantity(each * number) for name, each in total.items()}


def _quantity(value: Decimal) -> str:
    return str(int(value)) if value == int(value) else f"{math.ceil(value * 1000)}m"


class Admission:
    """Tells whether a job has its minimum; a thread of its own looks.

    The thread reads the Job each second, because a watch would need the right to list all Jobs. As
    a controller of Jobs does, it also reports the state of the minimum's pods. Kueue needs this
    state: it gives the room to others when no pod is left, and knows whether all pods run.
    """

    def __init__(
        self,
        api: Api,
        job: Manifest,
        taken_back: Callable[[], None],
        state: Callable[[], tuple[bool, bool]],
    ) -> None:
        """Keep the Job in the queue until `close`.

        Args:
            api: The namespace of the job.
            job: The Job for the queue (`minimum_job`).
            taken_back: Is called at each look that finds pods of the minimum without a place.
            state: Returns whether there is a pod of the minimum, and whether all of them run.
        """
        self._api = api
        self._job = job
        self._taken_back = taken_back
        self._state = state
        self._closed = threading.Event()
        self._was_told = ""
        self.is_given = threading.Event()
        self.template: Resource = {"spec": {}}
        """The pod template of the Job as it was admitted."""
        self.refused = ""
        """The reason why there can be no such Job; "" if there can."""
        self._thread = threading.Thread(target=self._run, name="admission", daemon=True)
        self._thread.start()

    @property
    def why(self) -> str:
        """The reason for waiting, in words."""
        queue = self._job["metadata"]["labels"][names.QUEUE_LABEL]
        containers = self._job["spec"]["template"]["spec"]["containers"]
        roles = " and ".join(each["name"] for each in containers)
        return f"the queue {queue} has not admitted the minimum of {roles} processes"

    def close(self) -> None:
        """Stop looking; the Job stays for the next master."""
        self._closed.set()

    def give_up(self) -> None:
        """Look no more, and leave the queue, so that the admitted room is free for others."""
        self.close()
        self._thread.join(_GIVE_UP_SECONDS)  # else it might make the Job again
        try:
            with given_up_after(_GIVE_UP_SECONDS) as given_up:
                persistently(
                    lambda: self._api.delete(self._path),
                    given_up,
                    lambda error: log.warning(
                        "the Job %s is not deleted yet: %s", self._name, error
                    ),
                )
        except ApiError as error:
            log.error("the Job %s is not deleted: %s", self._name, error)

    @property
    def _name(self) -> str:
        return str(self._job["metadata"]["name"])

    @property
    def _path(self) -> str:
        return self._api.path("jobs", self._name)

    def _run(self) -> None:
        while not self._closed.is_set() and not self.refused:
            try:
                self._take(self._find())
            except ApiError as error:
                self._take_error(error)
            self._closed.wait(_LOOK_SECONDS)

    def _find(self) -> Resource:
        """Return the Job; it is made if it does not exist."""
        try:
            return self._api.get(self._path)
        except ApiError as error:
            if error.code != 404:
                raise
        return self._api.create(self._api.path("jobs"), self._job)

    def _take(self, found: Resource) -> None:
        """Take in the present state of the Job."""
        (ours,) = self._job["metadata"]["ownerReferences"]
        owners = found["metadata"].get("ownerReferences", [])
        if all(owner["uid"] != ours["uid"] for owner in owners):
            return  # of a job before of the same name, about to be deleted
        if found["spec"].get("managedBy") != CONTROLLER:
            self._api.delete(self._path)
            self.refused = (
                f"a Job {self._name} without pods: this Kubernetes does not know a Job's "
                "managedBy: expected 1.32 or newer for --queue_name"
            )
            return
        is_given = not found["spec"].get("suspend", False)
        if is_given and not self.is_given.is_set():
            self.template = found["spec"]["template"]
            log.info("the queue has admitted the minimum")
            self.is_given.set()
        elif not is_given:
            self.is_given.clear()
        is_there, runs = self._state()
        if is_there and not is_given:
            self._taken_back()
        self._tell_state(found, is_there, runs)

    def _tell_state(self, found: Resource, is_there: bool, runs: bool) -> None:
        before = found.get("status", {})
        status = {"active": int(is_there), "ready": int(is_there and runs)}
        if any(before.get(name, 0) != value for name, value in status.items()):
            try:
                self._api.patch(f"{self._path}/status", {"status": status})
            except ApiError as error:
                if error.code == 403:
                    raise
                log.warning("the state of the minimum is not told: %s", error)

    def _take_error(self, error: ApiError) -> None:
        if error.code == 403 and not error.is_transient:
            self.refused = f"{error}; elasticdl rbac --queues prints the rights that the job needs"
        elif error.code in (400, 422):
            self.refused = str(error)
        elif error.code != 409 and str(error) != self._was_told:  # 409: made by another just now
            self._was_told = str(error)
            log.warning("the Job %s cannot be looked at yet: %s", self._name, error)

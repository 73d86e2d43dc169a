"""A job on Kubernetes, as a command sees it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import re
import socket
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from http import HTTPStatus

from elasticdl.errors import LaunchError, UnavailableError
from elasticdl.job import Event, Role
from elasticdl.job.status import JobStatus, no_status
from elasticdl.launchers.base import ExitReason
from elasticdl.launchers.last_words import last_words
from elasticdl.packages.kubernetes import names
from elasticdl.packages.kubernetes.access import Access
from elasticdl.packages.kubernetes.client import Api, ApiError
from elasticdl.packages.kubernetes.forward import Forward
from elasticdl.packages.kubernetes.observe import PodEnded, PodRunning, Waiting, observe
from elasticdl.packages.kubernetes.resource import Resource
from elasticdl.rpc import messages
from elasticdl.rpc.client import ENDED, JobClient
from elasticdl.runtime import process

_LOOK_SECONDS = 0.5
_DIRECT_SECONDS = 1.0
_CONNECT_SECONDS = 5.0  # to a master; if there is none, another pod is looked for
_SILENCE_SECONDS = 3600.0  # of a log that is followed

_RESUME = "it continues when its Job is resumed"

log = logging.getLogger(__name__)

# A line of text of `elasticdl.runtime.log_lines`: time, process, level, message.
_LINE = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) \S+ (\S+) (.*)$")
_LEVELS = ("INFO", "WARNING", "ERROR")


class KubernetesJob:
    """`launchers.base.SubmittedJob` of a cluster."""

    is_tied = False

    def __init__(self, api: Api, job_name: str, connect_seconds: float = _CONNECT_SECONDS) -> None:
        """Look at a job in the namespace of `api`.

        Args:
            api: The namespace.
            job_name: The job.
            connect_seconds: How long the job's events wait for one master before they look for the
                next.
        """
        self._api = api
        self._job_name = job_name
        self._connect_seconds = connect_seconds
        self._access = Access(api, job_name)
        self._forward: Forward | None = None

    @property
    def name(self) -> str:
        """The job's namespace and name."""
        return f"{self._api.namespace}/{self._job_name}"

    @property
    def places(self) -> dict[str, str]:
        """The place of the job on Kubernetes."""
        return {"kubernetes": f"job {self._job_name} in the namespace {self._api.namespace}"}

    @property
    def page(self) -> str:
        """Return "": the page is served at the loopback address of the master's pod."""
        return ""

    # --- its master ------------------------------------------------------------------------------

    def connect(self, timeout_seconds: float) -> JobClient:
        """Return a client of the pod that is the master now.

        The client uses the pod's address if it can be reached from here, or else the API server.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            why = "it has no pod yet"
            pod = self._newest(Role.MASTER, 0)
            match observe(pod) if pod is not None else None:
                case PodRunning() if pod is not None:
                    why = self._master_before(pod) or "it does not listen yet"
                    address, found = self._address(pod), self._access.find()
                    if address and found:
                        return JobClient(address, found.token, tls=found.tls)
                case Waiting(words):
                    why = words or "its pod is being started"
                case PodEnded() as ended:
                    words = last_words(ended.log.splitlines()) or ended.why
                    why = f"its pod has ended: {ended.reason}" + (f": {words}" if words else "")
            if self._has_ended(self._job()):
                raise UnavailableError(f"the job {self.name} has ended")
            if time.monotonic() >= deadline:
                raise UnavailableError(f"the master of {self.name} cannot be reached: {why}")
            time.sleep(_LOOK_SECONDS)

    def _address(self, pod: Resource) -> str:
        """Return the address at which a pod can be reached; "" if it does not listen yet."""
        (port,) = {
            port["containerPort"]
            for container in pod["spec"]["containers"]
            if container["name"] == names.CONTAINER
            for port in container["ports"]
        }
        host = pod["status"].get("podIP", "")
        try:
            socket.create_connection((host, port), _DIRECT_SECONDS).close()
            return f"{host}:{port}"
        except ConnectionRefusedError:
            return ""
        except OSError:
            log.debug("no direct way to %s", host)
        if self._forward is not None:
            self._forward.close()
        self._forward = Forward(self._api, pod["metadata"]["name"], port)
        return self._forward.address

    # --- its end ---------------------------------------------------------------------------------

    def end(self, timeout_seconds: float) -> JobStatus | None:
        """Wait until the Job is finished or deleted."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                job = self._job()
                if self._has_ended(job):
                    return self._last_picture(job)
            except ApiError as error:
                log.debug("nobody knows, and the job does not notice: %s", error)
            if time.monotonic() >= deadline:
                return None
            time.sleep(min(_LOOK_SECONDS, max(0.0, deadline - time.monotonic())))

    def _job(self) -> Resource:
        """Return the Job; {} if it was deleted."""
        try:
            return self._api.get(self._api.path("jobs", self._job_name))
        except ApiError as error:
            if error.code == 404:
                return {}
            raise

    def _has_ended(self, job: Resource) -> bool:
        """Return whether a job has ended, or is suspended and its processes are gone."""
        if not job or self._condition(job) is not None:
            return True
        return _is_suspended(job) and bool(_picture(job)) and not any(map(_is_there, self._pods()))

    def _condition(self, job: Resource) -> Resource | None:
        for condition in job["status"].get("conditions", []):
            if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
                found: Resource = condition
                return found
        return None

    def _last_picture(self, job: Resource) -> JobStatus:
        status = no_status(self._job_name, 0)
        if not job:
            return dataclasses.replace(status, status="failed", message="the job was deleted")
        condition = self._condition(job)
        if picture := _picture(job):
            status = messages.status_from_json(picture)
            if condition is None:
                return dataclasses.replace(status, status="suspended", message=_RESUME)
            if status.status in ENDED:
                return status
        assert condition is not None
        if condition["type"] == "Complete":
            return dataclasses.replace(status, status="finished")
        message = self._words_of_master() or condition.get("message", "the job has failed")
        return dataclasses.replace(status, status="failed", message=message)

    def before(self) -> JobStatus | None:
        """Return what a master that was suspended has stored with its Job."""
        job = self._job()
        picture = _picture(job) if job else ""
        return messages.status_from_json(picture) if picture else None

    def waiting(self) -> str:
        """Return why no master of the job runs now; "" if one runs, or the job has ended."""
        job = self._job()
        if self._has_ended(job):
            return ""
        if _is_suspended(job):
            if left := sum(map(_is_there, self._pods())):
                return f"suspending: {left} of its pods hand over what they have and go"
            queue = _queue(job)
            return f"it waits in the queue {queue}" if queue else "its Job is suspended"
        pod = self._newest(Role.MASTER, 0)
        if pod is None:
            return self._refusal(job) or "it has no pod yet"
        match observe(pod):
            case Waiting(words):
                return words or "its pod is being started"
            case PodEnded():
                return self._refusal(job) or "another pod is to be made for its master"
            case _:
                return self._master_before(pod)

    def _master_before(self, pod: Resource) -> str:
        """Return a note that the master in another pod still runs; "" if there is none."""
        role = {names.ROLE_LABEL: str(Role.MASTER)}
        others = [
            other
            for other in self._pods()
            if role.items() <= other["metadata"]["labels"].items()
            and other["metadata"]["name"] != pod["metadata"]["name"]
            and _is_there(other)
        ]
        return "the master before is still leaving" if others else ""

    def _words_of_master(self) -> str:
        pod = self._newest(Role.MASTER, 0)
        ended = observe(pod) if pod is not None else None
        if not isinstance(ended, PodEnded):
            return ""
        words = last_words(ended.log.splitlines()) or ended.why
        how = "" if ended.reason is ExitReason.FAILED else f"the master: {ended.reason}; "
        return f"{how}{words}"

    # --- its processes ---------------------------------------------------------------------------

    def processes(self) -> list[tuple[Role, int]]:
        """Return the processes that have pods."""
        found = {
            (Role(labels[names.ROLE_LABEL]), int(labels[names.INDEX_LABEL]))
            for labels in (pod["metadata"]["labels"] for pod in self._pods())
            if labels.get(names.ROLE_LABEL) in tuple(Role)
        }
        return sorted(found, key=lambda one: (list(Role).index(one[0]), one[1]))

    def logs(self, role: Role, index: int, follow: bool) -> Iterator[str]:
        """Yield the log of a process: the log of its newest pod, and of the pods after it.

        `follow` waits for a process that has no pod yet.
        """
        name = process.process_name(role, index)
        told: set[str] = set()
        while True:
            try:
                has_ended = self._has_ended(self._job())
                pod = self._newest(role, index)
            except ApiError as error:
                self._wait_after(error, follow)
                continue
            if pod is None and not told and (has_ended or not follow):
                raise LaunchError(f"the job {self.name} has no pod of {name}")
            if pod is not None and pod["metadata"]["name"] not in told:
                if not isinstance(observe(pod), Waiting):
                    found = str(pod["metadata"]["name"])
                    told.add(found)
                    yield from self._followed(found) if follow else self._log(found)
                elif not follow:
                    raise LaunchError(f"{name} has not begun")
            if has_ended or not follow:
                return
            time.sleep(_LOOK_SECONDS)

    def _log(self, pod_name: str) -> Iterator[str]:
        try:
            yield from self._stream(pod_name, container=names.CONTAINER)
        except ApiError as error:
            raise LaunchError(f"the log of {pod_name} cannot be read: {error}") from error

    def _followed(self, pod_name: str) -> Iterator[str]:
        """Yield the log of a pod up to its end.

        The API server, or a proxy before it, ends a stream now and then. Then the log is read again
        from the second of the last line.
        """
        query: dict[str, str | bool] = {"container": names.CONTAINER, "timestamps": True}
        last = ""
        while True:
            runs = self._runs(pod_name)  # if it has ended, this stream has the whole rest
            is_new = not last
            try:
                for line in self._stream(pod_name, follow=True, **query):
                    stamp, _, words = line.partition(" ")
                    is_new = is_new or stamp > last
                    if is_new:
                        last = query["sinceTime"] = stamp
                        yield words
            except ApiError as error:
                if error.code == HTTPStatus.FORBIDDEN:
                    raise LaunchError(f"the log of {pod_name} cannot be read: {error}") from error
                # If the pod or its node is gone, the events after it tell the reason.
                log.debug("the log of %s broke off: %s", pod_name, error)
            if not runs:
                return
            time.sleep(_LOOK_SECONDS)

    def _stream(self, pod_name: str, **query: str | bool) -> Iterable[str]:
        path = f"{self._api.path('pods', pod_name)}/log"
        return self._api.stream(path, _SILENCE_SECONDS, **query)

    def _runs(self, pod_name: str) -> bool:
        """Return whether a pod may print more."""
        try:
            pods = [pod for pod in self._pods() if pod["metadata"]["name"] == pod_name]
        except ApiError:
            return True  # nobody knows
        return any(isinstance(observe(pod), PodRunning) for pod in pods)

    def events(self, follow: bool, since: float = 0.0, with_beats: bool = False) -> Iterator[Event]:
        """Yield the events that the master remembers, and why the master's pod does not start.

        For a job that has ended there is no master to ask, so the events come from the master's
        log.
        """
        yield from self._until_it_begins(follow)
        while True:
            try:
                if self._has_ended(self._job()):
                    break
                with contextlib.closing(self.connect(self._connect_seconds)) as client:
                    for event in client.events(follow, since, self._connect_seconds, with_beats):
                        since = math.nextafter(event["time"], math.inf)
                        yield event
                return
            except UnavailableError as error:
                log.debug("the events go on with the next master: %s", error)
                if not follow:
                    break
            except ApiError as error:
                self._wait_after(error, follow)
        yield from self._logged_events(since)

    def _wait_after(self, error: ApiError, follow: bool) -> None:
        """Wait before the API server is asked again, if its failure may pass; else raise it."""
        if not follow or not error.is_transient:
            raise error
        log.debug("what the job does is asked again: %s", error)
        time.sleep(_LOOK_SECONDS)

    def _logged_events(self, since: float) -> Iterator[Event]:
        try:
            for line in self.logs(Role.MASTER, 0, follow=False):
                event = _event(line)
                if event is not None and event["time"] >= since:
                    yield event
        except LaunchError:
            return  # there is no log any more

    def _until_it_begins(self, follow: bool) -> Iterator[Event]:
        told = ""
        while True:
            try:
                job, pod = self._job(), self._newest(Role.MASTER, 0)
            except ApiError as error:
                self._wait_after(error, follow)
                continue
            observed = observe(pod) if pod is not None else Waiting(self._refusal(job))
            if not isinstance(observed, Waiting):
                return
            if observed.why and observed.why != told:
                told = observed.why
                text = f"the master waits: {told}"
                yield {"time": time.time(), "role": "supervisor", "event": "pending", "text": text}
            if self._has_ended(job) or not follow:
                return
            time.sleep(_LOOK_SECONDS)

    def _refusal(self, job: Resource) -> str:
        """Return why a Job has no pod: a quota, a policy, or a missing ServiceAccount."""
        # The events of an earlier Job of the same name stay for an hour.
        selector = f"involvedObject.uid={job.get('metadata', {}).get('uid')}"
        try:
            events = self._api.get(self._api.path("events"), fieldSelector=selector)["items"]
        except ApiError:
            return ""
        warnings = [event["message"] for event in events if event.get("type") == "Warning"]
        return warnings[-1] if warnings else ""

    def _pods(self) -> list[Resource]:
        selector = names.selector_of_job(self._job_name)
        found = self._api.get(self._api.path("pods"), labelSelector=selector)["items"]
        return sorted(found, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def _newest(self, role: Role, index: int) -> Resource | None:
        """Return the newest pod of a process; a pod that is being deleted is taken last."""
        wanted = {names.ROLE_LABEL: str(role), names.INDEX_LABEL: str(index)}
        found = [pod for pod in self._pods() if wanted.items() <= pod["metadata"]["labels"].items()]
        staying = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
        newest = staying or found
        return newest[-1] if newest else None

    # --- to end it -------------------------------------------------------------------------------

    def interrupt(self, at_once: bool = False) -> None:
        """Suspend the Job; the job goes on when the Job is no longer suspended.

        Kubernetes then asks the master to end, and the master ends the other pods in order. If
        there is no master, or if `at_once` is given, all pods are deleted here.

        Raises:
            LaunchError: The Job is in a queue, and the queue would resume it at once.
        """
        if queue := _queue(self._job()):
            raise LaunchError(
                f"the job {self.name} is in the queue {queue}, which would let it go on at once: "
                'expected kubectl patch of its Workload with {"spec": {"active": false}}, or '
                "elasticdl stop without --pause"
            )
        pod = self._newest(Role.MASTER, 0)
        has_master = pod is not None and isinstance(observe(pod), PodRunning)
        self._api.patch(self._api.path("jobs", self._job_name), {"spec": {"suspend": True}})
        if has_master and not at_once:
            return
        for pod in self._pods():
            path = self._api.path("pods", pod["metadata"]["name"])
            self._api.delete(path, grace_seconds=0 if at_once else None)

    def delete(self) -> None:
        """Delete the Job and all objects that it owns."""
        self._api.delete(self._api.path("jobs", self._job_name))


def _is_suspended(job: Resource) -> bool:
    return bool(job.get("spec", {}).get("suspend"))


def _queue(job: Resource) -> str:
    """Return the queue that decides whether a job runs; "" if there is none."""
    return str(job.get("metadata", {}).get("labels", {}).get(names.QUEUE_LABEL, ""))


def _picture(job: Resource) -> str:
    """Return the picture that a master has stored with its Job; "" if there is none."""
    return str(job["metadata"].get("annotations", {}).get(names.PICTURE_ANNOTATION, ""))


def _is_there(pod: Resource) -> bool:
    """Return whether a process may still run in a pod."""
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")


def _event(line: str) -> Event | None:
    """Return the event in a line of the master's log; None if the line has none."""
    if line.startswith("{"):
        try:
            words = json.loads(line)
            when, level, text = float(words["time"]), str(words["level"]), str(words["message"])
        except (ValueError, KeyError, TypeError):
            return None  # the user's code prints objects too
    elif found := _LINE.match(line):
        # Pods have no time zone but UTC.
        when = datetime.fromisoformat(f"{found[1]}+00:00").timestamp()
        level, text = found[2], found[3]
    else:
        return None
    if level not in _LEVELS:
        return None
    return {"time": when, "role": "master", "index": 0, "event": level.lower(), "text": text}

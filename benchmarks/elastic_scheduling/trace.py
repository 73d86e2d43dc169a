"""What happened to the pods of a namespace, and when: followed while it happens, then measured."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from elasticdl.settings.pods import parse_quantity
from scripts.cluster.api import ApiError, Object
from scripts.cluster.namespace import Namespace

FOREVER = float("inf")
_RETRY_SECONDS = 0.2
_OVER = ("Succeeded", "Failed")


@dataclass(frozen=True)
class PodTimes:
    """A pod, and when things were seen of it, in seconds since 1970; infinite if never.

    group: the job it belongs to, or "service". cpus: what it requests. placed: it has a node.
    running: its process began. ended: its process is gone, and what it held is free.
    """

    name: str
    group: str
    role: str
    cpus: float
    created: float
    placed: float = FOREVER
    running: float = FOREVER
    ended: float = FOREVER


@dataclass(frozen=True)
class Span:
    """From when to when so many CPUs were held, or used."""

    begin: float
    end: float
    cpus: float


class Trace:
    """Follows the pods of a namespace in a thread, from now to the end of the block."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._lock = threading.Lock()
        self._pods: dict[str, PodTimes] = {}
        self._is_closing = False
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Trace:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closing = True  # the thread goes with the process: a watch cannot be cut short

    def pods(self) -> list[PodTimes]:
        """Return what is known so far."""
        with self._lock:
            return list(self._pods.values())

    def free(self, capacity: float) -> float:
        """Return how many CPUs no pod holds that was placed."""
        taken = (pod.cpus for pod in self.pods() if pod.placed < FOREVER and pod.ended == FOREVER)
        return capacity - sum(taken)

    def _follow(self) -> None:
        api, path = self._namespace.cluster.api, self._namespace.path("pods")
        while not self._is_closing:
            try:
                listed = api.get(path)
                for pod in listed["items"]:
                    self._see(pod, is_gone=False)
                for kind, pod in api.watch(path, listed["metadata"]["resourceVersion"]):
                    if kind != "BOOKMARK":
                        self._see(pod, is_gone=kind == "DELETED")
                    if self._is_closing:
                        return
            except (ApiError, OSError):
                time.sleep(_RETRY_SECONDS)  # what was missed meanwhile is listed

    def _see(self, pod: Object, is_gone: bool) -> None:
        now, uid, phase = time.time(), pod["metadata"]["uid"], pod["status"].get("phase")
        with self._lock:
            times = self._pods.get(uid) or _new(pod, now)
            if pod["spec"].get("nodeName"):
                times = replace(times, placed=min(times.placed, now))
            if phase == "Running":
                times = replace(times, running=min(times.running, now))
            if is_gone or phase in _OVER:
                times = replace(times, ended=min(times.ended, now))
            self._pods[uid] = times


def _new(pod: Object, now: float) -> PodTimes:
    labels = pod["metadata"].get("labels", {})
    requests = [each["resources"].get("requests", {}) for each in pod["spec"]["containers"]]
    return PodTimes(
        name=pod["metadata"]["name"],
        group=labels.get("elasticdl-job-name") or labels.get("app", ""),
        role=labels.get("elasticdl-replica-type", ""),
        cpus=float(sum(parse_quantity(request.get("cpu", "0")) for request in requests)),
        created=now,
    )


def held(pods: Iterable[PodTimes]) -> list[Span]:
    """Return what was held by processes that ran."""
    return [Span(pod.running, pod.ended, pod.cpus) for pod in pods if pod.running < FOREVER]


def steps(folder: Path, cpus: float) -> list[Span]:
    """Return the steps that the pods of a job have noted, oldest end first."""
    spans = []
    for path in folder.iterdir():
        for line in path.read_text().splitlines():
            words = line.split()
            if len(words) == 2:  # else its writer was killed in the middle of it
                spans.append(Span(float(words[0]), float(words[1]), cpus))
    return sorted(spans, key=lambda span: span.end)


def mean_cpus(spans: Iterable[Span], begin: float, end: float) -> float:
    """Return how many CPUs the spans hold on average from `begin` to `end`."""
    total = sum(span.cpus * max(0.0, min(span.end, end) - max(span.begin, begin)) for span in spans)
    return total / (end - begin)


def series(
    spans: Sequence[Span], begin: float, end: float, seconds: float = 1.0
) -> list[list[float]]:
    """Return [seconds since `begin`, mean CPUs from there on] of pieces of so many seconds."""
    found, start = [], begin
    while start < end:
        stop = min(end, start + seconds)
        found.append([round(start - begin, 3), round(mean_cpus(spans, start, stop), 4)])
        start += seconds
    return found


def first_reached(spans: Sequence[Span], cpus: float, after: float) -> float:
    """Return the first moment from `after` on at which so many CPUs are held; infinite if never."""
    moments = sorted({after, *(span.begin for span in spans if span.begin > after)})
    for moment in moments:
        now = sum(span.cpus for span in spans if span.begin <= moment < span.end)
        if now >= cpus - 1e-9:
            return moment
    return FOREVER

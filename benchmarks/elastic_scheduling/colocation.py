"""A service of high priority, whose replicas follow a load curve, beside one elastic job.

The job's master and ps replica have the service's priority and stay. Its workers have low priority:
the scheduler preempts them when the service grows, and those that wait for room get it when the
service shrinks. The service's replicas do nothing; what is measured is who holds the CPUs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from scripts.cluster.api import MERGE
from scripts.cluster.cluster import Cluster

from .jobs import Arena, Work, wait_until
from .trace import (
    FOREVER,
    PodTimes,
    Span,
    Trace,
    first_reached,
    held,
    mean_cpus,
    series,
    steps,
)

CPUS, REPLICA_CPUS = 24, 2
JOB, SERVICE = "training", "service"
_APPS = "apis/apps/v1"
_FULL_SECONDS, _RUN_SECONDS = 120.0, 60.0
_SLEEPER = "import signal, sys; signal.signal(15, lambda *_: sys.exit(0)); signal.pause()"


@dataclass(frozen=True)
class Case:
    """An experiment. curve: (seconds, replicas) of each part of the load curve."""

    work: Work
    curve: tuple[tuple[float, int], ...]


@dataclass(frozen=True)
class Change:
    """When the service was given another number of replicas."""

    time: float
    before: int
    after: int


def run(cluster: Cluster, case: Case) -> dict[str, Any]:
    """Follow the load curve, and return what was seen."""
    with Arena(cluster, "colocation") as arena, Trace(arena.namespace) as trace:
        manifests = arena.prepare(JOB, case.work)
        replicas = case.curve[0][1]
        arena.namespace.create("deployments", deployment(replicas), _APPS)
        arena.submit(manifests)
        wait_until(
            lambda: _held_now(trace) >= CPUS and _all_work(arena, trace),
            _FULL_SECONDS,
            "a full cluster, with all workers at work",
        )
        begin, changes = time.time(), []
        for seconds, wanted in case.curve:
            if wanted != replicas:
                changes.append(Change(time.time(), replicas, wanted))
                path = arena.namespace.path("deployments", SERVICE, group=_APPS)
                arena.namespace.cluster.api.patch(path, {"spec": {"replicas": wanted}}, MERGE)
                replicas = wanted
            until = time.time() + seconds
            wait_until(lambda until=until: time.time() >= until, seconds + 1, "the time")
        end, pods = time.time(), trace.pods()
        working = steps(arena.steps_of(JOB), float(case.work.cpus))
        arena.delete(JOB)
    return measure(pods, working, changes, begin, end)


def deployment(replicas: int) -> dict[str, Any]:
    """Return the service as Kubernetes is asked for it."""
    labels = {"app": SERVICE}
    container = {
        "name": "main",
        "image": "service",
        "command": ["python", "-c", _SLEEPER],
        "resources": {"requests": {"cpu": str(REPLICA_CPUS), "memory": "64Mi"}},
    }
    pod = {"containers": [container], "priorityClassName": "high"}
    return {
        "metadata": {"name": SERVICE},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def measure(
    pods: list[PodTimes], working: list[Span], changes: list[Change], begin: float, end: float
) -> dict[str, Any]:
    """Return what the experiment is judged by."""
    all_spans = held(pods)
    until_service = [
        pod.running - change.time
        for change in changes
        if change.after > change.before
        for pod in pods
        if pod.group == SERVICE
        and change.time <= pod.created < change.time + _RUN_SECONDS
        and pod.created < _next(changes, change, end)
    ]
    return {
        "seconds": end - begin,
        "mean utilisation, of pods that run": mean_cpus(all_spans, begin, end) / CPUS,
        "least utilisation in a second": min(cpus for _, cpus in series(all_spans, begin, end))
        / CPUS,
        "mean utilisation, of steps and replicas": mean_cpus(
            [*working, *(_spans_of(pods, SERVICE))], begin, end
        )
        / CPUS,
        "seconds until a service replica runs": sorted(round(s, 3) for s in until_service),
        "seconds until freed CPUs are used again": [
            round(seconds, 3) for seconds in _until_used_again(pods, changes, end)
        ],
        "workers that were preempted or replaced": sum(
            1 for pod in pods if pod.role == "worker" and pod.running < FOREVER and pod.ended < end
        ),
        "CPUs held": {name: series(_spans_of(pods, name), begin, end) for name in (SERVICE, JOB)},
        "changes": [[round(each.time - begin, 3), each.after] for each in changes],
    }


def _until_used_again(pods: list[PodTimes], changes: list[Change], end: float) -> list[float]:
    """Return for each time that the service shrank how long its CPUs were free."""
    found = []
    for change in changes:
        if change.after >= change.before:
            continue
        limit = _next(changes, change, end)
        ends = [
            pod.ended for pod in pods if pod.group == SERVICE and change.time <= pod.ended < limit
        ]
        if ends:
            found.append(first_reached(held(pods), CPUS, after=max(ends)) - max(ends))
    return found


def _next(changes: list[Change], change: Change, end: float) -> float:
    later = [each.time for each in changes if each.time > change.time]
    return min(later, default=end)


def _spans_of(pods: list[PodTimes], group: str) -> list[Span]:
    return held(pod for pod in pods if pod.group == group)


def _all_work(arena: Arena, trace: Trace) -> bool:
    """Whether each worker that runs has made a step."""
    running = sum(
        1 for pod in trace.pods() if pod.role == "worker" and pod.running < FOREVER <= pod.ended
    )
    return len(list(arena.steps_of(JOB).iterdir())) >= running


def _held_now(trace: Trace) -> float:
    return sum(pod.cpus for pod in trace.pods() if pod.running < FOREVER and pod.ended == FOREVER)

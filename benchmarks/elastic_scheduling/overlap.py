"""Two jobs of 13 units each on a cluster of 24: gang-scheduled, then elastic, the same work.

A unit is what each pod requests. *Gang*: each Job is suspended when it is submitted, and let go at
the first moment at which its 13 pods fit together, as a queue of whole jobs does (Kueue: a Job is
suspended until its quota is there). Once admitted nothing holds it up: it trains with those workers
that have begun, and does not wait for the last one, which favours the gang. *Elastic*: the same
Job, not suspended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scripts.cluster.cluster import Cluster

from .jobs import Arena, Work, wait_until
from .trace import FOREVER, PodTimes, Span, Trace, held, mean_cpus, series, steps

UNITS, JOBS = 24, ("first", "second")
NUM_WORKERS = 11
_PATIENCE_SECONDS = 1200.0


@dataclass(frozen=True)
class Case:
    """An experiment. unit: CPUs of a pod. later: seconds between the two submissions."""

    work: Work
    unit: float
    later: float


@dataclass
class JobTimes:
    """Moments of a job, in seconds since 1970."""

    submitted: float = FOREVER
    admitted: float = FOREVER
    ended: float = FOREVER
    unsound_records: int = -1


def run(cluster: Cluster, case: Case, is_gang: bool) -> dict[str, Any]:
    """Run both jobs to their ends, and return what was seen."""
    mode = "gang" if is_gang else "elastic"
    times = {name: JobTimes() for name in JOBS}
    with Arena(cluster, f"overlap-{mode}") as arena, Trace(arena.namespace) as trace:
        prepared = {name: arena.prepare(name, case.work) for name in JOBS}

        def submit(name: str) -> None:
            times[name].submitted = time.time()
            arena.submit(prepared[name], is_suspended=is_gang)
            if not is_gang:
                times[name].admitted = times[name].submitted

        def admit() -> None:
            """Let the job go that has waited longest, if all of it fits."""
            waiting = [name for name in JOBS if times[name].submitted < FOREVER]
            waiting = [name for name in waiting if times[name].admitted == FOREVER]
            if waiting and trace.free(UNITS * case.unit) >= case.work.num_pods * case.unit - 1e-6:
                times[waiting[0]].admitted = time.time()
                arena.resume(waiting[0])

        _until_both_end(arena, case, times, submit, admit)
        pods = trace.pods()
        spans = {name: steps(arena.steps_of(name), case.unit) for name in JOBS}
    return _measure(case, times, pods, spans)


def _until_both_end(
    arena: Arena,
    case: Case,
    times: dict[str, JobTimes],
    submit: Callable[[str], None],
    admit: Callable[[], None],
) -> None:
    first, second = JOBS
    submit(first)
    begin = times[first].submitted

    def all_have_ended() -> bool:
        if times[second].submitted == FOREVER and time.time() >= begin + case.later:
            submit(second)
        admit()
        for name, job in times.items():
            if job.admitted < FOREVER and job.ended == FOREVER:
                _note_end(arena, name, job)
        return all(job.ended < FOREVER for job in times.values())

    wait_until(all_have_ended, _PATIENCE_SECONDS, "the end of both jobs")


def _note_end(arena: Arena, name: str, job: JobTimes) -> None:
    status = arena.end_of(name)
    if status is not None:
        job.ended = time.time()
        job.unsound_records = sum(epoch.repeated + epoch.lost for epoch in status.ledger)


def _measure(
    case: Case,
    times: dict[str, JobTimes],
    pods: list[PodTimes],
    spans: dict[str, list[Span]],
) -> dict[str, Any]:
    begin, end = times[JOBS[0]].submitted, max(job.ended for job in times.values())
    units = [Span(span.begin, span.end, span.cpus / case.unit) for span in held(pods)]
    working = [
        Span(span.begin, span.end, span.cpus / case.unit)
        for of_job in spans.values()
        for span in of_job
    ]
    return {
        "jobs": {name: _of_job(name, job, begin, pods, spans[name]) for name, job in times.items()},
        "seconds": end - begin,
        "mean utilisation, of pods that run": mean_cpus(units, begin, end) / UNITS,
        "mean utilisation, of steps under way": mean_cpus(working, begin, end) / UNITS,
        "units held": {
            name: series(
                [
                    Span(pod.running, pod.ended, 1.0)
                    for pod in pods
                    if pod.group == name and pod.running < FOREVER
                ],
                begin,
                end,
            )
            for name in JOBS
        },
    }


def _of_job(
    name: str, job: JobTimes, begin: float, pods: list[PodTimes], spans: list[Span]
) -> dict[str, Any]:
    own = [pod for pod in pods if pod.group == name]
    first = spans[0].end
    return {
        "submitted": job.submitted - begin,
        "admitted": job.admitted - begin,
        "ended": job.ended - begin,
        "seconds from submit to the first finished minibatch": first - job.submitted,
        "seconds from the first pod placed to it": first - min(pod.placed for pod in own),
        "seconds from admission to it": first - job.admitted,
        "most units held": max(
            units
            for _, units in series(
                [Span(pod.running, pod.ended, 1.0) for pod in own], job.submitted, job.ended
            )
        ),
        "steps": len(spans),
        "records not trained exactly once": job.unsound_records,
    }

"""Finds what bounds the speed of a job, and what to change, from the waiting of its workers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from elasticdl.job import SLOW_READING, Label, Role
from elasticdl.packages.page.history.fold import History

LEAST_SECONDS = 2.0
"""The seconds of training and waiting of all workers that are needed for a result."""

BUSY_SHARE = 0.6
"""If a ps replica works for this share of its time, its workers wait for it."""

_ADVICE = {
    "computing": "More workers (--num_workers), more threads (--worker_threads), or a larger "
    "--minibatch_size make it faster.",
    "reading": "A feed that works on many records at once, a format that is cheaper to decode "
    "(elasticdl data convert), or more workers make it faster.",
    "ps replica": "More ps replicas (--num_ps_pods) share the work.",
    "network": "A larger --minibatch_size, fewer pulls of the dense parameters "
    "(--get_model_steps), a faster network to the ps replicas, or, on one machine, no more "
    "processes than cores make it faster.",
    "the other workers": "A larger --minibatch_size, a faster network, or workers of equal speed "
    "make it faster.",
    "staleness": "A larger --max_staleness, or --use_async=true, lets workers run ahead.",
}


_OF = "of the time in which they train or wait"
_FEW_CORES = (
    "Its machine has too few cores for its processes: run fewer processes there, or give ps "
    "replicas machines of their own."
)
_LEAST_WORK = 0.05  # a ps replica that hardly works is not in the way, however it waits


@dataclass(frozen=True)
class Bound:
    """The bound of a job's speed.

    stage: computing, reading, ps replica, network, staleness or the other workers.
    share: The share of the workers' time of training and waiting that it took.
    text, advice: Words for people.
    """

    stage: str
    share: float
    text: str
    advice: str

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return dict(self.__dict__)


def bound_of(history: History) -> Bound | None:
    """Return the bound of a job; None if it has trained for too short a time."""
    names = [str(x) for x in (Label.TRAIN, Label.WAIT_FOR_DATA, Label.WAIT_FOR_PARAMETERS)]
    sums = dict.fromkeys(names, 0.0)
    for lane in history.lanes:
        if lane.role == Role.WORKER:
            for name in names:
                sums[name] += lane.seconds.get(name, 0.0)
    active = sum(sums.values())
    if active < LEAST_SECONDS:
        return None
    train, data, parameters = (sums[name] / active for name in names)
    if train >= max(data, parameters):
        return _bound(
            "computing",
            train,
            f"workers compute for {train:.0%} of the time in which they train or wait",
        )
    if data >= parameters:
        found = _bound(
            "reading",
            data,
            f"workers wait for data for {data:.0%} of the time in which they train or wait",
        )
        causes = (line.partition(SLOW_READING)[2] for line in history.data)
        cause = next(filter(None, causes), "")
        return replace(found, advice=f"{cause[:1].upper()}{cause[1:]}.") if cause else found
    return _of_parameters(history, parameters)


def _of_parameters(history: History, share: float) -> Bound:
    """Distinguish a busy ps replica, a slow way to it, and workers that wait for each other."""
    waits = f"workers wait for parameters for {share:.0%} {_OF}"
    # Without ps replicas, parameters come from the other workers alone.
    if all(lane.role != Role.PS for lane in history.lanes):
        return _bound("the other workers", share, f"{waits}: for the gradients of each other")
    busy, waiting, name = _busiest_replica(history)
    stages = history.stages
    if stages.get("staleness wait", 0.0) > stages.get("pull", 0.0) + stages.get("push", 0.0):
        return _bound("staleness", share, f"{waits}, because the staleness is bounded")
    works = f"{name} works for {busy:.0%} of its"
    if busy >= BUSY_SHARE:
        return _bound("ps replica", share, f"{waits}, and {works}")
    if busy + waiting >= BUSY_SHARE and busy >= _LEAST_WORK:
        text = f"{waits}, and {works}, and waits for a core for {waiting:.0%}"
        return replace(_bound("ps replica", share, text), advice=_FEW_CORES)
    text = f"{waits}, and no ps replica works for more than {busy:.0%}"
    if all(lane.address.startswith("127.") for lane in history.lanes if lane.role == Role.PS):
        way = _bound("network", share, text)
        return replace(way, text=way.text.replace("bound by network", "bound by exchanges"))
    return _bound("network", share, f"{waits}, and no ps replica works for more than {busy:.0%}")


def _busiest_replica(history: History) -> tuple[float, float, str]:
    """Return for which shares of time a ps replica works and waits for a core; and its name."""
    found = [(0.0, 0.0, "")]
    for lane in history.lanes:
        if lane.role == Role.PS:
            worked = lane.seconds.get(str(Label.TRAIN), 0.0)
            served = worked + lane.seconds.get(str(Label.IDLE), 0.0)
            if served:
                waited = float(lane.usage.get("core_wait_seconds", 0.0))
                waiting = min(waited, served - worked) / served
                found.append((worked / served, waiting, lane.name))
    return max(found, key=lambda one: (one[0] + one[1], one))


def _bound(stage: str, share: float, text: str) -> Bound:
    return Bound(stage, round(share, 4), f"The job is bound by {stage}: {text}.", _ADVICE[stage])

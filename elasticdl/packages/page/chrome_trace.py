"""Spans of workers and ps replicas as a Chrome trace, which Perfetto and chrome://tracing open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from elasticdl.job import Role

_JOINED = {
    "Pull": "pull",
    "Push": "push",
    "Stage": "push",
    "PushPull": "push",
}
"""The stage of a worker by the request that it sends to a ps replica."""


def trace(profiles: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one trace of the recorded spans of processes; its times begin with the first span.

    Workers come first, ps replicas below them. An arrow joins the work of a replica for a minibatch
    with the stage of the worker that asked for it. Replicas record for longer, so only their spans
    within the time of the workers are included.

    Args:
        profiles: The name and the spans of each process, as `elasticdl.worker.profile` and
            `elasticdl.ps.profile` write them.
    """
    profiles = sorted(profiles, key=lambda one: (_is_replica(one), str(one["process"])))
    of_workers = [span for p in profiles if not _is_replica(p) for span in p["spans"]]
    first = min((span["began"] for span in of_workers), default=0.0)
    last = max((span["ended"] for span in of_workers), default=0.0)
    events: list[dict[str, Any]] = []
    asked: dict[tuple[str, int, int], dict[str, Any]] = {}
    for number, profile in enumerate(profiles, 1):
        spans = [s for s in profile["spans"] if s["began"] >= first and s["ended"] <= last]
        events.append(_name("process_name", number, 0, str(profile["process"])))
        order = {"sort_index": number}
        events.append(
            {"ph": "M", "name": "process_sort_index", "pid": number, "tid": 0, "args": order}
        )
        threads = {span["thread"]: str(span["thread_name"]) for span in spans}
        events += [_name("thread_name", number, ident, name) for ident, name in threads.items()]
        for span in spans:
            event = _event(span, number, first)
            events.append(event)
            place = (span["task"], span["minibatch"])
            if not _is_replica(profile):
                asked[(span["stage"], *place)] = event
            elif (stage := asked.get((_JOINED.get(span["stage"], ""), *place))) is not None:
                events += _arrow(stage, event, len(events))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _is_replica(profile: Mapping[str, Any]) -> bool:
    return str(profile["process"]).startswith(f"{Role.PS}-")


def _event(span: Mapping[str, Any], pid: int, first: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": span["stage"],
        "cat": "stage",
        "pid": pid,
        "tid": span["thread"],
        "ts": round((span["began"] - first) * 1e6, 3),
        "dur": round((span["ended"] - span["began"]) * 1e6, 3),
        "args": {name: span[name] for name in ("task", "minibatch") if span[name] >= 0},
    }


def _arrow(
    begin: Mapping[str, Any], end: Mapping[str, Any], ident: int
) -> Iterator[dict[str, Any]]:
    """Yield the two ends of an arrow between two spans."""
    for phase, at in (("s", begin), ("f", end)):
        arrow = {"ph": phase, "name": "asks", "cat": "step", "id": ident}
        place = {name: at[name] for name in ("pid", "tid", "ts")}
        yield {**arrow, **place, **({"bp": "e"} if phase == "f" else {})}


def _name(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}

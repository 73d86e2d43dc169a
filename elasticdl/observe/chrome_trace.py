"""Spans of workers as a Chrome trace, which Perfetto and chrome://tracing open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def trace(profiles: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one trace of what processes have recorded; its times begin with the first span.

    Args:
        profiles: Of each process its name and its spans, as `elasticdl.worker.profile` writes them.
    """
    profiles = list(profiles)
    first = min((span["began"] for p in profiles for span in p["spans"]), default=0.0)
    events: list[dict[str, Any]] = []
    for number, profile in enumerate(sorted(profiles, key=lambda one: str(one["process"])), 1):
        events.append(_name("process_name", number, 0, str(profile["process"])))
        threads = {span["thread"]: str(span["thread_name"]) for span in profile["spans"]}
        events += [_name("thread_name", number, ident, name) for ident, name in threads.items()]
        for span in profile["spans"]:
            place = {name: span[name] for name in ("task", "minibatch") if span[name] >= 0}
            events.append(
                {
                    "ph": "X",
                    "name": span["stage"],
                    "cat": "stage",
                    "pid": number,
                    "tid": span["thread"],
                    "ts": round((span["began"] - first) * 1e6, 3),
                    "dur": round((span["ended"] - span["began"]) * 1e6, 3),
                    "args": place,
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _name(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}

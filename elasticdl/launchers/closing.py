"""Ends the processes of a job for a launcher of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Condition
from typing import Protocol, TypeVar

from elasticdl.launchers.base import ProcessHandle

_GONE_SECONDS = 10.0  # a process may take so long to be gone after its grace


class _Watched(Protocol):
    handle: ProcessHandle


_Kind = TypeVar("_Kind", bound=_Watched)


def stop_all(
    watched: Mapping[str, _Kind],
    changed: Condition,
    stop: Callable[[ProcessHandle, float], None],
    grace_seconds: float,
) -> list[_Kind]:
    """Stop all processes, and wait until they are gone; return those that are left.

    Args:
        watched: The processes that are not gone; none is added any more.
        changed: Guards `watched`, and is notified when one is gone.
        stop: Asks a process to end, and kills it after the grace period.
        grace_seconds: The grace period.
    """
    with changed:
        handles = [each.handle for each in watched.values()]
    for handle in handles:
        stop(handle, grace_seconds)
    with changed:
        changed.wait_for(lambda: not watched, grace_seconds + _GONE_SECONDS)
        return list(watched.values())

"""How often processes send heartbeats, so that many of them do not keep the master busy."""

from __future__ import annotations

CALLS_PER_SECOND = 200.0
"""What all heartbeats of a job may cost the master: some percent of a core."""

_STEP = 1.25


def interval_seconds(num_members: int, least_seconds: float) -> float:
    """Return the time between two heartbeats of one process.

    It changes in steps, not with each process that comes or goes.

    Args:
        num_members: Processes that send some.
        least_seconds: What the user asked for (`--heartbeat_seconds`).
    """
    wanted, interval = num_members / CALLS_PER_SECOND, least_seconds
    while interval < wanted:
        interval *= _STEP
    return interval


def timeout_seconds(silence_seconds: float, least_seconds: float, interval: float) -> float:
    """Return how long a process may be silent that sends a heartbeat each `interval`.

    So long after its heartbeat was due as with the interval that the user asked for.

    Args:
        silence_seconds: What the user asked for (`--heartbeat_timeout_seconds`).
        least_seconds: The interval that the user asked for.
        interval: The one that the process was told, or says that it keeps.
    """
    return silence_seconds + max(0.0, interval - least_seconds)

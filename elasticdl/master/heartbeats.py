"""How often processes send heartbeats, so that many of them do not keep the master busy."""

from __future__ import annotations

CALLS_PER_SECOND = 200.0
"""What all heartbeats of a job may cost the master: some percent of a core."""

_STEP = 1.25


def interval_seconds(num_members: int, least_seconds: float) -> float:
    """Return the time between two heartbeats of one process.

    The interval changes in steps, not with each process that comes or goes.

    Args:
        num_members: Processes that send heartbeats.
        least_seconds: The interval that the user asked for (`--heartbeat_seconds`).
    """
    wanted, interval = num_members / CALLS_PER_SECOND, least_seconds
    while interval < wanted:
        interval *= _STEP
    return interval


def timeout_seconds(silence_seconds: float, least_seconds: float, interval: float) -> float:
    """Return how long a process may be silent if it sends a heartbeat each `interval`.

    A longer interval makes the time longer by the difference. So the time after a heartbeat was
    due stays the same as with the user's interval.

    Args:
        silence_seconds: The silence that the user allows (`--heartbeat_timeout_seconds`).
        least_seconds: The interval that the user asked for.
        interval: The interval that the process was told, or says that it keeps.
    """
    return silence_seconds + max(0.0, interval - least_seconds)

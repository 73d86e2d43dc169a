"""Decides when a job gets one more ps replica (`--ps_autoscale`)."""

from __future__ import annotations

PAUSE_SECONDS = 60.0
"""The pause after a move, until the load of the replicas without a move is known."""

_FULL = 0.5
"""The share of the memory limit that is full. It leaves room for a move, during which a replica
holds its old rows and its new rows."""


class PsAutoscale:
    """Asks for one more ps replica at a time. It knows no clock, and nothing that is a fact."""

    def __init__(self, most: int) -> None:
        """Begin; `most` is the largest number of ps replicas, 0: the job never grows by itself."""
        self._most = most
        self._not_before = 0.0
        self._pause_seconds = PAUSE_SECONDS
        self._asked_at = 0  # number of replicas at the last request

    def why_more(
        self, number: int, is_moving: bool, is_busy: bool, fullest_share: float, now: float
    ) -> str:
        """Return why the job needs one more replica; "": it does not.

        Args:
            number: Ps replicas that there are.
            is_moving: Whether the model moves.
            is_busy: Whether workers wait for a replica that works nearly all of its time.
            fullest_share: Part of `--ps_memory_limit` that the rows of the fullest replica take.
            now: In any seconds.
        """
        if is_moving:
            self._not_before = now + self._pause_seconds
        if is_moving or number >= self._most or now < self._not_before:
            return ""
        if is_busy:
            why = "a ps replica works nearly all of its time, and workers wait for it"
        elif fullest_share >= _FULL:
            why = f"the rows of a ps replica take {fullest_share:.0%} of --ps_memory_limit"
        else:
            return ""
        # The number is still the same, so the last request came to nothing: the cluster may have
        # no room. Each further request waits twice as long.
        is_again = number == self._asked_at
        self._pause_seconds = 2 * self._pause_seconds if is_again else PAUSE_SECONDS
        self._asked_at, self._not_before = number, now + self._pause_seconds
        return why

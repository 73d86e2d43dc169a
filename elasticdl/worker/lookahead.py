"""How far ahead of the minibatch that is computed parameters are pulled, decided while it trains.

Pulling ahead hides the exchange with the ps replicas behind the computing, and its price is
staleness: a gradient comes later by each of the updates that were made meanwhile. Where the
exchange takes little beside the computing there is little to hide, and parameters are pulled late.
"""

from __future__ import annotations

WINDOW_MINIBATCHES = 16
NEGLIGIBLE_SHARE = 0.02
"""The share of the time of computing: an exchange that takes no more is not hidden at all."""
SMALL_SHARE = 0.25
"""An exchange that takes no more is hidden by one step ahead, also when it takes more at times."""


class Lookahead:
    """How many training steps may be in flight: one is computed, others are pulled or pushed."""

    def __init__(self, most: int) -> None:
        """Begin with all that are allowed.

        Args:
            most: So many at most.
        """
        self._most = most
        self._num_landed = 0
        self._computing = self._exchanging = 0.0  # when the window began
        self.num_in_flight = most

    def landed(self, computing: float, exchanging: float) -> None:
        """Note that a training step is through.

        Args:
            computing: Seconds that have been spent on computing so far.
            exchanging: Those on ids, pulls and pushes.
        """
        self._num_landed += 1
        if self._num_landed % WINDOW_MINIBATCHES:
            return
        is_first = self._num_landed == WINDOW_MINIBATCHES  # in it the framework compiles
        share = (exchanging - self._exchanging) / max(1e-9, computing - self._computing)
        self._computing, self._exchanging = computing, exchanging
        if not is_first:
            self.num_in_flight = min(self._most, _num_in_flight(share))


def _num_in_flight(share: float) -> int:
    if share <= NEGLIGIBLE_SHARE:
        return 1
    return 2 if share <= SMALL_SHARE else 3

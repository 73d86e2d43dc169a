"""Decides during training how far ahead of the computed minibatch parameters are pulled.

Pulling ahead hides the exchange with the ps replicas behind the computing. Its price is staleness:
other updates are made between the pull of parameters and the push of their gradient. Where the
exchange takes little time beside the computing, there is little to hide, so parameters are pulled
late.
"""

from __future__ import annotations

WINDOW_MINIBATCHES = 16
NEGLIGIBLE_SHARE = 0.02
"""The share of the time of computing: an exchange that takes no more is not hidden at all."""
SMALL_SHARE = 0.25
"""An exchange that takes no more is hidden by one step ahead, even if it takes longer at times."""


class Lookahead:
    """Decides how many training steps may be in flight.

    One step is computed while others are pulled or pushed.
    """

    def __init__(self, most: int) -> None:
        """Begin with the largest number.

        Args:
            most: The largest number of steps in flight.
        """
        self._most = most
        self._num_landed = 0
        self._computing = self._exchanging = 0.0  # when the window began
        self.num_in_flight = most

    def landed(self, computing: float, exchanging: float) -> None:
        """Note that a training step is through.

        Args:
            computing: Seconds that have been spent on computing so far.
            exchanging: Seconds that have been spent on ids, pulls and pushes so far.
        """
        self._num_landed += 1
        if self._num_landed % WINDOW_MINIBATCHES:
            return
        is_first = self._num_landed == WINDOW_MINIBATCHES  # in it the framework compiles
        # Only the last window counts: the share changes when workers come or go.
        share = (exchanging - self._exchanging) / max(1e-9, computing - self._computing)
        self._computing, self._exchanging = computing, exchanging
        if not is_first:
            self.num_in_flight = min(self._most, _num_in_flight(share))


def _num_in_flight(share: float) -> int:
    if share <= NEGLIGIBLE_SHARE:
        return 1
    return 2 if share <= SMALL_SHARE else 3

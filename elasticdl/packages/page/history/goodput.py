"""Goodput: the share of processes' seconds in training that counted, and causes of the rest.

A worker's second is good if it was spent on training a record that counted. All other seconds are
losses, each with a cause. The cause is the label of the second, or that records were trained again
because a restored ps replica lacked them. Good seconds and losses always add up to the time of the
processes: nothing is measured twice, and nothing is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from elasticdl.job import Label, Role
from elasticdl.packages.page.history.lanes import Lane

TRAINED_AGAIN = "trained again"


@dataclass(frozen=True)
class Goodput:
    """The use of the seconds of some processes.

    seconds: The seconds of all of them together.
    good: The seconds of training that counted.
    losses: The other seconds by cause, the largest first; `good` and these add up to `seconds`.
    """

    seconds: float
    good: float
    losses: Mapping[str, float]

    @property
    def share(self) -> float:
        """The share of good seconds, from 0 to 1; 0 if there is no time yet."""
        return self.good / self.seconds if self.seconds > 0.0 else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "seconds": self.seconds,
            "good": self.good,
            "share": self.share,
            "losses": dict(self.losses),
        }


def goodput_of(lanes: Iterable[Lane], share_again: float = 0.0) -> Goodput:
    """Return the goodput of the processes of some lanes.

    Args:
        lanes: The lanes, usually those of workers.
        share_again: The share of training that was of records trained before.
    """
    sums: dict[str, float] = {}
    for lane in lanes:
        for label, seconds in lane.seconds.items():
            sums[label] = sums.get(label, 0.0) + seconds
    trained = sums.pop(str(Label.TRAIN), 0.0)
    again = trained * min(1.0, max(0.0, share_again))
    losses = {**sums, TRAINED_AGAIN: again}
    ordered = sorted(losses.items(), key=lambda item: -item[1])
    shown = {cause: seconds for cause, seconds in ordered if seconds}
    total = trained - again + sum(shown.values())
    return Goodput(total, trained - again, shown)


def of_role(lanes: Iterable[Lane], role: Role, share_again: float = 0.0) -> Goodput:
    """Return the goodput of the processes of one role."""
    return goodput_of((lane for lane in lanes if lane.role == role), share_again)

"""What the time between two steps of an all-reduce job went to; pure, for `allreduce_join.py`.

Ranks wait for each other, so the time of one of them says little: most of it is waiting. What holds
all of them is the **slowest path**: from the end of the step back to whatever was waited for, and
on in the rank that came last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Interval:
    """Something that the ring's thread of one worker did.

    meeting: tells which call it is of those that end on no rank before all have come to it; "" if
        it waits for nobody.
    begin, end: seconds since 1970. processor: seconds of this thread. faults: pages that were new.
    """

    what: str
    meeting: str
    begin: float
    end: float
    processor: float = 0.0
    faults: int = 0


@dataclass(slots=True)
class Share:
    """What one thing has of a path: seconds of the clock, and of the processor; new pages."""

    seconds: float = 0.0
    processor: float = 0.0
    faults: float = 0.0

    def add(self, interval: Interval, seconds: float) -> None:
        """Add a part of an interval."""
        whole = max(interval.end - interval.begin, 1e-9)
        self.seconds += seconds
        self.processor += interval.processor * min(1.0, seconds / whole)
        self.faults += interval.faults * min(1.0, seconds / whole)


OTHER = "between these"


def slowest_path(
    timelines: Mapping[str, Sequence[Interval]], first: str, since: float, until: float
) -> dict[str, Share]:
    """Return what the time between two moments went to, on the path that all waited for.

    Args:
        timelines: One for each worker, in the order of time; no two intervals of one overlap.
        first: The worker that was the first to have made the step at `until`.
        since: When the step before was made.
        until: The end.
    """
    arrivals: dict[str, tuple[float, str]] = {}
    for worker, intervals in timelines.items():
        for interval in intervals:
            if interval.meeting:
                now = (interval.begin, worker)
                arrivals[interval.meeting] = max(now, arrivals.get(interval.meeting, now))
    shares: dict[str, Share] = {}
    worker, at = first, until
    while at > since:
        interval = _last_before(timelines[worker], at)
        if interval is None or interval.end <= since:
            _add(shares, Interval(OTHER, "", since, at), at - since)
            break
        if interval.end < at:
            _add(shares, Interval(OTHER, "", interval.end, at), at - interval.end)
            at = interval.end
        begin = interval.begin
        if interval.meeting and arrivals[interval.meeting][0] < at:
            begin, worker = arrivals[interval.meeting]
        begin = max(begin, since)
        _add(shares, interval, at - begin)
        at = begin
    return shares


def _last_before(intervals: Sequence[Interval], at: float) -> Interval | None:
    """Return the last interval that had begun before a moment, cut off there."""
    for interval in reversed(intervals):
        if interval.begin < at:
            return replace(interval, end=min(interval.end, at))
    return None


def _add(shares: dict[str, Share], interval: Interval, seconds: float) -> None:
    shares.setdefault(interval.what, Share()).add(interval, seconds)


def merged(paths: Iterable[Mapping[str, Share]]) -> dict[str, dict[str, float]]:
    """Return the means of several paths, the longest share first."""
    found = list(paths)
    whats = {what for path in found for what in path}
    means = {
        what: {
            name: round(
                sum(getattr(path.get(what, Share()), name) for path in found) / len(found), 4
            )
            for name in ("seconds", "processor", "faults")
        }
        for what in whats
    }
    return dict(sorted(means.items(), key=lambda item: -item[1]["seconds"]))

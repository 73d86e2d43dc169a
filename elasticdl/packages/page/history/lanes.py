"""The seconds of every process, by what it did: a lane for each place in the job.

A lane is a role and an index; processes follow each other in it. Its seconds come from the totals
in the events `usage`. Two labels complete them. A process that was lost is `UNHEARD` from its last
report until its loss was noticed. A process that is waited for is "pending".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from elasticdl.job import Event, Label, Role
from elasticdl.packages.page.history.bins import Bins, Row

UNHEARD = "not heard of"
LABELS = (*(str(label) for label in Label), UNHEARD)
"""The labels of a lane's seconds, in the order of a row's amounts."""

MOST_GONE = 1_000
"""Workers that have ended and keep lanes of their own; there may be twice as many for a while."""

BEFORE = -1
"""The index of the lane in which the workers are added up that ended before these."""

_NUMBER = {label: number for number, label in enumerate(LABELS)}
_ROLES = {role.words: role for role in Role if role is not Role.MASTER}
_NAME = re.compile(rf"({'|'.join(_ROLES)}) (\d+)")


@dataclass
class Lane:
    """One place in the job, and the process that is there.

    seconds: The seconds under each label, over all processes that were there.
    rates: Cores, and bytes sent and received a second, of the present process.
    totals: Processor seconds, and bytes sent and received, of all processes that were there.
    """

    role: str
    index: int
    row: Row
    state: str = "starting"  # starting, alive, leaving, left, lost
    label: str = ""
    pid: int = 0
    address: str = ""
    began: float = 0.0  # the process there now; 0: not heard of yet
    heard: float = 0.0
    pending_since: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    usage: Mapping[str, Any] = field(default_factory=dict)
    rates: tuple[float, float, float] = (0.0, 0.0, 0.0)
    totals: tuple[float, float, float] = (0.0, 0.0, 0.0)
    num_processes: int = 0
    stamp: int = 0

    @property
    def name(self) -> str:
        """The name of the lane in logs and on the command line."""
        if self.index == BEFORE:
            return f"earlier {self.role}s"
        return self.role if self.role == Role.MASTER else f"{self.role}-{self.index}"


class Lanes:
    """The lanes of a job."""

    def __init__(self, bins: Bins) -> None:
        self._bins = bins
        self._lanes: dict[tuple[str, int], Lane] = {}

    def __iter__(self) -> Any:
        order = {Role.MASTER: 0, Role.PS: 1, Role.MODEL_SERVER: 2, Role.WORKER: 3}
        return iter(sorted(self._lanes.values(), key=lambda x: (order[Role(x.role)], x.index)))

    def of(self, role: str, index: int) -> Lane:
        """Return a lane; make it when it is first asked for."""
        lane = self._lanes.get((role, index))
        if lane is None:
            lane = Lane(role, index, self._bins.row(len(LABELS)))
            self._lanes[role, index] = lane
        return lane

    def named(self, process: str) -> Lane | None:
        """Return the lane of a process by the master's name for it ("worker 3"), or None."""
        match = _NAME.fullmatch(process)
        if match is None:
            return None
        return self.of(str(_ROLES[match[1]]), int(match[2]))

    def used(self, lane: Lane, event: Event, stamp: int) -> None:
        """Add an event `usage`."""
        began, now = float(event["began"]), float(event["time"])
        is_new = began != lane.began
        if (began, now) <= (lane.began, lane.heard):
            return  # known, or a late word of a process that has a successor
        before = {} if is_new else lane.usage.get("label_seconds", {})
        since = began if is_new else lane.heard
        if is_new:
            # The launcher may not say that the process runs; its first report shows it.
            self._end_wait(lane, began, stamp)
            lane.num_processes += 1
            lane.began = began
        grown = {
            label: seconds - before.get(label, 0.0)
            for label, seconds in event["label_seconds"].items()
            if label in _NUMBER
        }
        self._add(lane, min(since, now), now, grown, stamp)
        self._rate(lane, event, is_new, now - since)
        lane.usage, lane.heard, lane.label = event, now, str(event["label"])
        if lane.role == Role.MASTER or (is_new and lane.state in ("lost", "left")):
            lane.state = "alive"

    def _rate(self, lane: Lane, event: Event, is_new: bool, passed: float) -> None:
        names = ("cpu_seconds", "bytes_sent", "bytes_received")
        before = {} if is_new else lane.usage
        cpu, sent, received = (
            max(0.0, float(event[name]) - float(before.get(name, 0.0))) for name in names
        )
        lane.totals = lane.totals[0] + cpu, lane.totals[1] + sent, lane.totals[2] + received
        if passed > 0.0:
            lane.rates = cpu / passed, sent / passed, received / passed

    def gone(self, lane: Lane, now: float, state: str, stamp: int) -> list[int]:
        """Note that the process of a lane has ended: it was "lost", or has "left".

        Returns:
            The workers whose lanes are no longer there. The index of a worker is never used again,
            and a job of months loses many workers.
        """
        self._end_wait(lane, now, stamp)
        lane.state, lane.stamp, lane.label = state, stamp, ""
        lane.rates = (0.0, 0.0, 0.0)
        if state == "lost" and lane.heard and now > lane.heard:
            self._add(lane, lane.heard, now, {UNHEARD: now - lane.heard}, stamp)
        lane.heard = max(lane.heard, now)
        workers = [x for x in self._lanes.values() if x.role == Role.WORKER and x.index != BEFORE]
        ended = [x for x in workers if x.state in ("lost", "left")]
        if len(ended) <= 2 * MOST_GONE:
            return []
        ended.sort(key=lambda x: x.heard)
        for each in ended[:-MOST_GONE]:
            self._merge(each, self.of(each.role, BEFORE), stamp)
        self._bins.generation += 1  # a page that is open begins anew
        return [each.index for each in ended[:-MOST_GONE]]

    def _merge(self, lane: Lane, into: Lane, stamp: int) -> None:
        """Add a lane to another one, and remove it."""
        del self._lanes[lane.role, lane.index]
        self._bins.remove(lane.row)
        into.row.amounts += lane.row.amounts
        into.row.stamps[:] = np.maximum(into.row.stamps, lane.row.stamps)
        for label, seconds in lane.seconds.items():
            into.seconds[label] = into.seconds.get(label, 0.0) + seconds
        cpu, sent, received = map(sum, zip(into.totals, lane.totals, strict=True))
        into.totals = cpu, sent, received
        into.num_processes += lane.num_processes
        into.state, into.heard, into.stamp = "left", lane.heard, stamp

    def pending(self, lane: Lane, now: float, stamp: int) -> None:
        """Note that the process of a lane is waited for."""
        lane.stamp = stamp
        if lane.pending_since is None:
            lane.pending_since, lane.state = now, "pending"

    def runs(self, lane: Lane, now: float, stamp: int) -> None:
        """Note that the process of a lane is no longer waited for."""
        self._end_wait(lane, now, stamp)
        lane.state, lane.stamp = "starting", stamp

    def _end_wait(self, lane: Lane, now: float, stamp: int) -> None:
        since, lane.pending_since = lane.pending_since, None
        if since is not None and now > since:
            self._add(lane, since, now, {str(Label.PENDING): now - since}, stamp)

    def _add(
        self, lane: Lane, begin: float, end: float, grown: Mapping[str, float], stamp: int
    ) -> None:
        amounts = np.zeros(len(LABELS))
        for label, seconds in grown.items():
            # `LabelClock.move` may take a little from a label, so a difference may be negative. The
            # sum is right.
            amounts[_NUMBER[label]] += seconds
            lane.seconds[label] = lane.seconds.get(label, 0.0) + seconds
        self._bins.add(lane.row, begin, end, amounts, stamp)
        lane.stamp = stamp

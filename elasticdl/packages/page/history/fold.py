"""The history of a job: it adds up events, in any order of processes.

It is pure: it uses no clock and no file. Its memory is bounded for a job of any length. Amounts are
in cells (`bins`); points and facts are thinned or dropped when there are many.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from elasticdl.job import Event, Role
from elasticdl.packages.page.history import goodput
from elasticdl.packages.page.history.best import Bests
from elasticdl.packages.page.history.bins import Bins
from elasticdl.packages.page.history.lanes import Lane, Lanes

MOST_POINTS = 1_000
MOST_FACTS = 2_000

RECORDS, LOSS_RECORDS, LOSS = range(3)  # the amounts of the row `progress`


@dataclass
class Points:
    """Things that were measured at times; every second one is dropped when there are many."""

    items: list[dict[str, Any]] = field(default_factory=list)
    _every: int = 1
    _count: int = 0

    def add(self, item: dict[str, Any]) -> None:
        """Add a point; the newest one is always kept until the next comes."""
        # The last point was only kept because it was the newest.
        if self._count % self._every and self.items:
            self.items.pop()
        self._count += 1
        self.items.append(item)
        if len(self.items) > MOST_POINTS:
            self.items = self.items[::2]
            self._every *= 2


@dataclass
class _Progress:
    """The last report of a worker process about its training."""

    time: float
    records: int
    loss: float
    stages: Mapping[str, float]


class History:
    """The history of a job, as far as its events were added.

    version: Grows with each event; each change gets it as its stamp.
    picture: The newest event `picture`.
    tables: The newest event `tables`.
    data: The findings of the look at the data before the first record.
    keys: How many keys of each table were "pulled" and "found" so far, over all ps replicas.
    """

    def __init__(self) -> None:
        self.version = 0
        self.bins = Bins()
        self.lanes = Lanes(self.bins)
        self.progress = self.bins.row(3)
        self.training, self.evaluations, self.learning_rates = Points(), Points(), Points()
        self.windows = Points()
        self.bests = Bests()
        self.checkpoints: list[dict[str, Any]] = []
        self.exports: list[dict[str, Any]] = []  # the newest version alone
        self.facts: list[dict[str, Any]] = []
        self.counts: Counter[str] = Counter()  # of facts, by kind
        self.picture: Event = {}
        self.tables: Event = {}
        self.keys: dict[str, Counter[str]] = {"pulled": Counter(), "found": Counter()}
        self.data: list[str] = []
        self.phase, self.message = "pending", ""
        self.ended: float | None = None
        self.latest = 0.0
        self.stages: dict[str, float] = {}
        self.num_lost: dict[str, int] = {}
        self._progress: dict[int, _Progress] = {}
        self._records_again = 0
        self._known: dict[str, Callable[[Event], None]] = {
            "usage": self._usage,
            "progress": self._progressed,
            "picture": self._pictured,
            "tables": self._tabled,
            "training metrics": self._measured,
            "evaluation": self._evaluated,
            "window": self._scored,
            "best evaluation": self.bests.said,
            "overfitting": self.bests.overfits,
            "learning rate": self._learns_at,
            "checkpoint": self._checkpointed,
            "version exported": self._exported,
            "phase": self._phase_began,
            "data check": self._data_checked,
            "resumed": self._resumed,
            "ended": self._ended,
            "registered": self._registered,
            "pending": self._pending,
            "runs": self._runs,
            "leaving": self._leaving,
            "left": self._gone,
            "lost": self._gone,
            "ps recovered": self._recovered,
        }

    @classmethod
    def of(cls, events: Iterable[Event]) -> History:
        """Return the sum of the events."""
        history = cls()
        for event in events:
            history.add(event)
        return history

    def add(self, event: Event) -> None:
        """Add an event; of an unknown kind, only its text is noted."""
        self.version += 1
        time, name = float(event["time"]), event["event"]
        self.latest = max(self.latest, time)
        if self.bins.began is None:
            self.bins.see(min(time, float(event.get("began", time))))
        self.bins.see(time)
        take = self._known.get(name)
        if take is not None:
            take(event)
        if "text" in event:
            self._tell(event)

    # --- what they add up to ---------------------------------------------------------------------

    @property
    def share_trained_again(self) -> float:
        """The share of the trained records that had been trained before."""
        trained = float(self.progress.amounts[:, RECORDS].sum())
        return min(1.0, self._records_again / trained) if trained else 0.0

    def goodput(self, role: Role | None = Role.WORKER) -> goodput.Goodput:
        """Return the goodput of the processes of a role, or of all processes."""
        if role is None:
            return goodput.goodput_of(self.lanes, self.share_trained_again)
        return goodput.of_role(self.lanes, role, self.share_trained_again)

    # --- with each heartbeat ---------------------------------------------------------------------

    def _usage(self, event: Event) -> None:
        self.lanes.used(self.lanes.of(event["role"], event["index"]), event, self.version)

    def _progressed(self, event: Event) -> None:
        now, index = float(event["time"]), int(event["index"])
        stages = event["stage_seconds"]
        said = _Progress(now, event["num_records"], event["loss_sum"], stages)
        before = self._progress.get(index)
        # The event may come twice: from the files, and from the queue.
        if before is not None and now <= before.time:
            return  # known
        if before is None or said.records < before.records:  # another process than before
            before = _Progress(now, 0, 0.0, {})
        self._progress[index] = said
        for stage, seconds in stages.items():
            grown = seconds - before.stages.get(stage, 0.0)
            self.stages[stage] = self.stages.get(stage, 0.0) + max(0.0, grown)
        records = said.records - before.records
        if records <= 0:
            return
        loss = said.loss - before.loss
        known = records if math.isfinite(loss) else 0
        amounts = np.array([records, known, loss if known else 0.0])
        self.bins.add(self.progress, before.time, now, amounts, self.version)

    def _pictured(self, event: Event) -> None:
        self.picture = event
        if self.phase == "pending":  # no event tells to which phase a job was resumed
            self.phase = event["status"]

    def _tabled(self, event: Event) -> None:
        old = self.tables
        for what, sums in self.keys.items():
            before = dict(zip(old.get("names", ()), old.get(what, ()), strict=False))
            for name, count in zip(event["names"], event.get(what, ()), strict=False):
                # A ps replica counts from its own start, so the count falls when one is replaced.
                sums[name] += max(0, count - before.get(name, 0))
        self.tables = event

    # --- facts -----------------------------------------------------------------------------------

    def _measured(self, event: Event) -> None:
        names = ("time", "epoch", "loss", "recent_loss", "metrics", "recent_metrics")
        self.training.add({**{name: event[name] for name in names}, "stamp": self.version})

    def _evaluated(self, event: Event) -> None:
        self.evaluations.add(
            {"time": event["time"], "metrics": event["metrics"], "stamp": self.version}
        )
        self.bests.evaluated(event)

    def _scored(self, event: Event) -> None:
        names = ("start", "seconds", "num_messages", "num_measured", "loss", "metrics")
        self.windows.add({**{name: event[name] for name in names}, "stamp": self.version})

    def _learns_at(self, event: Event) -> None:
        rate = event["learning_rate"]
        self.learning_rates.add({"time": event["time"], "value": rate, "stamp": self.version})

    def _checkpointed(self, event: Event) -> None:
        self.checkpoints.append(
            {"time": event["time"], "version": event["version"], "stamp": self.version}
        )
        del self.checkpoints[:-MOST_POINTS]
        self.bests.kept(event)

    def _exported(self, event: Event) -> None:
        number = event["number"]
        self.exports = [{"time": event["time"], "number": number, "stamp": self.version}]

    def _phase_began(self, event: Event) -> None:
        self.phase = event["phase"]

    def _data_checked(self, event: Event) -> None:
        self.data = list(event["lines"])

    def _resumed(self, event: Event) -> None:
        if self.ended is not None:
            self.ended, self.phase = None, "pending"

    def _ended(self, event: Event) -> None:
        self.phase, self.ended = event["phase"], float(event["time"])
        self.message = event.get("text", "")

    def _registered(self, event: Event) -> None:
        lane = self.lanes.named(event["process"])
        if lane is not None:
            lane.state, lane.pid, lane.stamp = "alive", event["pid"], self.version
            lane.address = event.get("address", "")

    def _pending(self, event: Event) -> None:
        self._on_lane(event, self.lanes.pending)

    def _runs(self, event: Event) -> None:
        self._on_lane(event, self.lanes.runs)

    def _leaving(self, event: Event) -> None:
        lane = self.lanes.named(event["process"])
        if lane is not None:
            lane.state, lane.stamp = "leaving", self.version

    def _gone(self, event: Event) -> None:
        lane = self.lanes.named(event["process"])
        if lane is None:
            return
        for worker in self.lanes.gone(lane, float(event["time"]), event["event"], self.version):
            self._progress.pop(worker, None)
        if event["event"] == "lost":
            self.num_lost[lane.role] = self.num_lost.get(lane.role, 0) + 1

    def _recovered(self, event: Event) -> None:
        if event["is_replayed"]:
            self._records_again += event["records"]

    def _on_lane(self, event: Event, take: Callable[[Lane, float, int], None]) -> None:
        lane = self.lanes.named(event["process"])
        if lane is not None:
            take(lane, float(event["time"]), self.version)

    def _tell(self, event: Event) -> None:
        self.counts[event["event"]] += 1
        names = ("time", "role", "index", "event", "process", "text")
        told = {name: event[name] for name in names if name in event}
        self.facts.append({**told, "stamp": self.version})
        # Deleting in blocks keeps each addition cheap.
        if len(self.facts) > 2 * MOST_FACTS:
            del self.facts[:-MOST_FACTS]

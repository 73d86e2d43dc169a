"""How often something rare has happened: a test of failures must see that it did."""

from __future__ import annotations

from collections.abc import Mapping

from elasticdl.job import COUNTERS, TaskReport
from elasticdl.master.journal import Journal


class Counters:
    """Counts by name; the names are in `elasticdl.job.COUNTERS`."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.values = dict.fromkeys(COUNTERS, 0)
        journal.handle("counter", self._apply)

    def resumed_job(self) -> None:
        """Another master goes on with the job."""
        self._add("resumed_masters")

    def refused_report(self) -> None:
        """A worker has ended a lease that was not its any more."""
        self._add("stale_reports")

    def finished(self, report: TaskReport) -> None:
        """A training task is done; perhaps an earlier lease had done a part of it."""
        num_minibatches = report.num_minibatches + len(report.skipped)
        if report.lease > 1 and num_minibatches < report.end_index:
            self._add("resumed_tasks")

    def of_replicas(self, tally: Mapping[str, int]) -> None:
        """The ps replicas have said what their watermarks kept from being applied."""
        for name, value in tally.items():
            if value != self.values[name]:
                self._journal.record("counter", name, value)

    def _add(self, name: str) -> None:
        self._journal.record("counter", name, self.values[name] + 1)

    def _apply(self, name: str, value: int) -> None:
        self.values[name] = value

    def snapshot(self) -> dict[str, int]:
        """Return the state as JSON has it."""
        return dict(self.values)

    def restore(self, snapshot: dict[str, int]) -> None:
        """Take over the state of a snapshot."""
        self.values = dict(snapshot)

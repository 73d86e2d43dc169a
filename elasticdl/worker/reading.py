"""What sees the records of a worker's tasks as they are read; packages bring more than this."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from elasticdl import registry
from elasticdl.config import JobConfig
from elasticdl.data.base import Records
from elasticdl.job import Lease, TaskReport
from elasticdl.worker.measuring import SHARE, PartSums


class TaskReading:
    """Sees the records of one lease; this class does nothing with them."""

    def read(self, block: Records) -> None:
        """Note the next records of the lease."""

    def ended(self) -> None:
        """Note that all records were read; the lease cannot be reported before this returns."""

    def part_after(self, num_examples: int) -> int | None:
        """Return the part of the task to which the newest minibatch belongs; None: to no part.

        The metrics of training are summed for each part.

        Args:
            num_examples: The number of examples up to and with this minibatch; it grows.
        """
        return None

    def fed(self, report: TaskReport) -> TaskReport:
        """Return the report of the lease with what was seen of its records."""
        return report

    def measured(self, report: TaskReport, parts: Mapping[int, PartSums]) -> TaskReport:
        """Return the report of a training task with the sums of its parts."""
        return report


class Readings:
    """Makes what sees the records of a lease.

    share: The share of the time of computing that the metrics of training may take.
    """

    share = SHARE

    def of(self, lease: Lease) -> TaskReading:
        """Return what sees the records of a lease."""
        return TaskReading()


MakeReadings = Callable[[JobConfig], Readings | None]
"""Returns the readings of a job's workers; None if it has none for the job's data."""


def readings_of(config: JobConfig) -> Readings:
    """Return the readings that a package brings for a job's data, else those of the core."""
    makers: dict[str, MakeReadings] = registry.brought("readings")
    found = (make(config) for make in makers.values())
    return next((each for each in found if each is not None), Readings())

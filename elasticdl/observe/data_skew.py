"""Finds files or tables of the training data that differ from the others, in loss or in time.

It uses the tasks that workers report as done. Each task is compared with the tasks just before it.
So a loss that falls, or a slow worker, does not look like a difference between files. Then each
file is compared with the median of all files.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

from elasticdl.job import Outcome, Task, TaskKind, TaskReport
from elasticdl.observe.kinds import Anomaly

OTHER_LOSS = 2.0
"""A file differs if its loss is this multiple of the median file's, or less than one over it."""

SLOW = 3.0
"""A file is slow if its records take this multiple of the time of the median file's."""

NUM_BEFORE = 32
"""The number of earlier tasks with which a task is compared: of all workers for the loss, of its
own worker for the time.
"""

FEWEST_TASKS, FEWEST_FILES = 5, 4
"""A file is reported when this many of its tasks are known, and as many of each of this many files.
"""

_SPREADS = 5.0  # a file that differs is so many times as far from the median as half of the files
_MOST_FILES = 10_000  # of more, the first
_TASKS_KEPT = 8  # of a file, the last
_MOST_OF_ONE = 0.5  # of the tasks before, that may be of the same file


@dataclass
class _File:
    """The last tasks of a file, as multiples of the tasks before each of them."""

    losses: deque[float] = field(default_factory=lambda: deque(maxlen=_TASKS_KEPT))
    times: deque[float] = field(default_factory=lambda: deque(maxlen=_TASKS_KEPT))


@dataclass
class _Recent:
    """The values of the last tasks, each with its file."""

    tasks: deque[tuple[str, float]] = field(default_factory=lambda: deque(maxlen=NUM_BEFORE))

    def multiple(self, name: str, value: float) -> float | None:
        """Add a task; return its multiple of the median before, or None if that says nothing."""
        before = list(self.tasks)
        self.tasks.append((name, value))
        own = sum(other == name for other, _ in before)
        # If most tasks before are of the same file, the file is compared with itself.
        if len(before) < NUM_BEFORE or own > _MOST_OF_ONE * NUM_BEFORE:
            return None
        usual = median(value for _, value in before)
        return value / usual if usual > 0.0 and value >= 0.0 else None


class DataSkew:
    """Finds files that differ. `reported` is cheap: it is called at each end of a task."""

    def __init__(self) -> None:
        """Begin to look."""
        self._files: dict[str, _File] = {}
        self._losses = _Recent()
        self._times: dict[int, _Recent] = {}
        self._reported: dict[int, float] = {}

    def reported(self, worker_id: int, task: Task, report: TaskReport, now: float) -> None:
        """Note a worker's report at the end of a task; `now` in any seconds.

        The time of a task is the time since the worker's last report. The worker reads the next
        task while it works on this one, so this is what the task cost the job.
        """
        since = self._reported.get(worker_id)
        self._reported[worker_id] = now
        name, records = task.shard.name, report.num_records
        is_done = report.outcome is Outcome.DONE and records > 0
        if task.kind is not TaskKind.TRAINING or not is_done:
            return
        file = self._files.get(name)
        if file is None:
            # Memory must be bounded, and the first files are as good a sample as others.
            if len(self._files) >= _MOST_FILES:
                return
            file = self._files[name] = _File()
        if math.isfinite(report.loss_sum):
            loss = self._losses.multiple(name, report.loss_sum / records)
            file.losses.extend([] if loss is None else [loss])
        if since is not None:
            recent = self._times.setdefault(worker_id, _Recent())
            time = recent.multiple(name, (now - since) / records)
            file.times.extend([] if time is None else [time])

    def lost(self, worker_id: int) -> None:
        """Forget a worker that is gone."""
        self._reported.pop(worker_id, None)
        self._times.pop(worker_id, None)

    def found(self) -> Iterator[tuple[Anomaly, str]]:
        """Yield what to report: at most one thing about losses and one about times."""
        yield from self._other_loss()
        yield from self._slow()

    def _other_loss(self) -> Iterator[tuple[Anomaly, str]]:
        factors = _factors({name: file.losses for name, file in self._files.items()})

        def strength(name: str) -> float:
            return max(factors[name], 1.0 / max(factors[name], 1e-9))

        odd = sorted(
            (name for name in factors if strength(name) >= OTHER_LOSS), key=strength, reverse=True
        )
        if odd:
            advice = (
                "Compare its labels and the order of its columns with another file's "
                "(`elasticdl data inspect`): a file of another origin often differs in them."
            )
            text = (
                f"the loss on {_several(odd)} is {factors[odd[0]]:.2g} times that on the median "
                f"file. {advice}"
            )
            yield Anomaly("file of other loss", "", advice, source=odd[0]), text

    def _slow(self) -> Iterator[tuple[Anomaly, str]]:
        factors = _factors({name: file.times for name, file in self._files.items()})
        slow = [name for name, factor in factors.items() if factor >= SLOW]
        slow.sort(key=factors.__getitem__, reverse=True)
        if slow:
            advice = (
                "Look at where it lies, how it is compressed, and how long its records are; "
                "`elasticdl data convert` writes all files alike."
            )
            text = (
                f"a record of {_several(slow)} takes {factors[slow[0]]:.2g} times as long as one "
                f"of the median file. {advice}"
            )
            yield Anomaly("slow file", "", advice, source=slow[0]), text


def _several(names: list[str]) -> str:
    """Return the name of the first file, and the number of the others."""
    others = len(names) - 1
    return f"'{names[0]}'" + (f" (and of {others:,} more)" if others else "")


def _factors(tasks: dict[str, deque[float]]) -> dict[str, float]:
    """Return by file its multiple of the median file's value, for files that stand out."""
    values = {name: median(found) for name, found in tasks.items() if len(found) >= FEWEST_TASKS}
    usual = median(values.values()) if len(values) >= FEWEST_FILES else 0.0
    if usual <= 0.0:
        return {}
    # A median of distances, so that the odd file itself does not widen the spread.
    spread = median(abs(value - usual) for value in values.values())
    return {
        name: value / usual
        for name, value in values.items()
        if abs(value - usual) > _SPREADS * spread
    }

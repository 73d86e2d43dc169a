"""Files or tables of the training data that differ from the others, in loss or in time.

Known from the tasks that workers report as done. Each task is compared with those just before it,
so that a loss that falls, or a worker that is slow, is no difference between files; each file is
then compared with the median of all files.
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
"""Tasks before it that a task is compared with: of all workers for the loss, of its own worker for
the time."""

FEWEST_TASKS, FEWEST_FILES = 5, 4
"""A file is told of when so many of its tasks are known, and as many of each of so many files."""

_SPREADS = 5.0  # a file that differs is so many times as far from the median as half of the files
_MOST_FILES = 10_000  # of more, the first
_TASKS_KEPT = 8  # of a file, the last
_MOST_OF_ONE = 0.5  # of the tasks before, that may be of the same file


@dataclass
class _File:
    """What the last tasks of a file were, as multiples of the tasks before each."""

    losses: deque[float] = field(default_factory=lambda: deque(maxlen=_TASKS_KEPT))
    times: deque[float] = field(default_factory=lambda: deque(maxlen=_TASKS_KEPT))


@dataclass
class _Recent:
    """Values of the last tasks, each with its file."""

    tasks: deque[tuple[str, float]] = field(default_factory=lambda: deque(maxlen=NUM_BEFORE))

    def multiple(self, name: str, value: float) -> float | None:
        """Take a task in; return its multiple of the median before; None if that says nothing."""
        before = list(self.tasks)
        self.tasks.append((name, value))
        own = sum(other == name for other, _ in before)
        if len(before) < NUM_BEFORE or own > _MOST_OF_ONE * NUM_BEFORE:
            return None
        usual = median(value for _, value in before)
        return value / usual if usual > 0.0 and value >= 0.0 else None


class DataSkew:
    """Looks for files that differ. `reported` is cheap: it is called with each end of a task."""

    def __init__(self) -> None:
        """Begin to look."""
        self._files: dict[str, _File] = {}
        self._losses = _Recent()
        self._times: dict[int, _Recent] = {}
        self._reported: dict[int, float] = {}

    def reported(self, worker_id: int, task: Task, report: TaskReport, now: float) -> None:
        """Take in what a worker says at the end of a task; `now` in any seconds.

        A task's time is that since the worker's report before: it works on one task while it reads
        the next, so this is what the task cost the job.
        """
        since = self._reported.get(worker_id)
        self._reported[worker_id] = now
        name, records = task.shard.name, report.num_records
        is_done = report.outcome is Outcome.DONE and records > 0
        if task.kind is not TaskKind.TRAINING or not is_done:
            return
        file = self._files.get(name)
        if file is None:
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
        """Yield what there is to be told: at most one thing of the losses and one of the times."""
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
    """Name the first file, and say how many others there are."""
    others = len(names) - 1
    return f"'{names[0]}'" + (f" (and of {others:,} more)" if others else "")


def _factors(tasks: dict[str, deque[float]]) -> dict[str, float]:
    """Return by file its multiple of the median file's; only of those that stand out at all."""
    values = {name: median(found) for name, found in tasks.items() if len(found) >= FEWEST_TASKS}
    usual = median(values.values()) if len(values) >= FEWEST_FILES else 0.0
    if usual <= 0.0:
        return {}
    spread = median(abs(value - usual) for value in values.values())
    return {
        name: value / usual
        for name, value in values.items()
        if abs(value - usual) > _SPREADS * spread
    }

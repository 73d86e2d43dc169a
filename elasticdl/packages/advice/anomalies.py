"""Finds unusual things in a running job: few of them, each reported once, with advice.

The master calls it each half minute. It compares the last heartbeats of the processes with those of
the look before. A thing is reported again only if it was over in between.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median

from elasticdl.job import Label, Progress, Role, Usage
from elasticdl.observe.kinds import ParameterTables
from elasticdl.packages.advice.events import Anomaly

SECONDS = 30.0
"""The time between two looks."""

SLOW = 0.5
"""A worker is a straggler if it trains less than this share of the workers' median."""

RISE = 1.5
"""The loss rises if it is above this multiple of its lowest value at two looks in a row."""

BUSY, WAITING = 0.85, 0.3
"""A ps replica is the bottleneck if it works for the first share of its time while the workers
wait for parameters for the second share of theirs."""

FULL = 0.8
"""A ps replica is full if its rows take this share of its memory limit."""

SKEWED, LOADED = 1.5, 0.3
"""Ps replicas are skewed if one has more requests for rows than this multiple of the average, and
works for more than this share of its time.
"""

BUSY_REPLICA = "busy ps replica"

_FEWEST_WORKERS = 3
_FEWEST_PULLED = 10_000
_WAITS = ("no task", "lease", "compute wait", "staleness wait")  # for other stages, or workers
_TRAINING = (Label.TRAIN, Label.WAIT_FOR_DATA, Label.WAIT_FOR_PARAMETERS)
_LEAST_SHARE = 0.8  # of the time between two looks for which a process must have been heard of


@dataclass
class _Process:
    """The newest report of one process, and the newest report at the last look."""

    usage: Usage | None = None
    progress: Progress | None = None
    usage_before: Usage | None = None
    progress_before: Progress | None = None

    def turn(self) -> None:
        self.usage_before, self.progress_before = self.usage, self.progress


@dataclass(frozen=True)
class _Worked:
    """The work of a worker between two looks."""

    records: int
    seconds: float
    stages: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, float] = field(default_factory=dict)

    @property
    def training_seconds(self) -> float:
        """The seconds in which it computed steps, or waited for what they need."""
        return sum(self.labels.get(str(label), 0.0) for label in _TRAINING)


class Anomalies:
    """Finds unusual things. `heard` is cheap: it is called with each heartbeat."""

    def __init__(self, now: float, memory_limit: int | None = None) -> None:
        """Begin to look.

        Args:
            now: The time, in seconds from any moment.
            memory_limit: The bytes of rows that a ps replica may hold; None: no limit.
        """
        self._memory_limit = memory_limit
        self._processes: dict[tuple[Role, int], _Process] = {}
        self._next = now + SECONDS
        self._told: set[tuple[str, ...]] = set()
        self._tables: ParameterTables | None = None
        self._tables_before: ParameterTables | None = None
        self._lowest = math.inf
        self._num_rises = 0

    def heard(self, role: Role, index: int, progress: Progress | None, usage: Usage | None) -> None:
        """Note a heartbeat."""
        process = self._processes.get((role, index))
        if process is None:
            process = self._processes[role, index] = _Process()
        process.progress, process.usage = progress or process.progress, usage or process.usage

    def tabled(self, tables: ParameterTables) -> None:
        """Note what the ps replicas hold."""
        self._tables = tables

    def look(self, now: float, loss: float | None) -> list[tuple[Anomaly, str]]:
        """Return each thing that has become unusual since the last look, with a sentence.

        Args:
            now: Seconds, as at the beginning.
            loss: Mean over recent records.
        """
        if now < self._next:
            return []
        self._next = now + SECONDS
        workers = dict(self._worked())
        found = {
            (anomaly.what, anomaly.process): (anomaly, text)
            for anomaly, text in (
                *_stragglers(workers),
                *self._rising(loss),
                *self._busy_replicas(workers),
                *self._full_replicas(),
                *self._skewed_replicas(),
            )
        }
        # A thing that was there at the last look is not reported again.
        new = [told for key, told in found.items() if key not in self._told]
        self._told = set(found)
        # A process without a heartbeat since the last look may be gone. Its old numbers would look
        # like a standstill.
        gone = [key for key, p in self._processes.items() if p.usage is p.usage_before]
        for key in gone:  # it comes back with its next heartbeat
            del self._processes[key]
        for process in self._processes.values():
            process.turn()
        self._tables_before = self._tables
        return new

    def _worked(self) -> Iterator[tuple[int, _Worked]]:
        """Yield the work of each worker that was there for the whole time."""
        for (role, index), process in self._processes.items():
            spent = _spent(process)
            if role is not Role.WORKER or spent is None:
                continue
            last, before = process.progress, process.progress_before
            # Fewer records than before: another process has taken this index.
            if last is None or before is None or last.num_records < before.num_records:
                continue
            stages = {
                name: seconds - before.stage_seconds.get(name, 0.0)
                for name, seconds in last.stage_seconds.items()
            }
            records = last.num_records - before.num_records
            yield index, _Worked(records, sum(spent.values()), stages, spent)

    def _rising(self, loss: float | None) -> Iterator[tuple[Anomaly, str]]:
        if loss is None:
            return
        # This comes first: NaN is never above or below another loss.
        if not math.isfinite(loss):
            advice = "A smaller learning rate may help; --on_nan=skip leaves such minibatches out."
            text = f"the loss is {loss}"
            yield Anomaly("loss is no number", "", advice), f"{text}. {advice}"
            return
        # One look may fall on a few hard records, so the loss must be high twice.
        self._num_rises = self._num_rises + 1 if loss > RISE * self._lowest > 0.0 else 0
        self._lowest = min(self._lowest, loss)
        if self._num_rises >= 2:
            advice = "A smaller learning rate may help; look for data that differs from the rest."
            text = f"the loss rises: it is {loss:.5g}, and was {self._lowest:.5g}"
            yield Anomaly("rising loss", "", advice), f"{text}. {advice}"

    @property
    def has_busy_replica(self) -> bool:
        """Return whether a ps replica was the bottleneck at the last look."""
        return any(what == BUSY_REPLICA for what, *_ in self._told)

    @property
    def fullest_share(self) -> float:
        """The share of its memory limit that the rows of the fullest ps replica take."""
        if not self._memory_limit or self._tables is None:
            return 0.0
        return max(self._tables.replica_bytes, default=0) / self._memory_limit

    def _full_replicas(self) -> Iterator[tuple[Anomaly, str]]:
        if self.fullest_share < FULL or self._tables is None:
            return
        held = self._tables.replica_bytes
        advice = "Give the job more ps replicas (--num_ps_pods), or a higher --ps_memory_limit."
        name = f"ps replica {held.index(max(held))}"
        text = f"the rows of {name} take {self.fullest_share:.0%} of --ps_memory_limit. {advice}"
        yield Anomaly("full ps replica", name, advice), text

    def _busy_replicas(self, workers: Mapping[int, _Worked]) -> Iterator[tuple[Anomaly, str]]:
        seconds = sum(worked.seconds for worked in workers.values())
        label = str(Label.WAIT_FOR_PARAMETERS)
        waited = sum(worked.labels.get(label, 0.0) for worked in workers.values())
        # A ps replica that works all the time harms nothing while the workers do not wait for it.
        if not seconds or waited < WAITING * seconds:
            return
        for (role, index), process in self._processes.items():
            spent = _spent(process) if role is Role.PS else None
            if spent is None:
                continue
            share = _working(spent)
            if share >= BUSY:
                advice = "More ps replicas (--num_ps_pods) share the work."
                name = f"ps replica {index}"
                text = (
                    f"{name} works for {share:.0%} of its time, and workers wait for parameters "
                    f"for {waited / seconds:.0%} of theirs. {advice}"
                )
                yield Anomaly(BUSY_REPLICA, name, advice), text

    def _skewed_replicas(self) -> Iterator[tuple[Anomaly, str]]:
        last, before = self._tables, self._tables_before
        if last is None or before is None or len(last.replica_pulled) < 2:
            return
        if len(before.replica_pulled) != len(last.replica_pulled):
            return
        both = zip(last.replica_pulled, before.replica_pulled, strict=True)
        pulled = [now - then for now, then in both]
        mean = sum(pulled) / len(pulled)
        if min(pulled) < 0 or sum(pulled) < _FEWEST_PULLED:  # a replica is new, or little is known
            return
        for index, rows in enumerate(pulled):
            process = self._processes.get((Role.PS, index))
            spent = _spent(process) if process is not None else None
            if rows < SKEWED * mean or spent is None or _working(spent) < LOADED:
                continue
            advice = (
                "Rows are spread by a hash of their key, so the cause is a few keys that occur in "
                "all minibatches: fewer ps replicas (--num_ps_pods) would be as fast."
            )
            name = f"ps replica {index}"
            text = f"{name} is asked for {rows / mean:.1f} times as many rows as the mean. {advice}"
            yield Anomaly("skewed ps replicas", name, advice), text


def _working(spent: Mapping[str, float]) -> float:
    """Return the share of its time in which a ps replica worked."""
    return spent.get(str(Label.TRAIN), 0.0) / sum(spent.values())


def _spent(process: _Process) -> Mapping[str, float] | None:
    """Return the seconds of a process by label since the last look; None if the process is new."""
    last, before = process.usage, process.usage_before
    if last is None or before is None or last.began != before.began:
        return None
    spent = {
        label: seconds - before.label_seconds.get(label, 0.0)
        for label, seconds in last.label_seconds.items()
    }
    return spent if sum(spent.values()) >= _LEAST_SHARE * SECONDS else None


def _stragglers(workers: Mapping[int, _Worked]) -> Iterator[tuple[Anomaly, str]]:
    """Yield the workers that are much slower than the others, with the stage that makes them slow.

    A worker that did something else than training for a part of the time is left out: it had no
    task, it evaluated, or it wrote the model.
    """
    busy = {n: w for n, w in workers.items() if w.training_seconds > 0.9 * w.seconds}
    # With two workers, the median says nothing about which one is unusual.
    if len(busy) < _FEWEST_WORKERS:
        return
    rates = {index: worked.records / worked.seconds for index, worked in busy.items()}
    usual = median(rates.values())
    for index, rate in rates.items():
        if rate >= SLOW * usual or not busy[index].records:
            continue
        stage, factor = _slowest_stage(busy[index], [w for n, w in busy.items() if n != index])
        name, advice = f"worker {index}", "Look at its machine: is it busy with other work?"
        text = (
            f"{name} trains {rate:,.0f} records/s, the median is {usual:,.0f}; "
            f"{_compared(stage, factor)}. {advice}"
        )
        yield Anomaly("straggler", name, advice, stage), text


def _compared(stage: str, factor: float) -> str:
    """Say how a stage of a worker compares with that of the others."""
    if factor == 1.0:
        return "none of its stages takes longer than in the other workers"
    if math.isinf(factor):
        return f"it spends time on {stage}, and the other workers do not"
    return f"its {stage} takes {factor:.1f} times as long as in the other workers"


def _slowest_stage(worker: _Worked, others: list[_Worked]) -> tuple[str, float]:
    """Return the stage in which a worker loses most time for each record, and its factor."""

    def per_record(worked: _Worked, stage: str) -> float:
        return worked.stages.get(stage, 0.0) / max(1, worked.records)

    best, lost, factor = "work", 0.0, 1.0
    for stage in worker.stages:
        if stage in _WAITS:
            continue
        usual = median(per_record(other, stage) for other in others)
        more = per_record(worker, stage) - usual
        if more > lost:
            best, lost = stage, more
            factor = per_record(worker, stage) / usual if usual else math.inf
    return best, factor

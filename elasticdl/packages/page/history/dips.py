"""Finds times in which a job was slower than around them, each with its cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl.job import Label, Role
from elasticdl.packages.page.history.bins import NUM_CELLS
from elasticdl.packages.page.history.fold import RECORDS, History
from elasticdl.packages.page.history.lanes import LABELS, UNHEARD

SHARE = 0.7
"""A cell is slow below this share of the usual throughput: the median of those around it."""

_AROUND = 30  # cells on either side
_LEAST_CELLS = 5
_LOOK_BACK_SECONDS = 3.0  # a cause may come before its effect shows
_MOST_DIPS = 100

_CAUSES = (
    "ps recovered",
    "lost",
    "master lost",
    "late",  # the master stood still
    "paused",
    "resumed",
    "leaving",
    "scaled down",
    "loop held",
    "evaluation",
    "checkpoint",  # often that of an evaluation, which takes longer
    "slow",
    "task failed",
    "journal",
)
"""Facts that explain a dip, the strongest first."""

_OUTWEIGHED = frozenset({"checkpoint", "evaluation", "slow", "task failed", "journal"})
"""Facts that happen often.

The label with most of the time explains a dip better than one of these.
"""

_TOLD_AFTERWARDS = frozenset({"checkpoint", "evaluation", "late"})
"""Facts that are written when they are over, so their cell may be fast again."""

_TELLING = frozenset(map(str, (Label.EVALUATE, Label.WAIT_FOR_DATA, Label.STARTING)))
_MOST = 0.5  # of the workers' time in a dip, more than in the rest of the job

_WORDS = {
    str(Label.WAIT_FOR_DATA): "workers waited for data",
    str(Label.WAIT_FOR_PARAMETERS): "workers waited for parameters",
    str(Label.STARTING): "workers were starting",
    str(Label.EVALUATE): "workers evaluated",
    str(Label.CHECKPOINT): "workers wrote the model",
    str(Label.RECOVER): "a ps replica was being restored",
    str(Label.RE_FORM): "workers agreed on a new group",
    str(Label.PENDING): "workers waited to be started",
    str(Label.IDLE): "workers had no task",
    UNHEARD: "workers were lost",
    str(Label.TRAIN): "workers computed for longer on each record",
}


@dataclass(frozen=True)
class Dip:
    """A time of low throughput, with its share of the usual throughput and a cause in words."""

    begin: float
    end: float
    share: float
    cause: str

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return dict(self.__dict__)


def dips_of(history: History) -> list[Dip]:
    """Return the dips of a job from its first trained record to its last, oldest first."""
    bins = history.bins
    if bins.began is None:
        return []
    rates = history.progress.amounts[: bins.count, RECORDS] / bins.step
    trained = np.flatnonzero(rates)
    if len(trained) < _LEAST_CELLS:
        return []
    # The first and last cells are only partly filled.
    first, stop = int(trained[0]) + 1, int(trained[-1])
    usual = _usual(rates[first:stop])
    is_slow = rates[first:stop] < SHARE * usual
    found = []
    runs = _runs(is_slow)[-_MOST_DIPS:]
    labels = _of_workers(history) if runs else None  # once: a job may have thousands of workers
    for begin, end in runs:
        share = float(np.sum(rates[first + begin : first + end]) / np.sum(usual[begin:end]))
        times = [bins.began + (first + cell) * bins.step for cell in (begin, end)]
        label, more = _what_grew(labels, first + begin, first + end)
        cause = _cause(history, label, more, times[0], times[1])
        found.append(Dip(times[0], times[1], round(share, 3), cause))
    return found


def _usual(rates: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for each cell the median of the cells around it in which anything was trained.

    So a job that stands still for longer than it runs also has a dip. At most `NUM_CELLS` are
    given.
    """
    assert len(rates) <= NUM_CELLS
    found = np.zeros(len(rates))
    for cell in range(len(rates)):
        near = rates[max(0, cell - _AROUND) : cell + _AROUND + 1]
        trained = near[near > 0.0]
        found[cell] = np.median(trained) if len(trained) else 0.0
    return found


def _runs(is_slow: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return [begin, end) of each slow stretch."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], is_slow.astype(np.int8), [0]])))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _cause(history: History, label: str, more: float, begin: float, end: float) -> str:
    """Return the fact that explains a dip, else what workers did more than usual (`_what_grew`)."""
    earliest, latest = begin - _LOOK_BACK_SECONDS, end + history.bins.step
    near = [
        fact
        for fact in history.facts
        if fact["event"] in _CAUSES
        and earliest <= fact["time"] <= (latest if fact["event"] in _TOLD_AFTERWARDS else end)
    ]
    # The workers' own time shows the cause, so frequent facts beside it are chance.
    if label in _TELLING and more >= _MOST:
        near = [fact for fact in near if fact["event"] not in _OUTWEIGHED]
    if near:
        best = min(near, key=lambda fact: _CAUSES.index(fact["event"]))
        return str(best["text"])
    return _WORDS[label]


def _of_workers(history: History) -> NDArray[np.float64] | None:
    """Return the seconds of all workers by cell and label; None if there are none."""
    rows = [lane.row.amounts for lane in history.lanes if lane.role == Role.WORKER]
    sums = np.zeros_like(rows[0]) if rows else None
    for row in rows:
        sums += row
    return sums


def _what_grew(sums: NDArray[np.float64] | None, first: int, stop: int) -> tuple[str, float]:
    """Return the label that took more of the workers' time than in the rest of the job.

    Also return the difference of the shares.
    """
    if sums is None:
        return str(Label.TRAIN), 0.0
    inside, all_of_it = sums[first:stop].sum(axis=0), sums.sum(axis=0)
    grown = _shares(inside) - _shares(all_of_it - inside)
    most = int(np.argmax(grown))
    return LABELS[most], float(grown[most])


def _shares(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    total = float(seconds.sum())
    return seconds / total if total > 0.0 else np.zeros_like(seconds)


def as_json(dips: Sequence[Dip]) -> list[Mapping[str, Any]]:
    """Return dips as JSON."""
    return [dip.as_json() for dip in dips]

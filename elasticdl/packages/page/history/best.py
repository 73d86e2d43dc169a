"""Finds the best of a job's evaluations, by each metric, and whether its model overfits."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from elasticdl.job import Event
from elasticdl.settings.best import Best, key_of

_FEWEST = 2
"""The fewest evaluations that have a best one."""


@dataclass
class _Found:
    """The best value of a metric, its time, the present value, and the checkpoint that was kept."""

    metric: str
    value: float
    time: float
    now: float | None = None  # of the last evaluation, if that is not the best one
    version: int | None = None


class Bests:
    """The best evaluations so far. A metric is left out if it is unknown whether more is better."""

    def __init__(self) -> None:
        self.overfitting = ""
        """The text about overfitting; "" again once the metric is better than ever."""
        self._found: dict[str, _Found] = {}
        self._wanted: Best | None = None  # key of the metric of `--keep_best`, once there is a best
        self._overfits_by = ""
        self._num = 0
        self._time = 0.0  # of the last evaluation
        self._names: dict[str, str] = {}  # of its metrics, by key

    def evaluated(self, event: Event) -> None:
        """Note an evaluation."""
        self._num, self._time = self._num + 1, float(event["time"])
        self._names = {key_of(metric): metric for metric in event["metrics"]}
        for metric, value in event["metrics"].items():
            best = self._best(metric)
            if best is None:
                continue
            found = self._found.get(key_of(metric))
            is_number = value is not None and math.isfinite(value)
            if is_number and (found is None or best.is_better(value, found.value)):
                self._found[key_of(metric)] = _Found(metric, value, self._time)
                if self._overfits_by == key_of(metric):
                    self.overfitting = self._overfits_by = ""
            elif found is not None:
                found.now = value if is_number else None

    def said(self, event: Event) -> None:
        """Note that the last evaluation is the best one, by the metric of `--keep_best`."""
        key = key_of(event["metric"])
        self._wanted = Best(key, event["mode"])
        name = self._names.get(key, str(event["metric"]))
        self._found[key] = _Found(name, event["value"], self._time)

    def kept(self, event: Event) -> None:
        """Note a checkpoint."""
        found = None if self._wanted is None else self._found.get(self._wanted.metric)
        if found is not None and event.get("is_best"):
            found.version = event["version"]

    def overfits(self, event: Event) -> None:
        """Note that the model overfits."""
        self.overfitting, self._overfits_by = event["text"], key_of(event["metric"])

    def as_json(self) -> list[dict[str, Any]]:
        """Return the best evaluations, first the one of `--keep_best`."""
        if self._num < _FEWEST:
            return []
        first = "" if self._wanted is None else self._wanted.metric
        order = sorted(self._found, key=lambda key: key != first)
        return [asdict(self._found[key]) for key in order]

    def _best(self, metric: str) -> Best | None:
        if self._wanted is not None and self._wanted.metric == key_of(metric):
            return self._wanted
        return Best.known(metric)

"""Which evaluation is the best one, for `--keep_best`. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from elasticdl.master.evaluation import EvaluationResult
from elasticdl.settings.best import Best


@dataclass(frozen=True, slots=True)
class BestSoFar:
    """The best of some evaluations, and its value of the metric that was asked for."""

    result: EvaluationResult
    value: float


def best_of(results: Sequence[EvaluationResult], wanted: Best) -> BestSoFar | None:
    """Return the first of the best; one whose value is no number is never better."""
    best: BestSoFar | None = None
    for result in results:
        value = wanted.value_in(result.metrics)
        if value is None or math.isnan(value):
            continue
        if best is None or wanted.is_better(value, best.value):
            best = BestSoFar(result, value)
    return best

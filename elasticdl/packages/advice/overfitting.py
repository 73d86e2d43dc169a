"""Whether a model learns its training data and no longer what holds of other data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from elasticdl.job.status import JobStatus, moment
from elasticdl.master.evaluation import EvaluationResult
from elasticdl.master.features.base import JobFeature, JobParts
from elasticdl.master.features.best import BestSoFar, best_of
from elasticdl.packages.advice import events
from elasticdl.settings.best import Best

LEAST_SINCE_BEST = 2
"""Evaluations after the best one, of which none was as good; one alone is often chance."""

_LOSS = Best("loss", "min")


@dataclass(frozen=True, slots=True)
class OverfitMetric:
    """A metric that gets worse on validation data, and one that gets better on training data.

    metric: of validation. best: its best evaluation. last: its value now. training: what got
    better since, `from_value` to `to_value`. kept: the metric of `--keep_best`.
    """

    metric: Best
    best: BestSoFar
    last: float
    training: Best
    from_value: float
    to_value: float
    kept: Best | None = None

    @property
    def words(self) -> str:
        """Say it, and what to do."""
        when = moment(self.best.result.num_epochs, self.best.result.version)
        return (
            f"the model overfits: validation {self.metric.metric} was best {when} "
            f"({self.best.value:.4g}) and is {self.last:.4g} now, while training "
            f"{self.training.metric} improved from {self.from_value:.4g} to {self.to_value:.4g}. "
            f"{self._remedy}"
        )

    @property
    def _remedy(self) -> str:
        if self.kept is None:
            return (
                "Train for fewer epochs (EarlyStopping), keep the best "
                f"(--keep_best={self.metric.metric}), or regularize the model"
            )
        return (
            f"The checkpoint of the best {self.kept.metric} is kept (--keep_best): use it, train "
            "for fewer epochs (EarlyStopping), or regularize the model"
        )


def overfitting_of(
    results: Sequence[EvaluationResult], kept: Best | None = None
) -> OverfitMetric | None:
    """Return the first metric that shows overfitting; None if no metric does.

    The validation metric has been worse than its best in each evaluation since. Its distance from
    the best is now larger than chance explains for so many records. The same metric of training has
    got better meanwhile; if it is not measured, the training loss counts.

    Args:
        results: The evaluations so far.
        kept: The metric of `--keep_best`, which is looked at before the others.
    """
    if len(results) <= LEAST_SINCE_BEST:
        return None
    names = [Best.known(name) for name in results[-1].metrics]
    for metric in [kept, *names]:
        found = _of_metric(results, metric) if metric is not None else None
        if found is not None:
            return replace(found, kept=kept)
    return None


def _of_metric(results: Sequence[EvaluationResult], metric: Best) -> OverfitMetric | None:
    best, last = best_of(results, metric), metric.value_in(results[-1].metrics)
    if best is None or last is None or not math.isfinite(last) or not math.isfinite(best.value):
        return None
    at = next(i for i, result in enumerate(results) if result is best.result)
    if len(results) - 1 - at < LEAST_SINCE_BEST or abs(last - best.value) <= _chance(best):
        return None
    for training in (metric, _LOSS):
        before, now = (_training_value(r, training) for r in (best.result, results[-1]))
        if before is not None and now is not None:
            if training.is_better(now, before):
                return OverfitMetric(metric, best, last, training, before, now)
            return None
    return None


def _chance(best: BestSoFar) -> float:
    """Return the change of a metric that chance explains, for its number of records."""
    # The noise of a mean over n records falls with the square root of n.
    return abs(best.value) / math.sqrt(max(1, best.result.num_records))


def _training_value(result: EvaluationResult, metric: Best) -> float | None:
    """Return what a metric of training was at an evaluation; None if that is not known."""
    value = metric.value_in(result.training)
    return value if value is not None and math.isfinite(value) else None


class TellsOverfitting(JobFeature):
    """Says it once when a model overfits, and shows it as long as it does."""

    def __init__(self, job: JobParts) -> None:
        self._job = job
        self._kept = Best.of(job.config.checkpoint.keep_best)
        self._num_seen = 0  # evaluations
        self._found: OverfitMetric | None = None

    def advance(self, now: float) -> None:
        """Say it when an evaluation shows it for the first time."""
        evaluations, found = self._job.evaluations, self._look()
        if found is not None and not evaluations.has_told_overfitting:
            evaluations.tell_overfitting()
            kind = events.Overfitting(
                metric=found.metric.metric,
                mode=found.metric.mode,
                best=found.best.value,
                value=found.last,
            )
            self._job.note(kind, found.words, is_warning=True)

    def show(self, status: JobStatus) -> JobStatus:
        """Show how the model overfits, by the evaluations so far."""
        found = self._look()
        return replace(status, overfitting="" if found is None else found.words)

    def _look(self) -> OverfitMetric | None:
        """Return how the model overfits; all evaluations are gone through once for each new one."""
        results = self._job.evaluations.results
        if len(results) != self._num_seen:
            self._num_seen, self._found = len(results), overfitting_of(results, self._kept)
        return self._found

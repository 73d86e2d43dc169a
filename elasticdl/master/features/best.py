"""Finds the best evaluation, for `--keep_best`, and keeps its checkpoint."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from elasticdl.job import Task, TaskKind, TaskReport
from elasticdl.job.status import BestEvaluation, JobStatus, moment
from elasticdl.master.evaluation import EvaluationResult
from elasticdl.master.features.base import JobFeature, JobParts
from elasticdl.master.ledger import Settled
from elasticdl.master.results import Failure
from elasticdl.observe import kinds
from elasticdl.settings.best import Best


@dataclass(frozen=True, slots=True)
class BestSoFar:
    """The best of some evaluations, and its value of the metric that was asked for."""

    result: EvaluationResult
    value: float


def best_of(results: Sequence[EvaluationResult], wanted: Best) -> BestSoFar | None:
    """Return the best evaluation, the first of equal ones. A value that is NaN is never better."""
    best: BestSoFar | None = None
    for result in results:
        value = wanted.value_in(result.metrics)
        if value is None or math.isnan(value):
            continue
        if best is None or wanted.is_better(value, best.value):
            best = BestSoFar(result, value)
    return best


class KeepsBest(JobFeature):
    """Has a checkpoint of the best evaluation kept. Only jobs with `--keep_best` have it."""

    def __init__(self, job: JobParts, wanted: Best) -> None:
        self._job = job
        self._wanted = wanted

    def settled(self, task: Task, report: TaskReport, settled: Settled) -> Failure | None:
        """Have a checkpoint of the newest evaluation, if it is the best one so far."""
        results, wanted = self._job.evaluations.results, self._wanted
        if task.kind is not TaskKind.METRICS or settled is not Settled.DONE or not results:
            return None
        newest = results[-1]
        if wanted.value_in(newest.metrics) is None:
            known = ", ".join(newest.metrics) or "none"
            words = f"--keep_best={wanted.metric}: the evaluation has no such metric, but {known}"
            return Failure(words, after_checkpoint=True)
        best = best_of(results, wanted)
        if best is not None and best.result is newest:
            self._job.parameters.schedule.want_best()
            said = f"{wanted.metric} {best.value:.6g}"
            text = f"the best evaluation so far, {said}; its checkpoint is kept"
            kind = kinds.BestEvaluation(wanted.metric, wanted.mode, best.value, newest.version)
            self._job.note(kind, text)
        return None

    @property
    def _best(self) -> BestEvaluation | None:
        """The best evaluation so far."""
        found = best_of(self._job.evaluations.results, self._wanted)
        if found is None:
            return None
        return BestEvaluation(
            metric=self._wanted.metric,
            mode=self._wanted.mode,
            value=found.value,
            version=found.result.version,
            num_epochs=found.result.num_epochs,
            checkpoint=self._job.parameters.schedule.best_kept,
        )

    def show(self, status: JobStatus) -> JobStatus:
        """Show the best evaluation."""
        return replace(status, best=self._best)

    def final_words(self) -> str:
        """Say which checkpoint is that of the best evaluation."""
        best = self._best
        if best is None:
            return ""
        when = moment(best.num_epochs, best.version)
        named = f"the best evaluation ({best.metric} {best.value:.6g}, {when})"
        if best.checkpoint is None:
            return f"the checkpoint of {named} could not be written"
        is_exported = self._job.config.checkpoint.output
        exported = "; --output has the last parameters" if is_exported else ""
        return f"{named} is kept in the checkpoint of version {best.checkpoint}{exported}"

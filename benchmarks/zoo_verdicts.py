"""Judges the runs of `zoo.py`: compares jobs with plain training and a linear model."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

TOLERANCE = 0.002
TINY = ("iris", "cifar10")
"""Data with so few records for testing that the tolerance says nothing."""
ONE_WORKER = "AllreduceStrategy, one worker"
"""What several workers are compared to: the same minibatches, as many of them in an update."""
Run = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A model with one strategy beside plain training and the linear model, by their test data.

    plain, stddev: Mean and standard deviation of the seeds; None if there were no runs.
    allowed: The largest distance of a good job below the mean of plain training.
    one_worker: The metric of the same job with one worker; None if it was not run.
    """

    model: str
    framework: str
    strategy: str
    metric: str
    job: float
    plain: float | None
    stddev: float | None
    num_seeds: int
    linear: float | None
    allowed: float | None
    is_as_good: bool | None
    beats_linear: bool | None
    is_tiny: bool
    one_worker: float | None = None

    @property
    def text(self) -> str:
        """The verdict in a line."""
        plain = "plain not run"
        if self.plain is not None and self.allowed is not None:
            spread = f" +- {self.stddev:.4f}" if self.stddev is not None else ""
            word = "as good as" if self.is_as_good else "BELOW"
            plain = f"{word} plain {self.plain:.4f}{spread} ({self.num_seeds} seeds)"
        linear = "linear not run"
        if self.linear is not None:
            word = "better than" if self.beats_linear else "NOT better than"
            linear = f"{word} linear {self.linear:.4f}"
        one = ""
        if self.one_worker is not None and self.allowed is not None:
            word = "as good as" if self.job >= self.one_worker - self.allowed else "BELOW"
            one = f", {word} one worker {self.one_worker:.4f}"
        tiny = ", tiny data" if self.is_tiny else ""
        return (
            f"{self.model} ({self.framework}), {self.strategy}: {self.metric} {self.job:.4f}, "
            f"{plain}{one}, {linear}{tiny}"
        )


def verdicts(runs: Iterable[Run]) -> Iterator[Verdict]:
    """Yield one verdict for each model and strategy that a job was run with."""
    all_runs = list(runs)
    jobs: dict[tuple[str, str, str], list[Run]] = {}
    for run in all_runs:
        if run["side"] == "job":
            jobs.setdefault((run["model"], run["framework"], run["strategy"]), []).append(run)
    for (model, framework, strategy), found in jobs.items():
        job = found[-1]

        def values(side: str, model: str = model, job: Run = job) -> list[float]:
            return [
                run["value"]
                for run in all_runs
                if (run["model"], run["side"]) == (model, side)
                and (side == "linear" or _is_same(run, job))
            ]

        plain, linear = values("plain"), values("linear")
        value = statistics.fmean(run["value"] for run in found)
        mean = statistics.fmean(plain) if plain else None
        stddev = statistics.stdev(plain) if len(plain) > 1 else None
        allowed = max(TOLERANCE, 2 * (stddev or 0.0)) if plain else None
        is_as_good = None if mean is None or allowed is None else value >= mean - allowed
        yield Verdict(
            *(model, framework, strategy, job["metric"], value, mean, stddev, len(plain)),
            linear[-1] if linear else None,
            *(allowed, is_as_good, value > linear[-1] if linear else None),
            job["settings"]["data"] in TINY,
            _one_worker(job, all_runs),
        )


def _one_worker(job: Run, runs: Iterable[Run]) -> float | None:
    if job["strategy"] != "AllreduceStrategy":
        return None
    same = (run for run in runs if run["strategy"] == ONE_WORKER and _is_same(run, job))
    return next((run["value"] for run in same if run["model"] == job["model"]), None)


def _is_same(run: Run, job: Run) -> bool:
    """Whether plain training had the same epochs, minibatches and rate, in the same framework."""
    names = ("num_epochs", "minibatch_size", "model_def", "learning_rate")
    return run["framework"] == job["framework"] and all(
        run["settings"].get(name) == job["settings"].get(name) for name in names
    )

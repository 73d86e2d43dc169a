"""Makes the result of a job as JSON, for scripts (`--summary`)."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elasticdl.cli.display import Event
from elasticdl.errors import ConfigError
from elasticdl.job.status import BestEvaluation, JobStatus, WindowStatus


def summarise(status: JobStatus, events: Sequence[Event], places: dict[str, str]) -> dict[str, Any]:
    """Return the summary; null stands for a number that is not finite, which JSON lacks."""
    return {
        "job_name": status.job_name,
        "status": status.status,
        "message": status.message,
        "seconds": _number(status.seconds),
        "records_per_second": _number(status.records_per_second),
        "records": status.records_done,
        "loss": _number(status.loss),
        "epoch_loss": _number(status.epoch_loss),
        "metrics": _numbers(status.metrics),
        "evaluated_records": status.evaluated_records,
        "train_metrics": _numbers(status.train_metrics),
        "recent_train_metrics": _numbers(status.recent_train_metrics),
        "train_metrics_epoch": status.train_metrics_epoch,
        "train_metrics_records": status.train_metrics_records,
        "ledger": [dataclasses.asdict(row) for row in status.ledger],
        "model_version": status.model_version,
        "staleness": _staleness(status),
        "recomputed": status.num_recomputed,
        "num_workers": status.num_workers_alive,
        "num_ps": status.num_ps_alive,
        "checkpoints": list(status.checkpoints),
        "skipped": list(status.skipped),
        "data_check": list(status.data_check),
        "best": _best(status.best),
        "overfitting": status.overfitting,
        "counters": dict(status.counters),
        "num_unreadable": status.num_unreadable,
        "num_late": status.num_late,
        "watermark": status.watermark,
        "windows": [_window(window) for window in status.windows],
        "partitions": [dataclasses.asdict(partition) for partition in status.partitions],
        "recoveries": [dataclasses.asdict(recovery) for recovery in status.recoveries],
        "events": [dataclasses.asdict(event) for event in events],
        **places,
    }


def _window(window: WindowStatus) -> dict[str, Any]:
    numbers = {"loss": _number(window.loss), "metrics": _numbers(window.metrics)}
    return {**dataclasses.asdict(window), **numbers}


def _best(best: BestEvaluation | None) -> dict[str, Any] | None:
    if best is None:
        return None
    return {**dataclasses.asdict(best), "value": _number(best.value)}


def _staleness(status: JobStatus) -> dict[str, Any]:
    return {
        "mean": _number(status.mean_staleness),
        **{f"p{p}": status.staleness_percentile(p / 100) for p in (50, 90, 99)},
        "max": status.max_staleness,
        # How many updates were 0, 1, 2 to 3, 4 to 7, ... versions late.
        "histogram": list(status.staleness_histogram),
    }


def write(path: Path, summary: dict[str, Any]) -> None:
    """Write the whole summary, or nothing.

    Raises:
        ConfigError: The file cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n")
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise ConfigError(f"--summary={path}: cannot be written: {error.strerror}") from error


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _numbers(metrics: dict[str, float]) -> dict[str, Any]:
    return {name: _number(value) for name, value in metrics.items()}

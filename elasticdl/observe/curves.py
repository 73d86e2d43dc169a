"""The numbers of a job that are drawn over its updates."""

from __future__ import annotations

from collections.abc import Iterator

from elasticdl.job.status import JobStatus


def curves(
    status: JobStatus, learning_rate: float | None
) -> Iterator[tuple[str, float, tuple[object, ...]]]:
    """Yield for each number its name, its value, and a mark that changes with each measurement."""
    version = status.model_version
    if not version:
        return  # nothing is trained yet
    if status.loss is not None:
        yield "loss/training", status.loss, (version,)
    if status.epoch_loss is not None:
        yield "loss/epoch", status.epoch_loss, (status.epoch, status.epoch_loss)
    if learning_rate is not None:
        yield "learning_rate", learning_rate, (version,)
    yield "throughput/records_per_second", status.records_per_second, (version,)
    recent = status.recent_train_metrics or status.train_metrics
    of = (status.train_metrics_epoch, status.train_metrics_records)
    for name, value in recent.items():
        yield f"{name}/training", value, of
    for name, value in status.metrics.items():
        yield f"{name}/evaluation", value, (value, status.evaluated_records)

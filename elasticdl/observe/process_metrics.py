"""Serves the metrics of a process, if the job's settings want it.

The packages for Prometheus are imported only then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from elasticdl.job import Progress, Role
from elasticdl.observe.labels import LabelClock
from elasticdl.observe.usage import Traffic, measure
from elasticdl.runtime.process import ProcessArguments


def serving(
    arguments: ProcessArguments,
    role: Role,
    labels: LabelClock,
    traffic: Traffic,
    progress: Callable[[], Progress] | None = None,
    stats: Callable[[], str] | None = None,
) -> contextlib.AbstractContextManager[None]:
    """Return a context in which this process serves its metrics, if the settings want it.

    Args:
        arguments: The arguments of the process.
        role: The role of the process.
        labels: Counts its time by what it does.
        traffic: Counts the bytes that it has sent and received.
        progress: The progress of a worker.
        stats: The statistics of a ps replica, as `Store.stats` returns it.
    """
    if arguments.config.seeing.metrics_port is None:
        return contextlib.nullcontext()
    from elasticdl.observe import own_metrics

    return own_metrics.serving(
        arguments.config,
        arguments.job_dir,
        arguments.token,
        role,
        arguments.index,
        own_metrics.OwnMetrics(lambda: measure(labels, traffic), progress, stats),
        arguments.tls.as_tuple()[1:] if arguments.tls else None,
    )

"""The features of the master: its work beside leases, processes and phases."""

from __future__ import annotations

from collections.abc import Callable

from elasticdl import registry
from elasticdl.master.features.base import JobFeature, JobParts
from elasticdl.master.features.best import KeepsBest
from elasticdl.master.features.callbacks import Callbacks
from elasticdl.master.features.data_check import LookAtData
from elasticdl.master.features.evaluating import Evaluating
from elasticdl.master.features.model_change import ModelChange
from elasticdl.master.features.outputs import WaitsForStorage, WrittenPrograms
from elasticdl.master.features.sources import RecordSource
from elasticdl.master.features.stragglers import LeftStragglers
from elasticdl.master.features.training_metrics import MeasuredTraining, TrainingMetrics
from elasticdl.settings.best import Best


def features_of(job: JobParts) -> list[JobFeature]:
    """Return the features that a job has by its settings.

    The order counts. Training stops, or comes to rest, before an evaluation is started; callbacks
    are told of an evaluation once it has its metrics, and before its checkpoint is wanted.
    """
    of_packages = _of_packages(job)
    source = next(feature for feature in of_packages if isinstance(feature, RecordSource))
    metrics = TrainingMetrics(source.windows)
    best = Best.of(job.config.checkpoint.keep_best)
    return [
        WaitsForStorage(job),
        LookAtData(job),
        *of_packages,
        LeftStragglers(job),
        ModelChange(job),
        MeasuredTraining(job, metrics),
        Evaluating(job, metrics),
        Callbacks(job),
        *([KeepsBest(job, best)] if best is not None else []),
    ]


def _of_packages(job: JobParts) -> list[JobFeature]:
    """Return the features that packages bring, and the core's where they may bring one of these."""
    makers: dict[str, Callable[[JobParts], list[JobFeature]]] = registry.brought("features")
    found = [feature for make in makers.values() for feature in make(job)]
    if not any(isinstance(feature, RecordSource) for feature in found):
        found.insert(0, RecordSource(job))
    if not any(isinstance(feature, WrittenPrograms) for feature in found):
        found.append(WrittenPrograms())
    return found

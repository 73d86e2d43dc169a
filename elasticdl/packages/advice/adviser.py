"""Makes what advises a job: an `Adviser` for its processes, and features for its training."""

from __future__ import annotations

from elasticdl.config import JobConfig
from elasticdl.job import Progress, Role, Usage
from elasticdl.master.features.base import JobFeature, JobParts
from elasticdl.observe.kinds import ParameterTables
from elasticdl.packages.advice.anomalies import Anomalies
from elasticdl.packages.advice.autoscale import PsAutoscale
from elasticdl.packages.advice.divergence import DivergingLoss
from elasticdl.packages.advice.events import Anomaly
from elasticdl.packages.advice.overfitting import TellsOverfitting


class JobAdviser:
    """The `Adviser` of this package."""

    def __init__(self, config: JobConfig, now: float) -> None:
        """Begin to look; `now` is the time in seconds from any moment."""
        cluster = config.cluster
        self._anomalies = Anomalies(now, None if cluster.ps_disk else cluster.ps_memory_limit)
        self._autoscale = PsAutoscale(cluster.ps_autoscale)

    def heard(self, role: Role, index: int, progress: Progress | None, usage: Usage | None) -> None:
        """Note a heartbeat."""
        self._anomalies.heard(role, index, progress, usage)

    def tabled(self, tables: ParameterTables) -> None:
        """Note what the ps replicas hold."""
        self._anomalies.tabled(tables)

    def look(self, now: float, loss: float | None) -> list[tuple[Anomaly, str]]:
        """Return each thing that has become unusual since the last look, with a sentence."""
        return self._anomalies.look(now, loss)

    def why_more_replicas(self, number: int, is_moving: bool, now: float) -> str:
        """Return why the job needs one more ps replica; "": it does not."""
        found = self._anomalies
        is_busy, share = found.has_busy_replica, found.fullest_share
        return self._autoscale.why_more(number, is_moving, is_busy, share, now)


def features_of(job: JobParts) -> list[JobFeature]:
    """Return what looks at the training of a job."""
    return [DivergingLoss(job), TellsOverfitting(job)]

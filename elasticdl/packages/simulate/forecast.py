"""Forecasts a job: its speed, efficiency and goodput, and what bounds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from elasticdl.packages.simulate.cluster import Cluster, Resource
from elasticdl.packages.simulate.costs import Costs
from elasticdl.packages.simulate.losses import Balance, Hazards, hours
from elasticdl.packages.simulate.pace import records_per_second

TWICE = 2.0
ADVICE = {
    Resource.COMPUTE: "more workers, or more cores for each",
    Resource.WORKER_NETWORK: "a faster network for workers, or a larger minibatch",
    Resource.PS_NETWORK: "more ps replicas, or a faster network for them",
    Resource.PS_PROCESSOR: "more ps replicas, or more cores for each",
    Resource.INPUT: "a storage that gives more, or records of fewer bytes",
    Resource.MASTER: "larger tasks: --num_minibatches_per_task",
    Resource.LATENCY: "a larger minibatch, or machines closer to each other",
}


@dataclass(frozen=True)
class Forecast:
    """The forecast of a job on a cluster.

    records_per_second: The speed with all workers.
    alone: The speed of one worker, with one ps replica or with all, and with one or several
        minibatches in an exchange.
    bottleneck: The resource that helps most if it is twice as fast.
    gains: For each resource, the factor of the speed if the resource is twice as fast.
    balance: The records of a day, with losses.
    """

    cluster: Cluster
    records_per_second: float
    alone: float
    bottleneck: Resource
    gains: Mapping[Resource, float]
    balance: Balance

    @property
    def efficiency(self) -> float:
        """The speed, compared with as many workers that share nothing and do not straggle."""
        return self.records_per_second / (self.alone * self.cluster.workers)


def forecast(costs: Costs, cluster: Cluster, hazards: Hazards, seconds: float) -> Forecast:
    """Simulate a job alone, whole, with each resource made faster, and with losses."""
    whole = records_per_second(costs, cluster)
    # With few ps replicas, one of them may serve one worker better than all: fewer frames.
    alone = max(
        records_per_second(
            replace(costs, exchange_minibatches=together),
            replace(cluster, workers=1, ps=ps, straggler_share=0.0),
        )
        for ps in {1, cluster.ps}
        for together in {1, costs.exchange_minibatches}
    )
    gains = {
        resource: records_per_second(costs, cluster.faster(resource, TWICE)) / whole
        for resource in _resources(cluster)
    }
    balance = hours(
        hazards,
        _Speed(costs, cluster, whole),
        cluster.workers,
        cluster.ps,
        costs.minibatch_size,
        seconds,
    )
    # The bottleneck is what helps when it is faster; a busy resource alone may be no bottleneck.
    bottleneck = max(gains, key=lambda resource: gains[resource])
    return Forecast(cluster, whole, alone, bottleneck, gains, balance)


class _Speed:
    """The speed with fewer workers: simulated for some numbers, and interpolated between them."""

    def __init__(self, costs: Costs, cluster: Cluster, whole: float) -> None:
        self._points = [(0, 0.0), (cluster.workers, whole)]
        if (few := round(0.8 * cluster.workers)) < cluster.workers:
            found = records_per_second(costs, replace(cluster, workers=max(few, 1)))
            # Fewer workers are never faster; a simulation may say so by chance.
            self._points.insert(1, (max(few, 1), min(found, whole)))

    def __call__(self, workers: int) -> float:
        for (few, slow), (many, fast) in zip(self._points, self._points[1:], strict=False):
            if workers <= many:
                return slow + (fast - slow) * (workers - few) / (many - few)
        return self._points[-1][1]


def _resources(cluster: Cluster) -> list[Resource]:
    if cluster.shared_cores is None:
        return list(Resource)
    return [Resource.COMPUTE, Resource.PS_PROCESSOR, Resource.INPUT, Resource.MASTER]

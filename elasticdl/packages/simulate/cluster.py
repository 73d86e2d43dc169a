"""The cluster on which a job is simulated."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

from elasticdl.errors import ConfigError

GIGABIT = 1e9 / 8


class Resource(Enum):
    """The resources that may bound a job."""

    COMPUTE = "compute"
    WORKER_NETWORK = "network of worker"
    PS_NETWORK = "network of ps"
    PS_PROCESSOR = "ps processor"
    INPUT = "input bandwidth"
    MASTER = "master"
    LATENCY = "latency"


@dataclass(frozen=True)
class Cluster:
    """Machines, network and storage of a job.

    workers, ps: The numbers of processes.
    worker_cores, ps_cores: The cores of the machine of each.
    shared_cores: The cores of one machine with all processes, without a network; None: each process
        has a machine of its own.
    processor_speed: How much faster a core is than the one on which costs were measured.
    ps_speed, master_speed: The same for ps replicas and master.
    worker_network, ps_network: Bytes a second of a machine, in each direction.
    latency: Seconds from one machine to another.
    input_bandwidth: Bytes a second of the storage, for all workers together.
    straggler_share: The share of the workers that take `straggler_factor` times as long.
    in_flight: The largest number of minibatches between pull and push.
    """

    workers: int
    ps: int
    worker_cores: float = 4.0
    ps_cores: float = 4.0
    shared_cores: float | None = None
    processor_speed: float = 1.0
    ps_speed: float = 1.0
    master_speed: float = 1.0
    worker_network: float = 10 * GIGABIT
    ps_network: float = 10 * GIGABIT
    latency: float = 100e-6
    input_bandwidth: float = math.inf
    straggler_share: float = 0.0
    straggler_factor: float = 1.0
    in_flight: int = 3

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ConfigError: A number is too small; names it.
        """
        for name in ("workers", "ps", "in_flight"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name}: expected at least 1, found {getattr(self, name)}")
        for name in ("worker_cores", "ps_cores", "worker_network", "ps_network", "input_bandwidth"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"--{name}: expected more than 0, found {getattr(self, name)}")
        if not 0 <= self.straggler_share <= 1 <= self.straggler_factor < math.inf:
            raise ConfigError(
                "--stragglers: expected a share from 0 to 1 and a factor of at least 1, found "
                f"{self.straggler_share:g}:{self.straggler_factor:g}"
            )

    def faster(self, resource: Resource, times: float) -> Cluster:
        """Return the same cluster with one resource made faster."""
        match resource:
            case Resource.COMPUTE:
                return replace(self, processor_speed=self.processor_speed * times)
            case Resource.WORKER_NETWORK:
                return replace(self, worker_network=self.worker_network * times)
            case Resource.PS_NETWORK:
                return replace(self, ps_network=self.ps_network * times)
            case Resource.PS_PROCESSOR:
                return replace(self, ps_speed=self.ps_speed * times)
            case Resource.INPUT:
                return replace(self, input_bandwidth=self.input_bandwidth * times)
            case Resource.MASTER:
                return replace(self, master_speed=self.master_speed * times)
            case Resource.LATENCY:
                return replace(self, latency=self.latency / times)

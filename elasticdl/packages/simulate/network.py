"""The servers of workers: the ps replicas, the master and the storage, each with a queue."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from elasticdl.packages.simulate.cluster import Cluster
from elasticdl.packages.simulate.costs import Costs
from elasticdl.packages.simulate.machine import Actor, Agenda, Effect, Machine, Resume


class Queue:
    """Serves in order: the input bandwidth, or the master on a machine of its own."""

    def __init__(self) -> None:
        self._free = 0.0

    def serve(self, now: float, seconds: float) -> float:
        """Return the time when a request that comes now is served."""
        self._free = max(now, self._free) + seconds
        return self._free


class Link:
    """The connection of one worker to the network, in both directions."""

    def __init__(self, bandwidth: float) -> None:
        self.bandwidth = bandwidth
        self.out, self.back = Queue(), Queue()


class Replicas(Protocol):
    """All ps replicas; an exchange goes to each of them."""

    def exchange(self, link: Link, seconds: float, sent: float, returned: float) -> Effect:
        """Return an effect: a pull or a push; it continues when all have answered.

        Args:
            link: The link of the worker.
            seconds: The work of each replica.
            sent: The bytes to all replicas together.
            returned: The bytes from all of them together.
        """
        ...


class OwnMachines:
    """Ps replicas with a machine each: incoming network, cores, outgoing network."""

    def __init__(self, agenda: Agenda, costs: Costs, cluster: Cluster) -> None:
        self._agenda, self._cluster = agenda, cluster
        num = cluster.ps
        self._in, self._cores, self._out = np.zeros(num), np.zeros(num), np.zeros(num)
        self._part = np.arange(1, num + 1) / num
        self._wait = costs.wait

    def exchange(self, link: Link, seconds: float, sent: float, returned: float) -> Effect:
        """See `Replicas`."""
        agenda, cluster = self._agenda, self._cluster
        service = seconds / cluster.ps_speed

        def begin(actor: Actor, resume: Resume) -> None:
            now = agenda.now
            last = link.out.serve(now, sent / link.bandwidth)
            first = last - sent / link.bandwidth
            # A worker sends to one replica after the other, so the last one gets its part last.
            came = first + (last - first) * self._part + cluster.latency
            np.maximum(self._in, came, out=self._in)
            self._in += sent / cluster.ps / cluster.ps_network
            # One core works on one frame at a time, and all cores of a replica on several.
            np.maximum(self._cores, self._in, out=self._cores)
            self._cores += service / cluster.ps_cores
            served = self._cores + service * (1 - 1 / cluster.ps_cores)
            np.maximum(self._out, served, out=self._out)
            self._out += returned / cluster.ps / cluster.ps_network
            back = link.back.serve(float(self._out.min()), returned / link.bandwidth)
            answered = max(back, float(self._out.max())) + cluster.latency + self._wait
            agenda.at(answered, resume)

        return begin


class Neighbours:
    """Ps replicas on the same machine as all other processes."""

    def __init__(self, agenda: Agenda, machine: Machine, costs: Costs, cluster: Cluster) -> None:
        self._agenda, self._machine, self._wait = agenda, machine, costs.wait
        self._speed = cluster.ps_speed
        self._replicas = [Actor(("ps", number)) for number in range(cluster.ps)]

    def exchange(self, link: Link, seconds: float, sent: float, returned: float) -> Effect:
        """See `Replicas`."""
        service = seconds / self._speed

        def begin(actor: Actor, resume: Resume) -> None:
            left = len(self._replicas)

            def answered() -> None:
                nonlocal left
                left -= 1
                if not left:
                    self._agenda.at(self._agenda.now + self._wait, resume)

            for replica in self._replicas:
                self._machine.work(service)(replica, answered)

        return begin

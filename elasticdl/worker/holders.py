"""Connects a worker process with the holders of the parameters, and leaves them in order."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from elasticdl import registry
from elasticdl._core import PsClient
from elasticdl.backends.base import Trainer
from elasticdl.job import PsRoute
from elasticdl.rpc.client import GrpcMasterClient
from elasticdl.runtime.process import ProcessArguments
from elasticdl.worker.exchange import Exchange
from elasticdl.worker.ring import MakeRing, Ring
from elasticdl.worker.route import Route, connect
from elasticdl.worker.row_source import sources_of
from elasticdl.worker.stores import StoreExchange

_PS_DEADLINE_SECONDS = 600.0  # a replica that died has to be started and to load its checkpoint
_PS_CONNECT_SECONDS = 20.0  # the master has said that it is there
_TELL_SECONDS = 3.0  # for the master to answer a worker that leaves


class Holders:
    """The ps replicas and the world of workers, as one worker process uses them.

    route: The addresses of the ps replicas.
    ring: The part of this worker in a world, once there is one.
    """

    def __init__(self, arguments: ProcessArguments, master: GrpcMasterClient) -> None:
        """Connect to nothing yet."""
        self._arguments = arguments
        self._master = master
        self.route = Route()
        self.ring: Ring | None = None

    def exchange(self, trainer: Trainer) -> Exchange:
        """Return the exchange with the holders of parameters in this job."""
        config, stores = self._arguments.config, None
        if config.num_ps:
            dial = partial(dial_replicas, self._arguments)
            client = connect(self._master.ps_route, dial, self.route)
            training = config.training
            steps, per_task = training.get_model_steps, training.num_minibatches_per_task
            stores = StoreExchange(client, trainer, self.route, steps, per_task)
        sources = sources_of(trainer, self._arguments, self._master)
        if config.has_worlds:
            make: MakeRing = registry.only("rings")  # the command has checked that there is one
            self.ring = make(trainer, self._arguments, self._master)
        return Exchange(stores, self.ring, sources)

    def leave(self) -> None:
        """Leave the world, and hand over the parameters if no other worker has them."""
        if self.ring is None:
            return
        index = self._arguments.index
        # The member leaves first: after that no round changes the parameters that are handed over.
        self.ring.member.leave()
        if folder := self._master.leave_holder(index, _TELL_SECONDS):
            version = self.ring.hand_over(Path(folder))
            self._master.hand_over(index, version, _TELL_SECONDS)
        self.ring.close()

    def close(self) -> None:
        """Leave the world; its other workers have the same parameters."""
        if self.ring is not None:
            self.ring.close()


def dial_replicas(arguments: ProcessArguments, route: PsRoute) -> PsClient:
    """Connect to the ps replicas of a route."""
    return PsClient.connect(
        route.addresses,
        arguments.token,
        arguments.index,
        _PS_DEADLINE_SECONDS,
        _PS_CONNECT_SECONDS,
        tls=arguments.tls.as_tuple() if arguments.tls else None,
        layout=route.layout,
    )

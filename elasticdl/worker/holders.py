"""Connects a worker process with the holders of the parameters, and leaves them in order."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from elasticdl._core import PsClient, PsServer, RingListener, Store
from elasticdl.backends.base import Trainer
from elasticdl.checkpoints.dense import DENSE
from elasticdl.checkpoints.remote import Sender
from elasticdl.data.updates import UpdateOrder
from elasticdl.job import PsRoute, Role
from elasticdl.rpc.client import GrpcMasterClient
from elasticdl.runtime.addresses import port_of
from elasticdl.runtime.process import ProcessArguments, scratch_folder
from elasticdl.worker.all_reduce import RingExchange
from elasticdl.worker.exchange import Exchange
from elasticdl.worker.replica import Replica
from elasticdl.worker.ring_member import RingMember
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
        self._tls = arguments.tls.as_tuple() if arguments.tls else None
        self.route = Route()
        self.ring: RingExchange | None = None

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
            self.ring = self._join(trainer)
        return Exchange(stores, self.ring, sources)

    def leave(self) -> None:
        """Leave the world, and hand over the parameters if no other worker has them."""
        if self.ring is None:
            return
        index = self._arguments.index
        # The member leaves first: after that no round changes the parameters that are handed over.
        self.ring.member.leave()
        if folder := self._master.leave_holder(index, _TELL_SECONDS):
            version = self.ring.replica.hand_over(Path(folder))
            self._master.hand_over(index, version, _TELL_SECONDS)
        self.ring.close()

    def close(self) -> None:
        """Leave the world; its other workers have the same parameters."""
        if self.ring is not None:
            self.ring.close()

    def _join(self, trainer: Trainer) -> RingExchange:
        """Return the part in a world; it is not active before a model is declared to it."""
        arguments, master = self._arguments, self._master
        listening, training = arguments.listening, arguments.config.training
        sender = Sender(scratch_folder(arguments.job_dir, Role.WORKER, arguments.index))

        def serve(store: Store) -> PsServer:
            bind, token = listening.bind, arguments.token
            return PsServer(store, bind, 0, token, far=sender, tls=self._tls, is_copy=True)

        replica = Replica(
            serve,
            arguments.config.checkpoint.checkpoint_dir_for_init,
            training.global_batch_size,
            DENSE if arguments.config.num_ps else "",
            partial(UpdateOrder.of, training),
            sender.folder,
        )
        listener = RingListener(listening.bind, 0, arguments.token, tls=self._tls)
        member = RingMember(
            lambda said: master.attend(arguments.index, said),
            listener,
            listening.at(port_of(listener.address)),
            replica,
            lambda: listening.at(port_of(replica.address)) if replica.address else "",
        )
        return RingExchange(trainer, replica, member)


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

"""Makes a worker's part in a world of all-reduce."""

from __future__ import annotations

from functools import partial

from elasticdl._core import PsServer, RingListener, Store
from elasticdl.backends.base import Trainer
from elasticdl.checkpoints.dense import DENSE
from elasticdl.checkpoints.remote import Sender
from elasticdl.data.updates import UpdateOrder
from elasticdl.job import Role
from elasticdl.packages.all_reduce.exchange import RingExchange
from elasticdl.packages.all_reduce.replica import Replica
from elasticdl.packages.all_reduce.ring_member import RingMember
from elasticdl.rpc.client import GrpcMasterClient
from elasticdl.runtime.addresses import port_of
from elasticdl.runtime.process import ProcessArguments, scratch_folder


def join(trainer: Trainer, arguments: ProcessArguments, master: GrpcMasterClient) -> RingExchange:
    """Return the part in a world; it is not active before a model is declared to it."""
    config, listening = arguments.config, arguments.listening
    tls = arguments.tls.as_tuple() if arguments.tls else None
    sender = Sender(scratch_folder(arguments.job_dir, Role.WORKER, arguments.index))

    def serve(store: Store) -> PsServer:
        bind, token = listening.bind, arguments.token
        return PsServer(store, bind, 0, token, far=sender, tls=tls, is_copy=True)

    replica = Replica(
        serve,
        config.checkpoint.checkpoint_dir_for_init,
        config.training.global_batch_size,
        DENSE if config.num_ps else "",
        partial(UpdateOrder.of, config.training),
        sender.folder,
    )
    listener = RingListener(listening.bind, 0, arguments.token, tls=tls)
    member = RingMember(
        lambda said: master.attend(arguments.index, said),
        listener,
        listening.at(port_of(listener.address)),
        replica,
        lambda: listening.at(port_of(replica.address)) if replica.address else "",
    )
    return RingExchange(trainer, replica, member)

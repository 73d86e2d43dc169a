"""`python -m elasticdl.ps`: one ps replica. Python starts it; Rust serves."""

import logging
import os
import threading

from elasticdl import process
from elasticdl._core import PsServer, Store
from elasticdl.config import JobConfig
from elasticdl.job import Role
from elasticdl.ps.checkpoint import resolve
from elasticdl.rpc.client import GrpcMasterClient

log = logging.getLogger(__name__)


def main() -> None:
    """Restore or create the store, serve it, and tell the master where."""
    arguments = process.start(Role.PS)
    master = GrpcMasterClient(arguments.master, arguments.token)
    store = make_store(arguments.config, arguments.index, master.restore_point(arguments.index))
    training = arguments.config.training
    if training.staleness_lr_modulation:
        store.modulate_learning_rate()
    server = PsServer(
        store,
        "127.0.0.1",
        0,
        arguments.token,
        max_staleness=training.max_staleness,
        grads_to_wait=arguments.config.grads_to_wait,
        sync_version_tolerance=training.sync_version_tolerance,
    )
    try:
        master.register_ps(arguments.index, server.address, os.getpid())
        pause = threading.Event()  # never set: SIGTERM ends the process
        while not pause.wait(arguments.config.cluster.heartbeat_seconds):
            master.heartbeat(Role.PS, arguments.index)
    finally:
        server.stop()


def make_store(config: JobConfig, replica: int, restore_point: str) -> Store:
    """Return the replica's part of the checkpoint to start from, or an empty store.

    Args:
        config: The job's settings.
        replica: Which replica.
        restore_point: Checkpoint of this job, written before this replica was lost; "" if none.
    """
    replicas = config.cluster.num_ps_pods
    if restore_point:
        log.info("restoring %s", restore_point)
        return Store.restore(restore_point, replica, replicas, keep_watermarks=True)
    source = config.checkpoint.checkpoint_dir_for_init
    if source is None:
        store = Store(replica, replicas)
    else:
        store = Store.restore(str(resolve(source)), replica, replicas, keep_watermarks=False)
    store.set_memory_limit(config.cluster.ps_memory_limit)
    return store


if __name__ == "__main__":
    main()

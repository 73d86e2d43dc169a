"""`python -m elasticdl.ps`: one ps replica. Python starts it; Rust serves."""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from elasticdl import process
from elasticdl._core import Progress, PsServer, Store
from elasticdl.addresses import port_of
from elasticdl.checkpoints.pretrained import begin_with_pretrained
from elasticdl.checkpoints.versions import resolve
from elasticdl.config import JobConfig
from elasticdl.errors import CheckpointError, ElasticdlError
from elasticdl.job import Role
from elasticdl.rpc.client import GrpcMasterClient

log = logging.getLogger(__name__)


def main() -> None:
    """Restore or create the store, serve it, and tell the master where."""
    arguments = process.start(Role.PS)
    master = GrpcMasterClient(arguments.master, arguments.token, tls=arguments.tls)
    with process.renewal(arguments, Role.PS, master.renew_certificate):
        serve(arguments, master)


def serve(arguments: process.ProcessArguments, master: GrpcMasterClient) -> None:
    """Serve the parameters until this process is asked to end."""
    seconds, progress = arguments.config.cluster.heartbeat_seconds, Progress()
    with shown(progress, lambda: master.heartbeat(Role.PS, arguments.index), seconds):
        store = make_store(arguments.config, arguments.index, master.restore_point, progress)
    training = arguments.config.training
    if training.staleness_lr_modulation:
        store.modulate_learning_rate()
    server = PsServer(
        store,
        arguments.listening.bind,
        0,
        arguments.token,
        max_staleness=training.max_staleness,
        grads_to_wait=arguments.config.grads_to_wait,
        sync_version_tolerance=training.sync_version_tolerance,
        tls=arguments.tls.as_tuple() if arguments.tls else None,
    )
    try:
        address = arguments.listening.at(port_of(server.address))
        master.register_ps(arguments.index, address, os.getpid())
        pause = threading.Event()  # never set: SIGTERM ends the process
        while not pause.wait(seconds):
            master.heartbeat(Role.PS, arguments.index)
    finally:
        server.stop()


@contextmanager
def shown(progress: Progress, heartbeat: Callable[[], object], seconds: float) -> Iterator[None]:
    """Send heartbeats within the block, every so many seconds, as long as there is progress.

    A restore may take as long as it likes; one that hangs, on a disk that does not answer, is given
    up by the master for its silence.
    """
    ended = threading.Event()

    def show() -> None:
        seen = progress.pieces
        while not ended.wait(seconds):
            pieces = progress.pieces
            if pieces == seen:
                continue
            seen = pieces
            try:
                heartbeat()
            except ElasticdlError as error:
                log.warning("the master does not hear of the restore: %s", error)

    thread = threading.Thread(target=show, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def make_store(
    config: JobConfig,
    replica: int,
    restore_point: Callable[[int, int, str], str],
    progress: Progress | None = None,
) -> Store:
    """Return the replica's part of the checkpoint to start from, or an empty store.

    Args:
        config: The job's settings.
        replica: Which replica.
        restore_point: Given the replica, how many checkpoints it has tried in vain and the last
            problem, returns one of this job, written before this replica was lost; "" if none.
        progress: Counts what is read.
    """
    store = _restored(config, replica, restore_point, progress)
    store = store or _first(config, replica, progress)
    store.set_memory_limit(config.cluster.ps_memory_limit)
    return store


def _restored(
    config: JobConfig,
    replica: int,
    restore_point: Callable[[int, int, str], str],
    progress: Progress | None,
) -> Store | None:
    """Return the replica's part of the newest sound checkpoint of this job; `None` if none."""
    num_unsound, problem = 0, ""
    while folder := restore_point(replica, num_unsound, problem):
        log.info("restoring %s", folder)
        try:
            return Store.restore(
                folder,
                replica,
                config.cluster.num_ps_pods,
                keep_watermarks=True,
                progress=progress,
            )
        except CheckpointError as error:
            log.warning("%s cannot be restored, an older one is tried: %s", folder, error)
            num_unsound, problem = num_unsound + 1, str(error)
    return None


def _first(config: JobConfig, replica: int, progress: Progress | None) -> Store:
    """Return what the replica had at the start of the job."""
    replicas = config.cluster.num_ps_pods
    source = config.checkpoint.checkpoint_dir_for_init
    if source is None:
        store = Store(replica, replicas)
        begin_with_pretrained(store, config.checkpoint.pretrained_rows, progress)
        return store
    return Store.restore(
        str(resolve(source)), replica, replicas, keep_watermarks=False, progress=progress
    )


if __name__ == "__main__":
    main()

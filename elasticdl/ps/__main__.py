"""`python -m elasticdl.ps`: one ps replica. Python starts the replica, and Rust serves it."""

import gc
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    gc.disable()  # what is imported stays; process.start has it looked for again

from elasticdl._core import Progress, PsServer, Store, traffic
from elasticdl.checkpoints.dense import begin_from
from elasticdl.checkpoints.first_rows import first_rows
from elasticdl.checkpoints.remote import Sender, restore
from elasticdl.checkpoints.versions import resolve
from elasticdl.config import JobConfig
from elasticdl.errors import CheckpointError, ElasticdlError, StoreError
from elasticdl.job import Label, ReplicaStart, Role
from elasticdl.observe import page
from elasticdl.observe.events import EventLog
from elasticdl.observe.labels import LabelClock
from elasticdl.observe.usage import kind_of, measure
from elasticdl.ps import redo_folder
from elasticdl.ps.departure import PsDeparture
from elasticdl.rpc.client import GrpcMasterClient
from elasticdl.runtime import process
from elasticdl.runtime.addresses import port_of

log = logging.getLogger(__name__)


def main() -> None:
    """Restore or create the store, serve it, and tell the master the address."""
    arguments = process.start(Role.PS)
    master = GrpcMasterClient(
        arguments.master, arguments.token, tls=arguments.tls, where=arguments.master_now
    )
    with process.renewal(arguments, Role.PS, master.renew_certificate):
        serve(arguments, master)


def serve(arguments: process.ProcessArguments, master: GrpcMasterClient) -> None:
    """Serve the parameters until this process is asked to end; then hand them over."""
    seconds, progress = arguments.config.cluster.heartbeat_seconds, Progress()
    labels = LabelClock()
    departure = PsDeparture(master, arguments.index, lambda: labels.enter(Label.CHECKPOINT))
    process.when_asked_to_end(departure.begin)
    heartbeats = Heartbeats(master, arguments.index, seconds, labels)
    sender = Sender(process.scratch_folder(arguments.job_dir, Role.PS, arguments.index))

    begun = ReplicaStart("")

    def restore_point(index: int, num_unsound: int, problem: str) -> ReplicaStart:
        nonlocal begun
        begun = start = master.restore_point(index, num_unsound, problem)
        labels.enter(Label.RECOVER if start.checkpoint else Label.STARTING)
        return start

    # A restore may be long, so it must send heartbeats.
    with shown(progress, heartbeats.beat, seconds):
        config = arguments.config
        store = make_store(config, arguments.index, restore_point, progress, sender.folder)
    training = arguments.config.training
    if training.staleness_lr_modulation:
        store.modulate_learning_rate()
    server = PsServer(
        store,
        arguments.listening.bind,
        0,
        arguments.token,
        max_staleness=arguments.config.staleness_bound,
        grads_to_wait=arguments.config.grads_to_wait,
        sync_version_tolerance=training.sync_version_tolerance,
        tls=arguments.tls.as_tuple() if arguments.tls else None,
        far=sender,
        layout=begun.layout,
        awaits_move=begun.awaits_move,
    )
    del store  # a move puts another one in its place
    try:
        address = arguments.listening.at(port_of(server.address))
        departure.server = server
        heartbeats.interval_seconds = master.register_ps(arguments.index, address, os.getpid())
        events = EventLog(arguments.job_dir, Role.PS, arguments.index)
        name = process.process_name(Role.PS, arguments.index)
        look_for_profiles = page.profiler(Role.PS)(server, arguments.job_dir, name)

        heartbeats.wants_checkpoint = RedoLog(server).look

        def look() -> None:
            check_rows(server)
            look_for_profiles()
            process.rotate_log(arguments.config, arguments.job_dir)

        stats = partial(stats_of, server)
        with page.serving(arguments, Role.PS, labels, traffic, stats=stats):
            heartbeats.serve(events, departure.is_over, look)
        raise SystemExit(process.STOPPED_EXIT_CODE)
    finally:
        server.stop()
        if (held := server.store) is not None:
            held.trim_redo_log()


def stats_of(server: PsServer) -> str:
    """Return the counters of the served store as JSON; without a store, those of an empty one."""
    store = server.store
    return Store().stats() if store is None else store.stats()


def check_rows(server: PsServer) -> None:
    """End this process if rows that were moved to `--ps_disk` cannot be read again.

    A new ps replica then restores the rows from a checkpoint.

    Raises:
        StoreError: The rows cannot be read.
    """
    store = server.store
    if store is not None and (problem := store.lost_rows) is not None:
        raise StoreError(problem)


class RedoLog:
    """Keeps a store's redo log short, and tells when the log notes nothing."""

    def __init__(self, server: PsServer) -> None:
        self._server = server
        self._problem: str | None = None

    def look(self) -> bool:
        """Remove what the log needs no longer; return whether a checkpoint should come soon.

        Each problem is logged once.
        """
        store = self._server.store
        state = None if store is None else store.trim_redo_log()
        _, wants_checkpoint, problem = state or (0, False, None)
        if problem and problem != self._problem:
            log.warning(
                "the redo log is interrupted until the next checkpoint: %s; if this replica is "
                "killed before that, the updates since the interruption are trained again",
                problem,
            )
        self._problem = problem
        return wants_checkpoint


class Heartbeats:
    """Tells the master that this ps replica is alive, and how it spent its time.

    Threads without Python serve the store, so no code can enter a label for them. While the replica
    serves, the processor seconds count as training, up to the seconds that passed. The rest counts
    as idle.
    """

    def __init__(
        self, master: GrpcMasterClient, index: int, interval_seconds: float, labels: LabelClock
    ) -> None:
        self._master = master
        self._index = index
        self.interval_seconds = interval_seconds
        self._labels = labels
        self._idle_seconds = self._cpu_seconds = 0.0
        self.wants_checkpoint: Callable[[], bool] = lambda: False
        """Asked before each heartbeat."""

    def serve(self, events: EventLog, is_over: threading.Event, look: Callable[[], object]) -> None:
        """Send heartbeats until this process has handed over its store; call `look` after each."""
        self._labels.enter(Label.IDLE)
        self._cpu_seconds = time.process_time()
        try:
            while not is_over.wait(self.interval_seconds):
                self.beat(events)
                look()
        finally:
            self._split()
            events.write(kind_of(measure(self._labels, traffic)))

    def beat(self, events: EventLog | None = None) -> None:
        """Send one heartbeat."""
        self._split()
        used = replace(measure(self._labels, traffic), wants_checkpoint=self.wants_checkpoint())
        if events is not None:
            events.write(kind_of(used))
        answer = self._master.heartbeat(
            Role.PS, self._index, usage=used, interval_seconds=self.interval_seconds
        )
        self.interval_seconds = answer.interval_seconds

    def _split(self) -> None:
        """Count the processor time since the last heartbeat as training."""
        if self._labels.label is not Label.IDLE:
            return
        worked = time.process_time() - self._cpu_seconds
        passed = self._labels.seconds()[Label.IDLE] - self._idle_seconds
        # Several threads may work at once, so the processor time can be more than the time that
        # passed.
        self._labels.move(Label.IDLE, min(worked, passed), to=Label.TRAIN)
        self._cpu_seconds += worked
        self._idle_seconds = self._labels.seconds()[Label.IDLE]


@contextmanager
def shown(progress: Progress, heartbeat: Callable[[], object], seconds: float) -> Iterator[None]:
    """Send a heartbeat each `seconds` within the block, as long as there is progress.

    A restore may take any time. A restore that hangs, on a disk that does not answer, sends no
    heartbeat, so the master gives the replica up.
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
    restore_point: Callable[[int, int, str], ReplicaStart],
    progress: Progress | None = None,
    scratch: Path | None = None,
) -> Store:
    """Return the replica's part of the checkpoint to start from, or an empty store.

    The updates since the checkpoint are in the replica's redo log. They are applied again, and the
    log goes on.

    Args:
        config: The job's settings.
        replica: The index of the replica.
        restore_point: Asks the master for a checkpoint. It is given the replica, the number of
            checkpoints that could not be restored, and the last problem. It returns the place of a
            checkpoint that this job wrote before the replica was lost, and the place of the
            replica's redo log.
        progress: Counts the pieces that are read.
        scratch: The folder for files that are fetched from URLs.
    """
    store, start = _restored(config, replica, restore_point, progress, scratch)
    replicas, redo_log = _count(config, start), start.redo_log
    if start.awaits_move:
        store = Store(replica, replicas)  # a move brings another one, which refuses the same
        store.refuse_leases_before(start.first_lease)
        return store
    store = store or _first(config, replica, replicas, progress, scratch)
    if redo_log:
        limit = config.redo_log_bytes
        # The log of another machine counts here only if it cannot be ahead of the master's journal.
        redo_folder.take_over(redo_log, start.journal_system)
        try:
            num_updates, num_minibatches = store.redo(redo_log, limit, progress)
        except CheckpointError as error:
            log.warning("no redo log is kept: %s", error)
        else:
            redo_folder.note(redo_log, start.journal_system)
            if num_updates:
                log.info("%d updates (%d minibatches) redone", num_updates, num_minibatches)
    store.set_memory_limit(config.cluster.ps_memory_limit)
    store.refuse_leases_before(start.first_lease)
    return store


def _restored(
    config: JobConfig,
    replica: int,
    restore_point: Callable[[int, int, str], ReplicaStart],
    progress: Progress | None,
    scratch: Path | None,
) -> tuple[Store | None, ReplicaStart]:
    """Return the replica's part of the newest sound checkpoint of this job; None if there is none.

    Also returns the master's last answer.
    """
    num_unsound, problem = 0, ""
    while True:
        start = restore_point(replica, num_unsound, problem)
        if not start.checkpoint:
            return None, start
        log.info("restoring %s", start.checkpoint)
        try:
            store = restore(
                start.checkpoint,
                replica,
                _count(config, start),
                keep_watermarks=True,
                progress=progress,
                scratch=scratch,
                disk=config.cluster.ps_room,
            )
        except CheckpointError as error:
            log.warning("%s cannot be restored, an older one is tried: %s", start.checkpoint, error)
            num_unsound, problem = num_unsound + 1, str(error)
        else:
            return store, start


def _count(config: JobConfig, start: ReplicaStart) -> int:
    """Return the number of replicas that share the model."""
    return start.num_replicas or config.cluster.num_ps_pods


def _first(
    config: JobConfig, replica: int, replicas: int, progress: Progress | None, scratch: Path | None
) -> Store:
    """Return the replica's store as it was at the start of the job."""
    source = config.checkpoint.checkpoint_dir_for_init
    if source is None:
        store = Store(replica, replicas, config.cluster.ps_room)
        if rows := config.checkpoint.pretrained_rows:
            first_rows().begin(store, rows, progress, replica, replicas)
        return store
    return begin_from(
        resolve(source),
        replica,
        replicas,
        has_dense=not config.has_worlds,
        progress=progress,
        scratch=scratch,
        disk=config.cluster.ps_room,
    )


if __name__ == "__main__":
    main()

"""Runs a job of `--distribution_strategy=Local`: master, worker and store are in this process."""

from __future__ import annotations

import faulthandler
import logging
import os
import queue
import sys
import tempfile
import threading
import time
from pathlib import Path

from elasticdl._core import PsClient, Store
from elasticdl.backends.base import FeedWay, Trainer
from elasticdl.checkpoints.dense import begin_from
from elasticdl.checkpoints.first_rows import first_rows
from elasticdl.checkpoints.remote import Sender
from elasticdl.checkpoints.versions import resolve
from elasticdl.cli.display import Display
from elasticdl.config import JobConfig
from elasticdl.data.base import DataReader
from elasticdl.data.sources import read_once_of
from elasticdl.job import Role, Shard, TaskKind
from elasticdl.job.status import JobStatus
from elasticdl.launchers.process.folder import new_folder
from elasticdl.locations import Location
from elasticdl.master.actions import Note
from elasticdl.master.durable import JobData
from elasticdl.master.effects import audits, expired_text
from elasticdl.master.in_process import InProcessMaster
from elasticdl.master.missing_tasks import Applied
from elasticdl.master.parameters.proof import Replicas
from elasticdl.model_spec import load_model_spec
from elasticdl.observe.kinds import OF_TASKS, JobEnded
from elasticdl.observe.labels import LabelClock
from elasticdl.observe.tracker import Trackers
from elasticdl.runtime.ending import DaemonThread
from elasticdl.worker.cores import threads_of
from elasticdl.worker.exchange import Exchange
from elasticdl.worker.heartbeat import Heartbeat
from elasticdl.worker.sources import open_readers
from elasticdl.worker.stores import StoreExchange
from elasticdl.worker.worker_process import WorkerProcess

_WORKER_ID = 0
_SECONDS_BETWEEN_PICTURES = 0.2
_SLOW_CHECKPOINT_SECONDS = 60.0
_TRACKER_SECONDS = 5.0  # for the last numbers

log = logging.getLogger(__name__)


def run(config: JobConfig, display: Display) -> JobStatus:
    """Run a job to its end in a thread of this process, and show the job.

    Raises:
        ElasticdlError: The job could not begin.
    """
    if config.cluster.job_dir is None:  # it is made if there is something to be kept in it
        cluster = config.cluster.model_copy(update={"job_dir": new_folder(config)})
        config = config.model_copy(update={"cluster": cluster})
    with tempfile.TemporaryDirectory(prefix="elasticdl-") as scratch:
        return _run(config, display, Sender(Path(scratch)))


def _run(config: JobConfig, display: Display, sender: Sender) -> JobStatus:
    display.starts()
    spec = load_model_spec(config.model, config.training.learning_rate)
    display.note(str(threads_of(config)))
    kept = read_once_of(config)
    if kept is not None:
        kept.read_to_end(config)
    client = PsClient.in_process(_make_store(config))
    master = InProcessMaster(
        config,
        _job_data(open_readers(config, spec)).checked(config),
        StoreAccess(client, sender),
        tell=lambda note: heard(note),
    )
    trackers = Trackers(config, master.job_id, config.cluster.job_dir or Path())
    job = _Job(config, master, client)

    def heard(note: Note) -> None:
        trackers.happened(note.kind)
        job.heard(note)

    # Signals arrive in the main thread, which stays free for them and for the display.
    thread = DaemonThread(job.run, "job")
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_SECONDS_BETWEEN_PICTURES)
            job.tell(display)
            status = master.status()
            display.show(status)
            trackers.take(status, master.learning_rate)
        job.tell(display)
    except KeyboardInterrupt:
        master.stop("interrupted")
        thread.join()
        raise
    finally:
        trackers.take(master.status(), master.learning_rate, is_last=True)
        for tracker in trackers.all:
            tracker.close(_TRACKER_SECONDS)
    if job.error is not None:
        raise job.error
    if kept is not None:
        kept.remove(config)
    return master.status()


class StoreAccess:
    """The one store of a job in this process (`ParameterAccess`)."""

    def __init__(self, client: PsClient, sender: Sender) -> None:
        """Keep the store's client, and the sender that copies files to URLs."""
        self._client = client
        self._sender = sender

    def checkpoint(self, directory: Location) -> list[str]:
        """Make the store write a checkpoint; if this takes long, print so, with the stack."""

        def tell() -> None:
            faulthandler.dump_traceback(file=sys.__stderr__ or 2, all_threads=True)
            log.error(
                "the checkpoint %s has taken %.0f s, and the job waits for it; if its disk does "
                "not answer, press Ctrl-C twice",
                directory,
                _SLOW_CHECKPOINT_SECONDS,
            )

        timer = threading.Timer(_SLOW_CHECKPOINT_SECONDS, tell)
        timer.daemon = True
        timer.start()
        try:
            return self._sender.write(directory, self._client.checkpoint)
        finally:
            timer.cancel()

    def write_dense(self, directory: Location) -> None:
        """Write nothing: the one store has all parameters."""

    def export(self, request: str) -> list[str]:
        """Make the store write its part of an export, which is the whole export."""
        return self._sender.export(request, self._client.export)

    def expire(self, now_seconds: int | None) -> str:
        """Remove the rows whose time to live has ended; return a sentence with their number."""
        return expired_text(self._client.expire(now_seconds or int(time.time())))

    def audit(self, first: int = 0) -> Replicas:
        """Return the minibatches of each task that the store has applied."""
        return audits(self._client.audit())

    def tally(self) -> dict[str, int]:
        """Return nothing: no other process pushes to the store."""
        return {}

    def applied_by(self, address: str, role: Role) -> Applied:
        """Do nothing: no other process has parameters, so this is never asked."""
        raise AssertionError("a job in one process has no ps replicas")


class _Job:
    """The worker's side of the job; it runs in its own thread, so that the display can be drawn."""

    def __init__(self, config: JobConfig, master: InProcessMaster, client: PsClient) -> None:
        self._config = config
        self._master = master
        self._client = client
        self.error: BaseException | None = None
        self._notes: queue.SimpleQueue[tuple[str, bool]] = queue.SimpleQueue()

    def tell(self, display: Display) -> None:
        """Show the notes that arrived since the last call."""
        while not self._notes.empty():
            text, is_problem = self._notes.get()
            (display.problem if is_problem else display.note)(text)

    def heard(self, note: Note) -> None:
        """Take in a note of the master; the end of the job is in its last picture."""
        if note.is_warning and not isinstance(note.kind, JobEnded):
            self._notes.put((note.text, isinstance(note.kind, OF_TASKS)))

    def run(self) -> None:
        """Work until the master has no task left."""
        try:
            self._work()
        except BaseException as error:
            self.error = error

    def _work(self) -> None:
        self._master.register_worker(_WORKER_ID, os.getpid())
        labels = LabelClock()
        beats = Heartbeat(self._master, _WORKER_ID, _SECONDS_BETWEEN_PICTURES, labels=labels)
        process = WorkerProcess(
            self._config,
            _WORKER_ID,
            self._master,
            self._hold,
            beats,
            labels,
            self._config.cluster.worker_devices or None,
            self._tell_feed,
            may_end=False,
        )
        with beats:
            worker = process.of_model_file()
            with process.watching(worker):
                worker.run()
                while not self._master.has_ended:  # it waits for a disk
                    time.sleep(_SECONDS_BETWEEN_PICTURES)

    def _hold(self, trainer: Trainer) -> Exchange:
        training = self._config.training
        stores = StoreExchange(
            self._client,
            trainer,
            get_model_steps=training.get_model_steps,
            minibatches_per_task=training.num_minibatches_per_task,
        )
        return Exchange(stores)

    def _tell_feed(self, way: FeedWay) -> None:
        if not way.is_slow:  # a warning is printed by the log
            self._notes.put((way.text, False))


def _make_store(config: JobConfig) -> Store:
    source = config.checkpoint.checkpoint_dir_for_init
    if source is None:
        store = Store(disk=config.cluster.ps_room)
        if rows := config.checkpoint.pretrained_rows:
            first_rows().begin(store, rows)
    else:
        store = begin_from(resolve(source), disk=config.cluster.ps_room)
    if config.training.staleness_lr_modulation:
        store.modulate_learning_rate()
    store.set_memory_limit(config.cluster.ps_memory_limit)
    return store


def _job_data(readers: dict[TaskKind, DataReader]) -> JobData:
    def shards(kind: TaskKind) -> tuple[Shard, ...]:
        return tuple(readers[kind].shards()) if kind in readers else ()

    return JobData(
        training=shards(TaskKind.TRAINING),
        validation=shards(TaskKind.EVALUATION),
        prediction=shards(TaskKind.PREDICTION),
    )

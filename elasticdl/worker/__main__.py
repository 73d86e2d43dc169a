"""`python -m elasticdl.worker`: one worker process."""

from __future__ import annotations

import gc
import os

if __name__ == "__main__":
    gc.disable()  # what is imported stays; process.start has it looked for again

from elasticdl import registry
from elasticdl._core import take_hot_keys, traffic
from elasticdl.backends.base import FeedWay
from elasticdl.job import HeartbeatAnswer, Role
from elasticdl.observe import page
from elasticdl.observe.events import EventLog
from elasticdl.observe.kinds import FeedPath
from elasticdl.observe.labels import LabelClock
from elasticdl.rpc.client import GrpcMasterClient
from elasticdl.runtime import ending, process
from elasticdl.settings.devices import names
from elasticdl.worker.departure import WorkerDeparture
from elasticdl.worker.device_seat import take_seat
from elasticdl.worker.heartbeat import Heartbeat
from elasticdl.worker.holders import Holders
from elasticdl.worker.loop import Worker
from elasticdl.worker.watch import Watch
from elasticdl.worker.worker_process import Program, WorkerProcess


def main() -> None:
    """Register with the master, build the model, work until the job is finished."""
    arguments = process.start(Role.WORKER)
    master = GrpcMasterClient(
        arguments.master, arguments.token, tls=arguments.tls, where=arguments.master_now
    )
    with process.renewal(arguments, Role.WORKER, master.renew_certificate):
        OwnProcess(arguments, master).work()


class OwnProcess:
    """A worker in a process of its own: others may have it end, profile it, and wait for it."""

    def __init__(self, arguments: process.ProcessArguments, master: GrpcMasterClient) -> None:
        """Register with the master; there is no model yet."""
        # The order matters. The device is chosen before a framework is imported, and the signal
        # handler is set before the master knows this worker, so a worker that is asked to end early
        # still leaves in order.
        config, index = arguments.config, arguments.index
        self._arguments = arguments
        self._seat = take_seat(names(config.cluster.worker_devices), arguments.job_dir)
        self._holders = Holders(arguments, master)
        self._departure = WorkerDeparture(master, index, self._holders.leave)
        process.when_asked_to_end(self._departure.begin)
        interval, self._labels = master.register_worker(index, os.getpid()), LabelClock()
        self._events = EventLog(arguments.job_dir, Role.WORKER, index)
        self._heartbeat = Heartbeat(
            master,
            index,
            interval,
            self._events,
            self._holders.route,
            self._labels,
            traffic,
            take_hot_keys,
        )
        self._process = WorkerProcess(
            config,
            index,
            master,
            self._holders.exchange,
            self._heartbeat,
            self._labels,
            self._seat.device,
            self._tell_feed,
        )

    def work(self) -> None:
        """Take part in the job until it is finished."""
        model, beats = self._arguments.config.model, self._heartbeat
        serving = page.serving(
            self._arguments, Role.WORKER, self._labels, traffic, lambda: beats.progress()
        )
        with beats, serving:
            if model.script is not None:
                programs: dict[str, Program] = registry.brought("programs")
                programs["script"](self._process, self._watching, self._leave)
                return
            worker = self._process.of_model_file()
            with self._watching(worker):
                process.run_to_own_failure(worker.run)
                self._leave()

    def _watching(self, worker: Worker) -> Watch:
        """Connect the other threads with a worker; return the context in which it runs."""
        arguments, ring, activity = self._arguments, self._holders.ring, worker.spans.activity
        self._departure.worker = worker
        name = process.process_name(Role.WORKER, arguments.index)
        look_for_profiles = page.profiler(Role.WORKER)(worker.spans, arguments.job_dir, name)

        def follow(answer: HeartbeatAnswer) -> None:
            look_for_profiles()
            process.rotate_log(arguments.config, arguments.job_dir)
            activity.recover(answer.is_recovering)
            if ring is not None:
                ring.member.world_ends(answer.ended_world)
                # The computing thread may compute for long before it meets the error, so this
                # thread ends the process.
                if ring.member.error is not None:
                    process.fail_now(ring.member.error)

        self._heartbeat.follow = follow
        if ring is not None:
            ring.member.when_forming(activity.form)
        return self._process.watching(worker)

    def _leave(self) -> None:
        """The worker has run: end the process if it was asked to, else leave the others."""
        self._departure.finish()
        self._holders.close()

    def _tell_feed(self, way: FeedWay) -> None:
        self._events.write(FeedPath(), way.text)


if __name__ == "__main__":
    ending.run(main)

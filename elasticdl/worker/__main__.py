"""`python -m elasticdl.worker`: one worker process."""

import os
from functools import partial
from pathlib import Path

from elasticdl._core import PsClient, PsServer, RingListener, Store, take_hot_keys, traffic
from elasticdl.backends import own_profile
from elasticdl.backends.base import Trainer
from elasticdl.checkpoints.dense import DENSE
from elasticdl.checkpoints.remote import Sender
from elasticdl.data.updates import UpdateOrder
from elasticdl.job import HeartbeatAnswer, Role
from elasticdl.observe import process_metrics
from elasticdl.observe.events import EventLog
from elasticdl.observe.kinds import FeedPath
from elasticdl.observe.labels import LabelClock
from elasticdl.rpc.client import GrpcMasterClient
from elasticdl.runtime import process
from elasticdl.runtime.addresses import port_of
from elasticdl.settings.devices import names
from elasticdl.worker.all_reduce import RingExchange
from elasticdl.worker.assemble import assemble, assemble_script
from elasticdl.worker.departure import Departure
from elasticdl.worker.exchange import Exchange
from elasticdl.worker.heartbeat import Heartbeat
from elasticdl.worker.loop import Worker
from elasticdl.worker.profile import Profiler
from elasticdl.worker.replica import Replica
from elasticdl.worker.ring_member import RingMember
from elasticdl.worker.route import Route, connect
from elasticdl.worker.script import ScriptJob, run_script
from elasticdl.worker.seat import take_seat
from elasticdl.worker.stores import StoreExchange
from elasticdl.worker.watch import Watch
from elasticdl.worker.watchdog import Watchdog

_PS_DEADLINE_SECONDS = 600.0  # a replica that died has to be started and to load its checkpoint
_PS_CONNECT_SECONDS = 20.0  # the master has said that it is there
_TELL_SECONDS = 3.0  # for the master to answer a worker that leaves


def main() -> None:
    """Register with the master, build the model, work until the job is finished."""
    arguments = process.start(Role.WORKER)
    master = GrpcMasterClient(
        arguments.master, arguments.token, tls=arguments.tls, where=arguments.master_now
    )
    with process.renewal(arguments, Role.WORKER, master.renew_certificate):
        work(arguments, master)


def work(arguments: process.ProcessArguments, master: GrpcMasterClient) -> None:
    """Take part in the job until it is finished."""
    labels = LabelClock()
    devices = names(arguments.config.cluster.worker_devices)
    seat = take_seat(devices, arguments.job_dir)
    departure = Departure(master, arguments.index)
    process.when_asked_to_end(departure.begin)
    interval = master.register_worker(arguments.index, os.getpid())

    route = Route()

    def dial(addresses: list[str]) -> PsClient:
        return PsClient.connect(
            addresses,
            arguments.token,
            arguments.index,
            _PS_DEADLINE_SECONDS,
            _PS_CONNECT_SECONDS,
            tls=arguments.tls.as_tuple() if arguments.tls else None,
        )

    reducers: list[RingExchange] = []

    def reduce(trainer: Trainer) -> RingExchange:
        reducers.append(join_world(arguments, master, trainer))
        return reducers[0]

    events = EventLog(arguments.job_dir, Role.WORKER, arguments.index)
    beats = Heartbeat(
        master, arguments.index, interval, events, route, labels, traffic, take_hot_keys
    )
    with (
        beats as heartbeat,
        process_metrics.serving(
            arguments, Role.WORKER, labels, traffic, lambda: heartbeat.progress()
        ),
    ):

        def leave_world() -> None:
            for exchange in reducers:
                exchange.close()

        def leave() -> None:
            departure.finish()
            leave_world()

        def watching(worker: Worker) -> Watch:
            """Have others follow what a worker does; return the context to run it in."""
            departure.worker = worker
            heartbeat.progress = worker.progress
            name = process.process_name(Role.WORKER, arguments.index)
            profiler = Profiler(worker.spans, arguments.job_dir, name, own_profile.begin)

            def follow(answer: HeartbeatAnswer) -> None:
                profiler.look()
                process.rotate_log(arguments.config, arguments.job_dir)
                worker.spans.activity.recover(answer.is_recovering)
                for exchange in reducers:
                    exchange.member.world_ends(answer.ended_world)
                    if exchange.member.error is not None:
                        process.fail_now(exchange.member.error)

            heartbeat.follow = follow
            for exchange in reducers:
                exchange.member.when_forming(worker.spans.activity.form)
            watchdog = Watchdog(arguments.config.training.task_timeout_seconds)
            cluster = arguments.config.cluster
            look, silence = cluster.heartbeat_seconds, cluster.heartbeat_timeout_seconds
            return Watch(watchdog, worker.under_way, master, arguments.index, look, silence)

        def hold(trainer: Trainer) -> Exchange:
            if arguments.config.has_worlds:
                return Exchange(ring=reduce(trainer))
            return Exchange(StoreExchange(connect(master.ps_route, dial, route), trainer, route))

        def of_script(trainer: Trainer) -> tuple[Worker, RingExchange | None]:
            worker = assemble_script(
                arguments.config, arguments.index, master, trainer, hold, labels
            )
            return worker, reducers[0] if reducers else None

        def farewell() -> None:
            for exchange in reducers:
                exchange.member.leave()
                if folder := master.leave_holder(arguments.index, _TELL_SECONDS):
                    version = exchange.replica.hand_over(Path(folder))
                    master.hand_over(arguments.index, version, _TELL_SECONDS)
            leave_world()

        departure.farewell = farewell
        model = arguments.config.model
        if model.script is not None:
            job = ScriptJob(
                arguments.config, arguments.index, of_script, watching, leave, seat.device
            )
            run_script(model.script, model.script_arguments, job)
            return
        worker = assemble(
            arguments.config,
            arguments.index,
            master,
            lambda: connect(master.ps_route, dial, route),
            route,
            labels,
            reduce if arguments.config.has_worlds else None,
            seat.device,
            lambda way: events.write(FeedPath(), way.text),
        )
        with watching(worker):
            process.run_to_own_failure(worker.run)
            leave()


def join_world(
    arguments: process.ProcessArguments, master: GrpcMasterClient, trainer: Trainer
) -> RingExchange:
    """Return a worker's part in a job of all-reduce; nothing happens before it is declared."""
    listening, checkpoint = arguments.listening, arguments.config.checkpoint
    sender = Sender(process.scratch_folder(arguments.job_dir, Role.WORKER, arguments.index))
    tls = arguments.tls.as_tuple() if arguments.tls else None

    def serve(store: Store) -> PsServer:
        return PsServer(
            store, listening.bind, 0, arguments.token, far=sender, tls=tls, is_copy=True
        )

    training = arguments.config.training
    replica = Replica(
        serve,
        checkpoint.checkpoint_dir_for_init,
        training.global_batch_size,
        DENSE if arguments.config.num_ps else "",
        partial(UpdateOrder.of, training),
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


if __name__ == "__main__":
    main()

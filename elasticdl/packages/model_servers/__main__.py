"""`python -m elasticdl.packages.model_servers`: one model server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Sequence

from elasticdl._core import traffic
from elasticdl.backends.base import Int64, Pulled
from elasticdl.job import HeartbeatAnswer, Label, Role
from elasticdl.model_spec import load_model_spec
from elasticdl.observe import page
from elasticdl.observe.events import EventLog
from elasticdl.observe.labels import LabelClock
from elasticdl.packages.model_servers.computer import TowerComputer
from elasticdl.packages.model_servers.service import TowerService, make_server
from elasticdl.packages.model_servers.settings import ModelServersSection
from elasticdl.packages.model_servers.tower_rows import having_towers
from elasticdl.packages.model_servers.windows import ServerCounts
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.client import GrpcMasterClient
from elasticdl.rpc.elasticdl_pb2_grpc import ModelServersStub
from elasticdl.rpc.security import add_port
from elasticdl.runtime import ending, process
from elasticdl.runtime.addresses import join
from elasticdl.worker.data_check import metadata_of
from elasticdl.worker.exchange import half_of_stores
from elasticdl.worker.heartbeat import Heartbeat
from elasticdl.worker.holders import dial_replicas
from elasticdl.worker.route import Route, connect
from elasticdl.worker.sources import open_readers
from elasticdl.worker.stores import StoreExchange
from elasticdl.worker.worker_process import build_trainer

log = logging.getLogger(__name__)
_TOLD_SECONDS = 10.0
_EXIT_SECONDS = 2.0  # to say what was done


def main() -> None:
    """Build the model, listen, tell the master where, and answer until asked to end."""
    arguments = process.start(Role.MODEL_SERVER)
    master = GrpcMasterClient(
        arguments.master, arguments.token, tls=arguments.tls, where=arguments.master_now
    )
    with process.renewal(arguments, Role.MODEL_SERVER, master.renew_certificate):
        service, route = build(arguments, master)
        asyncio.run(serve(arguments, master, service, route))


def build(
    arguments: process.ProcessArguments, master: GrpcMasterClient
) -> tuple[TowerService, Route]:
    """Build the model of the job, and reach the ps replicas; return what answers workers.

    Raises:
        ModelError: The model has no tower that can be computed here.
    """
    config, route = arguments.config, Route()
    spec = load_model_spec(config.model, config.training.learning_rate)
    readers = open_readers(config, spec)
    trainer, description = build_trainer(
        config, spec, metadata_of(config, readers), readers, None, lambda way: None
    )
    towers = having_towers(trainer).towers()
    client = connect(master.ps_route, lambda found: dial_replicas(arguments, found), route)
    stores = StoreExchange(client, trainer, route)
    # In a hybrid job workers have the dense parameters, and send those that towers need.
    stores.declare(half_of_stores(description) if config.has_worlds else description)

    def pull(sites: Sequence[tuple[int, Int64]], training: bool) -> Pulled:
        return stores.look_up(sites, training)

    # Rows with a limited life may be created anew, so they are not kept either.
    are_trained = [table.trainable or table.expiry is not None for table in description.tables]
    computer = TowerComputer(towers, are_trained, pull)
    seconds = config.of(ModelServersSection).model_server_window_seconds
    return TowerService(towers, computer, seconds), route


async def serve(
    arguments: process.ProcessArguments,
    master: GrpcMasterClient,
    service: TowerService,
    route: Route,
) -> None:
    """Answer workers until this process is asked to end, which it does at once."""
    loop, is_over = asyncio.get_running_loop(), asyncio.Event()

    def end() -> None:
        loop.call_soon_threadsafe(is_over.set)
        threading.Event().wait(_EXIT_SECONDS)
        ending.end_now(process.STOPPED_EXIT_CODE)

    process.when_asked_to_end(end)
    server = make_server(service, arguments.token)
    port = add_port(server, join(arguments.listening.bind, 0), arguments.tls)
    await server.start()
    address, labels = arguments.listening.at(port), LabelClock()
    interval = register(arguments.index, address, master)
    labels.enter(Label.IDLE)
    events = EventLog(arguments.job_dir, Role.MODEL_SERVER, arguments.index)
    beats = Heartbeat(
        master, arguments.index, interval, events, route, labels, traffic,
        role=Role.MODEL_SERVER,
    )  # fmt: skip

    def follow(answer: HeartbeatAnswer) -> None:
        process.rotate_log(arguments.config, arguments.job_dir)

    beats.follow = follow
    serving = page.serving(arguments, Role.MODEL_SERVER, labels, traffic)
    told = ServerCounts()
    with beats, serving:
        while not is_over.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(is_over.wait(), _TOLD_SECONDS)
            told = tell(service.counts, told)
    # Nothing here is handed over, and a framework needs seconds to end. Workers ask other servers.
    ending.end_now(process.STOPPED_EXIT_CODE)


def register(index: int, address: str, master: GrpcMasterClient) -> float:
    """Tell the master where this server listens; return the seconds between its heartbeats."""
    request = pb.RegisterModelServerRequest(
        index=index, address=address, pid=os.getpid(), session=master.session
    )
    stub = master.connection.stub(ModelServersStub)
    return float(master.connection.call(stub.RegisterModelServer, request).heartbeat_seconds)


def tell(counts: ServerCounts, told: ServerCounts) -> ServerCounts:
    """Log the requests of a model server if there are new ones; return the logged counts."""
    if counts.requests == told.requests:
        return told
    each = counts.output_bytes / max(1, counts.ids)
    log.info(
        "%d requests of %d ids in %d windows (%d closed by time): %d computed, %d backward, "
        "%.0f bytes an output, %d bytes received, %d sent",
        counts.requests,
        counts.ids,
        counts.windows,
        counts.closed_by_time,
        counts.computed,
        counts.backwards,
        each,
        counts.received_bytes,
        counts.sent_bytes,
    )
    return ServerCounts(requests=counts.requests)


if __name__ == "__main__":
    ending.run(main)

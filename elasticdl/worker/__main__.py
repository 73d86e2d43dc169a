"""`python -m elasticdl.worker`: one worker process."""

import os

from elasticdl import process
from elasticdl._core import PsClient
from elasticdl.job import Role
from elasticdl.observe.events import EventLog
from elasticdl.rpc.client import GrpcMasterClient
from elasticdl.worker.assemble import assemble
from elasticdl.worker.heartbeat import Heartbeat

_PS_DEADLINE_SECONDS = 60.0


def main() -> None:
    """Register with the master, build the model, work until the job is finished."""
    arguments = process.start(Role.WORKER)
    master = GrpcMasterClient(arguments.master, arguments.token)
    master.register_worker(arguments.index, os.getpid())

    def connect() -> PsClient:
        addresses = master.ps_addresses()
        return PsClient.connect(addresses, arguments.token, arguments.index, _PS_DEADLINE_SECONDS)

    interval = arguments.config.cluster.heartbeat_seconds
    events = EventLog(arguments.job_dir, Role.WORKER, arguments.index)
    with Heartbeat(master, arguments.index, interval, events) as heartbeat:
        worker = assemble(arguments.config, arguments.index, master, connect)
        heartbeat.progress = worker.progress
        worker.run()


if __name__ == "__main__":
    main()

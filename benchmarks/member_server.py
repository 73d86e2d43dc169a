"""The servers of `members.py`: a master whose launcher starts nothing, and a bare server.

python benchmarks/member_server.py FOLDER NUM_MEMBERS NUM_TASKS [bare]
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))
import grpc
import numpy as np
from numpy.typing import NDArray

from elasticdl.config import ClusterSection, DataSection, JobConfig, ModelSection, TrainingSection
from elasticdl.job import Shard, Strategy
from elasticdl.launchers.base import ProcessHandle, ProcessSpec
from elasticdl.master.durable import JobData, open_job
from elasticdl.master.effects import ReplicaAccess
from elasticdl.master.heartbeats import interval_seconds
from elasticdl.master.master import Master
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.elasticdl_pb2_grpc import MasterServicer, add_MasterServicer_to_server
from elasticdl.runtime.addresses import Listening
from elasticdl.state.sqlite import SqliteState

TOKEN = b"t" * 32
RECORDS_PER_TASK = 100


def make_config(num_members: int) -> JobConfig:
    """A job whose tasks have ten minibatches."""
    return JobConfig(
        command="train",
        model=ModelSection(model_def="zoo.model.forward"),
        data=DataSection(training_data="train"),
        training=TrainingSection(
            minibatch_size=10,
            num_minibatches_per_task=10,
            distribution_strategy=Strategy.PARAMETER_SERVER,
        ),
        cluster=ClusterSection(num_workers=num_members, num_ps_pods=1),
    )


def make_data(num_tasks: int) -> JobData:
    """So many tasks, from a hundred shards."""
    records = num_tasks // 100 * RECORDS_PER_TASK
    return JobData(training=tuple(Shard(f"part-{n}", 0, records) for n in range(100)))


class NoLauncher:
    """`Launcher` that starts nothing: the members come by themselves."""

    listening = Listening()

    def start(self, spec: ProcessSpec) -> ProcessHandle:
        """Name a process that comes by itself."""
        return ProcessHandle(spec.role, spec.index, f"{spec.role}-{spec.index}")

    def adopt(self, handle: ProcessHandle) -> None:
        """Do nothing."""

    def stop(self, handle: ProcessHandle, grace_seconds: float) -> None:
        """Do nothing."""

    def close(self, grace_seconds: float) -> None:
        """Do nothing."""

    def leave(self, grace_seconds: float) -> None:
        """Do nothing."""


class NoReplica:
    """A ps replica that writes empty checkpoints."""

    def audit(self) -> list[NDArray[np.int64]]:
        """Say that nothing was applied."""
        return [np.zeros((0, 3), np.int64)]

    def expire(self, now_seconds: int) -> str:
        """Say that nothing has expired."""
        return "[]"

    def stats(self) -> str:
        """Say that nothing was counted."""
        return json.dumps([{"watermarks": {}, "tables": [], "resident_bytes": 0}])

    def checkpoint(self, directory: str) -> list[str]:
        """Return an entry of nothing."""
        return ['{"replica": 0}']


async def serve_master(folder: Path, num_members: int, num_tasks: int) -> None:
    """Run the master until it is killed."""
    state = SqliteState(folder / "state.sqlite")
    job, is_new = open_job(state, make_config(num_members), lambda: make_data(num_tasks))
    master = Master(
        job,
        is_new,
        folder,
        TOKEN,
        lambda on_event: NoLauncher(),
        lambda route, _: ReplicaAccess(route, lambda addresses, whole_job: NoReplica()),
    )
    await master.run()


class Bare(MasterServicer):
    """Gives every call of a kind the same answer."""

    def __init__(self, num_members: int) -> None:
        seconds = interval_seconds(num_members + 1, 1.0)
        task = pb.Task(id=7, kind=pb.TASK_KIND_TRAINING, shard=pb.Shard(name="part-7", end=100))
        self._lease = pb.LeaseResponse(lease=pb.Lease(task=task, number=1))
        self._registered = pb.RegisterWorkerResponse(heartbeat_seconds=seconds)
        self._beat = pb.HeartbeatResponse(interval_seconds=seconds)

    async def RegisterPs(self, request: Any, context: Any) -> Any:
        """Answer."""
        return pb.RegisterPsResponse()

    async def RegisterWorker(self, request: Any, context: Any) -> Any:
        """Answer."""
        return self._registered

    async def Lease(self, request: Any, context: Any) -> Any:
        """Answer."""
        return self._lease

    async def Report(self, request: Any, context: Any) -> Any:
        """Answer."""
        return pb.ReportResponse(accepted=True)

    async def Heartbeat(self, request: Any, context: Any) -> Any:
        """Answer."""
        return self._beat


async def serve_bare(folder: Path, num_members: int) -> None:
    """Run the bare server until it is killed."""
    server = grpc.aio.server()
    add_MasterServicer_to_server(Bare(num_members), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    (folder / "master.json").write_text(json.dumps({"address": f"127.0.0.1:{port}"}))
    await server.wait_for_termination()


def main() -> None:
    """Serve."""
    folder, num_members, num_tasks = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    if sys.argv[4:] == ["bare"]:
        asyncio.run(serve_bare(folder, num_members))
        return
    logging.basicConfig(level=logging.INFO)
    asyncio.run(serve_master(folder, num_members, num_tasks))


if __name__ == "__main__":
    main()

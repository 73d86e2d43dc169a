"""A Ray cluster of several nodes on this machine, for tests and benchmarks: `ray.cluster_utils`."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.cluster_utils import Cluster

from elasticdl.config import JobConfig
from elasticdl.launchers.base import Launcher, OnEvent
from elasticdl.packages.ray.cluster import connect, find_actor, keeper_name
from elasticdl.packages.ray.keepers import as_actor
from elasticdl.packages.ray.launcher import RayLauncher
from elasticdl.runtime.process import CONFIG_FILE

_STORE_BYTES = 80_000_000
_RAY = "from ray.scripts.scripts import main; main()"


class RayCluster:
    """A head that runs nothing of a job, and nodes that come and go."""

    def __init__(self) -> None:
        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "object_store_memory": _STORE_BYTES,
                "include_dashboard": False,
            },
        )
        self.address: str = self._cluster.address

    def add_node(self, num_cpus: int = 2, resources: Mapping[str, float] | None = None) -> Any:
        """Start a node."""
        return self._cluster.add_node(
            num_cpus=num_cpus, resources=dict(resources or {}), object_store_memory=_STORE_BYTES
        )

    def kill_node(self, node: Any) -> None:
        """Kill all processes of a node, and all that they have started, as if it lost its power."""
        below = [
            process
            for raylet in node.all_processes["raylet"]
            for process in psutil.Process(raylet.process.pid).children(recursive=True)
        ]
        self._cluster.remove_node(node, allow_graceful=False)
        for process in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def kill_nodes(self) -> None:
        """Kill all nodes but the head."""
        for node in list(self._cluster.worker_nodes):
            self.kill_node(node)

    def drain(self, node: Any, seconds: int) -> None:
        """Say that a node will be taken away after some seconds, as a cloud does."""
        words = [f"--address={self.address}", f"--node-id={node.node_id}"]
        words += ["--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=taken"]
        words += [f"--deadline-remaining-seconds={seconds}"]
        subprocess.run(
            [sys.executable, "-c", _RAY, "drain-node", *words], capture_output=True, check=True
        )

    def node_of(self, process: psutil.Process) -> Any:
        """Return the node whose raylet has started a process, or the actor that has.

        Raises:
            LookupError: None has.
        """
        above = {each.pid for each in process.parents()}
        for node in self._cluster.worker_nodes:
            if any(raylet.process.pid in above for raylet in node.all_processes["raylet"]):
                return node
        raise LookupError(f"{process} is of no node")

    def launcher_of(self, config: JobConfig, job_dir: Path) -> Callable[[OnEvent], Launcher]:
        """Return what makes a launcher in this process for a job of which nothing else runs."""
        os.environ["RAY_ADDRESS"] = self.address
        connect(self.address)
        keeper = keeper_name(config.cluster.job_name)
        if find_actor(keeper) is None:  # else the processes of the job would end
            as_actor(_NoKeeper, keeper, num_cpus=0).remote()
        if not self._cluster.worker_nodes:
            self.add_node(num_cpus=8)
        config.write(job_dir / CONFIG_FILE)
        return lambda on_event: RayLauncher(config, job_dir, on_event)

    def close(self) -> None:
        """End all processes of the cluster."""
        ray.shutdown()
        os.environ.pop("RAY_ADDRESS", None)
        self._cluster.shutdown()


class _NoKeeper:
    """Stands for the keeper of a job."""

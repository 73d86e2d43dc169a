"""A Ray cluster of several nodes on this machine, and counting jobs on it."""

import contextlib
import subprocess
import sys
import time

import psutil
from ray.cluster_utils import Cluster

from scripts.chaos import job as real
from tests.elastic.counting_job import CountingJob

ROLES = ("launchers.process", "master", "ps", "worker")
STORE_BYTES = 80_000_000
LOOK_SECONDS = 0.05


class RayCluster:
    """A head that runs nothing of a job, and nodes that come and go."""

    def __init__(self):
        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "object_store_memory": STORE_BYTES,
                "include_dashboard": False,
            },
        )
        self.address = self._cluster.address

    def add_node(self, num_cpus=2):
        """Start a node."""
        return self._cluster.add_node(num_cpus=num_cpus, object_store_memory=STORE_BYTES)

    def kill_node(self, node):
        """Kill all processes of a node."""
        self._cluster.remove_node(node, allow_graceful=False)

    def kill_nodes(self):
        """Kill all nodes but the head."""
        for node in list(self._cluster.worker_nodes):
            self.kill_node(node)

    def drain(self, node, seconds):
        """Say that a node will be taken away after some seconds, as a cloud does."""
        words = [f"--node-id={node.node_id}", "--reason=DRAIN_NODE_REASON_PREEMPTION"]
        words += [f"--deadline-remaining-seconds={seconds}", f"--address={self.address}"]
        words += ["--reason-message=taken"]
        program = "from ray.scripts.scripts import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", program, "drain-node", *words], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def node_of(self, process):
        """Return the node whose raylet has started a process, or the actor that has."""
        above = {each.pid for each in process.parents()}
        for node in self._cluster.worker_nodes:
            for each in node.all_processes["raylet"]:
                if each.process.pid in above:
                    return node
        raise AssertionError(f"{process} is of no node")

    def close(self):
        self._cluster.shutdown()


def keeper_of(process):
    """Return the actor that keeps a process."""
    return next(each for each in process.parents() if each.cmdline()[0].startswith("ray::"))


class RayJob(CountingJob):
    """The counting job on a cluster."""

    def __init__(self, cluster, folder, seed, **flags):
        given = {
            "launcher": "ray",
            "ray_address": cluster.address,
            "job_name": f"counting-{seed}",
            "num_workers": 2,
            "num_ps_pods": 2,
            "recovery_seconds": 0.5,
            "master_resource_request": "cpu=0.1",
            "worker_resource_request": "cpu=1,memory=200Mi",
            "ps_resource_request": "cpu=0.4,memory=200Mi",
        }
        super().__init__(folder, seed, **given | flags)
        self.cluster = cluster

    def __exit__(self, *error):
        super().__exit__(*error)
        if any(error):
            print(self.log())
        for role in ROLES:
            for process in real.processes(self.job_dir, role):
                with contextlib.suppress(psutil.NoSuchProcess):  # of a test that failed
                    process.kill()

    def one(self, role):
        """Wait until a process of a role is there; return the oldest."""
        while not (found := self.processes(role)):
            assert self.is_running(), self.log()
            time.sleep(LOOK_SECONDS)
        return found[0]

    def until_gone(self):
        """Wait until no process of the job is left."""
        for role in ROLES:
            psutil.wait_procs(real.processes(self.job_dir, role))

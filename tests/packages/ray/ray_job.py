"""Counting jobs on a Ray cluster of this machine."""

import contextlib
import time

import psutil

from scripts.chaos import job as real
from tests.elastic.counting_job import CountingJob

ROLES = ("launchers.process", "master", "ps", "worker")
LOOK_SECONDS = 0.05


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

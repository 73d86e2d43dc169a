"""Jobs on a Ray cluster whose processes, actors and nodes are killed or taken away."""

import itertools
import queue
import sys

import pytest

from elasticdl.cli.flags import build_config
from elasticdl.job import Role
from elasticdl.launchers.base import Exited, ExitReason, ProcessSpec

pytest.importorskip("ray", reason="pip install 'ray>=2.60,<2.61'")

from tests.clusters.ray_cluster import RayCluster
from tests.packages.own_loops.test_shards_job import SCRIPT, ShardsJob
from tests.packages.ray.ray_job import RayJob, keeper_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture
def cluster(ray_cluster):
    """Three nodes beside the head, for a test alone."""
    ray_cluster.kill_nodes()
    for _ in range(3):
        ray_cluster.add_node()
    yield ray_cluster
    ray_cluster.kill_nodes()


def test_whatever_is_killed_each_record_counts_once(cluster, tmp_path):
    """Processes, their actors, and the actor of the master; none leaves anything behind."""
    with RayJob(cluster, tmp_path, seed=1) as job:
        job.until_trained(10_000)
        job.send("worker")
        job.until_trained(30_000)
        worker = job.one("worker")
        keeper_of(worker).kill()
        worker.wait()
        job.until_trained(50_000)
        replica = job.one("ps")
        keeper_of(replica).kill()
        replica.wait()
        job.until_trained(70_000)
        master = job.one("master")
        workers = {process.pid for process in job.processes("worker")}
        keeper_of(master).kill()
        master.wait()
        job.until_trained(90_000, also=lambda: bool(job.processes("master")))
        assert workers <= {process.pid for process in job.processes("worker")}
        summary = job.finish()
        job.until_gone()
    job.check_counts(summary)


def test_nodes_are_lost_with_the_master_and_with_workers(cluster, tmp_path):
    """The master is back on another node, where processes that went on find it."""
    with RayJob(cluster, tmp_path, seed=2) as job:
        job.until_trained(10_000)
        cluster.kill_node(cluster.node_of(job.one("worker")))
        cluster.add_node()
        job.until_trained(60_000)
        cluster.kill_node(cluster.node_of(job.one("master")))
        summary = job.finish()
    job.check_counts(summary)


def test_a_node_that_is_drained_costs_no_repeated_work(cluster, tmp_path):
    """Workers, a ps replica and the master leave two nodes, each asked for by a notice of Ray."""
    tempo = {"model_def": "counting.staged.forward", "model_params": "seconds=0.004"}
    with RayJob(cluster, tmp_path, seed=3, max_relaunches=0, **tempo) as job:
        for role, num_records in (("worker", 20_000), ("master", 60_000)):
            job.until_trained(num_records)
            node = cluster.node_of(job.one(role))
            leaving = [
                process
                for role in ("master", "ps", "worker")
                for process in job.processes(role)
                if cluster.node_of(process) is node
            ]
            cluster.drain(node, seconds=60)
            for process in leaving:
                process.wait()
            cluster.kill_node(node)
        summary = job.finish()
    job.check_counts(summary)
    names = ("duplicates", "stale_leases", "gaps", "stale_reports")
    assert {name: summary["counters"][name] for name in names} == dict.fromkeys(names, 0)
    assert {event["reason"] for event in job.events("lost")} <= {"preempted"}
    job.check_computed_once()


def test_a_process_that_fits_on_no_node_is_told_and_starts_when_one_comes(cluster, tmp_path):
    """Ray itself is silent about such an actor."""
    with RayJob(cluster, tmp_path, seed=4, worker_resource_request="cpu=3") as job:
        job.until_event("pending", also=lambda event: "CPU 3" in event["why"])
        cluster.add_node(num_cpus=6)
        summary = job.finish()
    assert "no node of the Ray cluster is large enough: asked is CPU 3" in job.printed()
    job.check_counts(summary)


def test_a_job_whose_cluster_is_lost_goes_on_on_another_one(tmp_path):
    """Its folder has all; the address of the cluster is no setting of the job."""
    for _ in range(2):
        cluster = RayCluster()
        cluster.add_node()
        cluster.add_node()
        with RayJob(cluster, tmp_path, seed=5) as job:
            job.until_trained(30_000)
            if not (tmp_path / "lost").exists():
                (tmp_path / "lost").touch()
                cluster.close()
                continue
            summary = job.finish()
        cluster.close()
    job.check_counts(summary)


def test_a_loop_of_ones_own_runs_on_ray(cluster, tmp_path):
    """Its scripts are started in actors as model files are."""
    (tmp_path / "hurry").touch()
    flags = {"launcher": "ray", "ray_address": cluster.address, "job_name": "loop"}
    flags |= {f"{role}_resource_request": "cpu=0.5" for role in ("master", "ps", "worker")}
    with ShardsJob(tmp_path, SCRIPT, 995, num_workers=2, **flags) as job:
        job.finish()
    assert job.seen() == dict.fromkeys(range(995), 1)


def test_a_node_that_does_not_see_the_folder_of_the_job_is_named(ray_cluster, tmp_path):
    """Everything is found by path: without a shared file system nothing would work."""
    words = {"model_def": "a.forward", "training_data": "/data", "launcher": "ray"}
    config = build_config("train", words | {"worker_resource_request": "cpu=1"})
    events = queue.Queue()
    launcher = ray_cluster.launcher_of(config, tmp_path)(events.put)
    (tmp_path / "job.json").unlink()
    for index in itertools.count():
        launcher.start(ProcessSpec(Role.WORKER, index, (sys.executable, "-c", "pass")))
        while not isinstance(event := events.get(timeout=60.0), Exited):
            pass
        if event.reason is not ExitReason.PREEMPTED:  # by a node that another test has lost
            break
    launcher.close(grace_seconds=0.0)
    assert event.reason is ExitReason.FAILED
    assert f"of the Ray cluster does not see {tmp_path}/job.json: expected" in event.last_words

"""What happens to jobs on clusters, one thing a test; each job ends with an exact ledger."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from scripts.job_lines import processes
from tests.clusters.etcd import EtcdServer
from tests.clusters.kubernetes.api import ApiError
from tests.clusters.kubernetes.cluster import Cluster, NodeProcess
from tests.clusters.kubernetes.namespace import Namespace
from tests.packages.kubernetes.cluster.job import ClusterJob

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]

CLASSES = Path(__file__).parents[4] / "deploy" / "cluster" / "priority-classes.yaml"
MANY = 30  # pods lost at once
ASKED_FOR_SECONDS = 10.0  # in which all of them are asked for again
AWAY_SECONDS = 30.0  # that the API server is away
SOON_SECONDS = 120.0


@pytest.fixture
def job(namespace: Namespace, tmp_path):
    job = ClusterJob(namespace, tmp_path)
    yield job
    job.close()


@pytest.fixture
def priorities(cluster: Cluster) -> None:
    """The PriorityClasses that we ship."""
    for body in yaml.safe_load_all(CLASSES.read_text()):
        try:
            cluster.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", body)
        except ApiError as error:
            if error.code != 409:  # made by a test before this one
                raise


@pytest.fixture
def etcd(cluster: Cluster, tmp_path: Path):
    """A store of the job's state, where pods reach it."""
    with EtcdServer(tmp_path / "etcd", cluster.network.host) as server:
        yield server


@pytest.fixture
def lone(cluster: Cluster, node: NodeProcess):
    """A node that gets no pods until it is opened."""
    node.close()
    yield node
    node.mend_network()
    node.open()


class Nodes:
    """Several nodes, together."""

    def __init__(self, nodes: Sequence[NodeProcess]):
        self._nodes = nodes

    def close(self) -> None:
        for node in self._nodes:
            node.close()

    def open(self) -> None:
        for node in self._nodes:
            node.open()


@pytest.fixture
def closed(cluster: Cluster):
    """All nodes; a test may close them, and they are open afterwards."""
    nodes = Nodes(cluster.nodes)
    yield nodes
    nodes.open()


@pytest.fixture
def others(cluster: Cluster):
    """All nodes but `lone`; a test may close them, and they are open afterwards."""
    nodes = Nodes(cluster.nodes[:-1])
    yield nodes
    nodes.open()


def until(holds, seconds=SOON_SECONDS, what="it"):
    """Wait for something that nobody tells of."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, f"{what} did not come about in {seconds} s"
        time.sleep(0.05)
    return found


def finish(job: ClusterJob) -> None:
    assert job.end() == 0, "".join(job.lines)
    assert job.is_exact(), "".join(job.lines)


def pods_on(job: ClusterJob, node: NodeProcess, role: str) -> list:
    return [pod for pod in job.pods(role) if pod["spec"].get("nodeName") == node.name]


def names_of(pods: list) -> set:
    return {pod["metadata"]["name"] for pod in pods}


def lives(pod: dict) -> bool:
    """Whether processes of a pod are there, whatever the API says of it."""
    name = f"HOSTNAME={pod['metadata']['name']}".encode()
    return any(name in read(path).split(b"\0") for path in Path("/proc").glob("[0-9]*/environ"))


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # it has ended


def index_of(pod: dict) -> int:
    return int(pod["metadata"]["labels"]["elasticdl-replica-index"])


def test_a_worker_that_makes_room_for_others_hands_its_work_back(job, priorities):
    job.start_staged(
        seconds=0.02, worker_pod_priority="low", worker_resource_request="cpu=5,memory=512Mi"
    )
    job.until_records(4_000)
    needs = {"resources": {"requests": {"cpu": "6"}}}
    job.namespace.run("service", "sleep", "1000", container=needs, priorityClassName="high")
    job.namespace.wait("service", "Running")
    finish(job)
    told = "".join(job.lines)
    assert re.search(r"worker \d was asked to end: .*preempt", told), told
    assert "worker 3 is pending: Unschedulable" in told, told


def test_workers_that_run_out_of_memory_come_back_with_more(job):
    job.start_staged(seconds=0.002, mebibytes=280, worker_resource_request="cpu=1,memory=256Mi")
    assert "its limit was 256Mi" in job.read_until(r"worker \d was killed for want of memory")
    finish(job)
    limits = {
        pod["spec"]["containers"][0]["resources"]["limits"]["memory"] for pod in job.pods("worker")
    }
    assert limits == {"256Mi", "384Mi"}


def test_workers_of_a_lost_node_that_come_back_as_zombies_change_nothing(job, lone):
    job.start_staged(seconds=0.02, num_workers=2, heartbeat_timeout_seconds=5)
    job.until_records(2_000)
    job.halt()  # from here on every worker holds what it has
    lone.open()
    assert job.run("scale", job.full_name, "--workers=4").returncode == 0
    job.read_until("worker 2 is here|worker 3 is here")
    job.read_until("worker 2 is here|worker 3 is here")
    zombies = pods_on(job, lone, "worker")
    assert sorted(index_of(pod) for pod in zombies) == [2, 3]

    lone.cut()
    lone.close()
    for _ in zombies:
        job.read_until(r"worker [23] was lost")
    assert all(map(lives, zombies))
    lone.mend_network()  # they push what they hold, and are told that they were given up
    job.go_on()

    until(lambda: not any(map(lives, zombies)), what="the end of the zombies")
    lone.thaw()
    finish(job)


def test_a_master_whose_node_was_cut_off_is_fenced_by_its_successor(job, etcd, lone, others):
    others.close()
    lone.open()
    job.start_staged(seconds=0.005, state=f"etcd://{etcd.endpoint}/job")
    (older,) = until(lambda: pods_on(job, lone, "master"), what="the master")
    lone.close()
    others.open()
    job.until_records(4_000)
    workers = job.running("worker")
    job.halt()  # the job does not end meanwhile

    lone.cut()
    job.read_until("the job goes on")
    assert lives(older)  # two masters at once
    lone.mend_network()

    until(lambda: not lives(older), what="the end of the older master")
    log = lone.log_of(older["metadata"]["uid"], "elasticdl").read_text()
    assert re.search("TakenOverError: .*another master .*has taken over the job", log), log
    assert job.running("worker") == workers
    lone.thaw()
    job.go_on()
    finish(job)


def test_many_pods_that_are_lost_at_once_are_asked_for_again_at_once(job, closed):
    job.epochs = 1
    job.halt()
    job.start_staged(num_workers=MANY, worker_resource_request="cpu=100m,memory=256Mi")
    job.read_until(processes(MANY))
    before = job.running("worker")
    assert len(before) == MANY

    closed.close()  # what is measured is the control plane, and not 30 processes that start
    begun = time.monotonic()
    for name in before:
        job.namespace.delete(name, grace_seconds=0)
    until(lambda: len(names_of(job.pods("worker")) - set(before)) == MANY)
    seconds = time.monotonic() - begun
    closed.open()

    assert seconds < ASKED_FOR_SECONDS
    job.go_on()
    finish(job)


def test_training_does_not_notice_that_the_api_server_is_away(job, cluster):
    job.start_staged(seconds=0.03)
    seen = job.until_records(2_000)
    before = {role: job.running(role) for role in ("master", "worker", "ps")}
    cluster.control_plane.api_server.kill()
    try:
        deadline = time.monotonic() + AWAY_SECONDS
        while time.monotonic() < deadline:
            seen = job.until_records(seen + 1)
        job.halt()  # so that it does not end meanwhile
    finally:
        cluster.control_plane.api_server.start()
        cluster.control_plane.wait_for_api_server()
    assert {role: job.running(role) for role in before} == before
    assert not re.search("asked to end|nothing was heard", "".join(job.lines))
    job.go_on()
    finish(job)


def test_a_job_with_its_state_in_etcd_survives_its_master_and_etcd(job, etcd):
    job.start_staged(seconds=0.015, state=f"etcd://{etcd.endpoint}/job")
    job.until_records(4_000)
    workers, (master,) = job.running("worker"), job.running("master")
    etcd.kill()
    etcd.start()
    job.until_records(8_000)

    job.namespace.delete(master)

    job.read_until("the job goes on")
    finish(job)
    assert names_of(job.pods("worker")) == set(workers)
    assert not (job.folder / "job" / "state.sqlite").exists()

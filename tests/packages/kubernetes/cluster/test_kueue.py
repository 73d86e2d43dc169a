"""Jobs in a queue of the real Kueue: admitted from a minimum, grown, and taken back in part."""

from __future__ import annotations

import json
import subprocess

import pytest

from scripts.job_lines import processes
from tests.clusters.kubernetes.cluster import Cluster
from tests.clusters.kubernetes.kueue import QUEUED, Kueue, why_missing
from tests.clusters.kubernetes.namespace import Namespace
from tests.packages.kubernetes.cluster.job import CLI, ClusterJob

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.timeout(600),
    pytest.mark.parametrize("namespace", [QUEUED], indirect=True),
]

QUEUE, URGENT = "main", "urgent"
NODE = {"kubernetes.io/hostname": "node-1"}  # that the queue has


@pytest.fixture(scope="module")
def kueue(cluster: Cluster) -> Kueue:
    """Kueue with one priority above that of jobs; it runs until the cluster ends."""
    if lacks := why_missing():
        pytest.skip(lacks)
    running = Kueue(cluster)
    running.add_priority(URGENT, 1000)
    return running


class QueuedJob(ClusterJob):
    """The counting job in a queue of six processors.

    Its master takes one, its minimum three (two ps replicas and a worker), two further workers two.
    """

    def __init__(self, kueue: Kueue, namespace: Namespace, folder) -> None:
        super().__init__(namespace, folder, rights=("--queues",))
        self.kueue = kueue
        kueue.add_queue(
            namespace.name, QUEUE, cpus=6, nodes=NODE, withinClusterQueue="LowerPriority"
        )

    def begin(self, **others) -> None:
        self.start_staged(0.02, num_workers=3, num_ps_pods=2, queue_name=QUEUE, **others)

    def other(self, name: str, cpus: int, **labels: str) -> None:
        """Put a pod of somebody else into the queue."""
        metadata = {"labels": {"kueue.x-k8s.io/queue-name": QUEUE} | labels}
        needs = {"resources": {"requests": {"cpu": str(cpus)}}}
        self.namespace.run(
            name,
            "sleep",
            "1000",
            container=needs,
            metadata=metadata,
            terminationGracePeriodSeconds=1,
        )

    def urgent(self, cpus: int) -> None:
        """Put a pod into the queue that goes before the job, and wait until it runs."""
        self.other(URGENT, cpus, **{"kueue.x-k8s.io/priority-class": URGENT})
        self.namespace.wait(URGENT, "Running")

    def is_suspended(self, name: str) -> bool:
        path = self.namespace.path("jobs", name, group="apis/batch/v1")
        return self.namespace.cluster.api.get(path)["spec"]["suspend"]

    def until_running(self, workers: int, ps: int = 2) -> None:
        """Wait until so many pods run, and none is about to go."""
        wanted = {"worker": workers, "ps": ps}

        def is_so(_: object) -> bool:
            pods = [pod for role in wanted for pod in self.pods(role)]
            leave = any("deletionTimestamp" in pod["metadata"] for pod in pods)
            return not leave and {role: len(self.running(role)) for role in wanted} == wanted

        self.namespace.cluster.wait_for(
            self.namespace.path("jobs", self.name, group="apis/batch/v1"),
            is_so,
        )

    def admitted(self) -> list[str]:
        """Return the names of what has a place in the queue."""
        return [
            found["metadata"]["name"]
            for found in self.kueue.workloads(self.namespace.name)
            for condition in found.get("status", {}).get("conditions", [])
            if (condition["type"], condition["status"]) == ("QuotaReserved", "True")
            and not any(each["type"] == "Finished" for each in found["status"]["conditions"])
        ]


@pytest.fixture
def job(kueue: Kueue, namespace: Namespace, tmp_path):
    started = QueuedJob(kueue, namespace, tmp_path)
    yield started
    started.close()
    print("".join(started.lines))  # shown if the test has failed


def test_a_queue_that_is_not_there_is_refused(job):
    job.start(queue_name="none")
    assert job.end() != 0
    assert "--queue_name=none: expected a LocalQueue" in " ".join("".join(job.lines).split())


def test_a_job_begins_with_its_minimum_grows_and_gives_back_single_workers(job):
    """Nothing else shows that room is taken from a job in a queue without ending it."""
    job.other("first", 1)
    job.other("second", 2)
    for name in ("first", "second"):
        job.namespace.wait(name, "Running")
    job.begin()
    job.read_until(f"the queue {QUEUE} has not admitted the minimum")
    assert not job.running("worker") | job.running("ps")

    job.namespace.delete("first")
    job.until_running(workers=1)
    kept = job.running("worker") | job.running("ps") | job.running("master")
    pods = [pod for role in ("master", "ps", "worker") for pod in job.pods(role)]
    assert {pod["spec"].get("nodeName", "") for pod in pods} == {"node-1", ""}
    job.until_records(2_000)
    assert len(job.pods("worker")) == 3

    job.halt()  # here and below: so that it does not finish before it has grown
    job.namespace.delete("second")
    job.read_until(processes(3, 2))

    job.go_on()
    job.urgent(2)
    job.until_running(workers=1)
    assert job.running("worker") | job.running("ps") | job.running("master") == kept
    assert not job.is_suspended(job.name)
    assert not job.is_suspended(f"{job.name}-minimum")

    job.halt()
    job.namespace.delete(URGENT)
    job.until_running(workers=3)
    job.go_on()

    assert job.end() == 0, "".join(job.lines)
    assert job.is_exact()
    path = job.namespace.path("jobs", job.name, group="apis/batch/v1")
    job.namespace.cluster.wait_for(path, lambda _: not job.admitted())


def test_a_job_whose_minimum_is_taken_back_waits_and_goes_on_exactly(job):
    job.epochs = 1
    job.begin()
    job.until_running(workers=3)
    master = job.running("master")
    job.until_records(4_000)

    job.urgent(5)
    # The queue gives room to others when it is free.
    assert all(pod["status"]["phase"] != "Running" for pod in job.pods("ps"))
    job.read_until(f"the queue {QUEUE} has not admitted the minimum")
    job.until_running(workers=0, ps=0)
    assert job.running("master") == master

    job.namespace.delete(URGENT)
    assert job.end() == 0, "".join(job.lines)
    assert job.running("master") == {}
    assert job.is_exact()


def test_another_master_keeps_the_place_and_a_job_that_is_deleted_leaves_none(job):
    job.begin()
    job.until_running(workers=3)
    done = job.until_records(2_000)
    kept = job.running("worker") | job.running("ps")
    (master,) = job.running("master")

    job.halt()
    job.namespace.delete(master)
    job.until_running(workers=3)
    api, listed = job.namespace.cluster, job.namespace.path("jobs", group="apis/batch/v1")
    api.wait_for(listed, lambda _: set(job.running("master")) not in (set(), {master}))
    job.go_on()
    job.until_records(done + 8_000)
    assert job.running("worker") | job.running("ps") == kept
    assert not job.is_suspended(f"{job.name}-minimum")

    api.api.delete(f"{listed}/{job.name}", propagationPolicy="Background")
    for path in (listed, job.namespace.path("pods")):
        api.wait_for(path, lambda found: not found["items"])
    api.wait_for(listed, lambda _: not job.kueue.workloads(job.namespace.name))


def test_a_job_that_is_taken_back_as_a_whole_goes_on_exactly(job):
    job.epochs = 1
    job.begin()
    job.until_running(workers=3)
    job.until_records(4_000)

    job.urgent(6)
    assert job.end() == 130, "".join(job.lines)
    assert job.is_suspended(job.name)

    job.namespace.delete(URGENT)
    job.until_running(workers=3)  # of a job that is suspended still there would be nothing to show
    attached = subprocess.run(
        [*CLI, "attach", job.full_name],
        env=job.environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert attached.returncode == 0, attached.stdout + attached.stderr
    assert job.has_exact_counts()
    rows = json.loads(job.run("status", job.full_name, "--json").stdout)["ledger"]
    assert [(row["lost"], row["repeated"]) for row in rows] == [(0, 0)]

"""Whole jobs on a real API server, by the command line alone, in a `restricted` namespace."""

import re

import pytest

from scripts.cluster.namespace import Namespace
from tests.kubernetes.job import ClusterJob

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
restricted = pytest.mark.parametrize("namespace", [RESTRICTED], indirect=True)


@pytest.fixture
def job(namespace: Namespace, tmp_path):
    job = ClusterJob(namespace, tmp_path)
    yield job
    job.close()


@restricted
def test_a_job_trains_every_record_once_and_leaves_nothing_behind(job):
    job.start()
    assert job.end() == 0, "".join(job.lines)
    assert job.is_exact()
    listed = job.namespace.path("jobs", job.name, group="apis/batch/v1")
    finished = job.namespace.cluster.api.get(listed)
    assert finished["status"]["succeeded"] == 1
    assert job.left()

    job.namespace.cluster.api.delete(listed, propagationPolicy="Background")
    job.namespace.cluster.wait_for(listed, lambda found: not found)
    for thing in job.left():
        kind, name = thing.split("/")
        job.namespace.cluster.wait_for(job.namespace.path(kind, name), lambda found: not found)


@restricted
@pytest.mark.parametrize("role", ["worker", "ps", "master"])
def test_a_job_survives_the_loss_of_a_pod_exactly(job, role):
    job.epochs = 4
    job.start()
    job.until_records(8_000)
    before = {each: job.running(each) for each in ("master", "worker", "ps")}

    job.namespace.delete(sorted(before[role])[0])

    assert job.end() == 0, "".join(job.lines)
    assert job.is_exact()
    after = {each: {p["metadata"]["name"] for p in job.pods(each)} for each in ("master", "worker")}
    if role == "master":  # its workers are those of the master before
        assert not after["master"] & set(before["master"])
        assert after["worker"] == set(before["worker"])
    if role == "worker":
        assert sorted(before["worker"])[0] not in after["worker"]
        assert re.search("worker 0 was .*its pod was deleted", "".join(job.lines))


@restricted
def test_what_is_printed_runs_as_it_is(job):
    printed = job.run(*job.words(), "--dry_run")
    assert printed.returncode == 0, printed.stderr
    job.apply(printed.stdout)
    listed = job.namespace.path("jobs", job.name, group="apis/batch/v1")
    job.namespace.cluster.wait_for(listed, lambda found: found["status"].get("succeeded"), 200)
    assert job.is_exact()
    # The master has made its Job the owner of what was made before that had an identity.
    job.namespace.cluster.api.delete(listed, propagationPolicy="Background")
    for thing in job.left():
        kind, name = thing.split("/")
        job.namespace.cluster.wait_for(job.namespace.path(kind, name), lambda found: not found)


def test_what_keeps_the_master_from_starting_is_said_at_once(job):
    job.start(image_name="registry.invalid/elasticdl:1")
    assert "registry.invalid/elasticdl:1" in job.read_until("the master waits: .*Image")


def test_a_worker_that_fits_nowhere_is_told_and_waited_for(job):
    job.start(worker_resource_request="cpu=9,memory=512Mi")
    assert "3 Insufficient cpu" in job.read_until("worker 0 is pending: Unschedulable")


def test_a_job_without_rights_says_what_to_do(job):
    path = job.namespace.path(
        "rolebindings", "elasticdl-elasticdl", group="apis/rbac.authorization.k8s.io/v1"
    )
    job.namespace.cluster.api.delete(path)
    job.start()
    assert "forbidden" in job.read_until("elasticdl rbac prints the rights")

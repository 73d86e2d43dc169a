"""Whole jobs on a real API server, by the command line alone, in a `restricted` namespace."""

import base64
import json
import re
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest
from cryptography import x509

from scripts.job_lines import processes
from tests.clusters.kubernetes.namespace import Namespace
from tests.packages.kubernetes.cluster.job import CLI, ClusterJob
from tests.packages.model_servers import towers_job

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]

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
    # No key, no Secret, no settings; the pods have the logs.
    job.namespace.cluster.wait_for(
        job.namespace.path("services", job.name),
        lambda found: not found and {thing.split("/")[0] for thing in job.left()} == {"pods"},
    )
    assert job.run("logs", job.full_name, "master").stdout
    assert "finished" in job.run("status", job.full_name).stdout

    job.namespace.cluster.api.delete(listed, propagationPolicy="Background")
    job.namespace.cluster.wait_for(listed, lambda found: not found)
    for thing in job.left():
        kind, name = thing.split("/")
        job.namespace.cluster.wait_for(job.namespace.path(kind, name), lambda found: not found)


@restricted
@pytest.mark.parametrize("role", ["worker", "ps", "master"])
def test_a_job_survives_the_loss_of_a_pod_exactly(job, role):
    job.start_staged(seconds=0.01)  # else it has finished by then
    job.until_records(8_000)
    before = {each: job.running(each) for each in ("master", "worker", "ps")}

    # A ps replica has no time to hand over, as if its node were lost.
    job.namespace.delete(sorted(before[role])[0], grace_seconds=0 if role == "ps" else None)

    assert job.end() == 0, "".join(job.lines)
    assert job.is_exact()
    if role == "ps":
        found = job.summary()
        [recovery] = found["recoveries"]
        assert not recovery["is_handed_over"]
        assert (recovery["minibatches"], found["recomputed"]) == (0, 0)  # thanks to its redo log
    after = {each: {p["metadata"]["name"] for p in job.pods(each)} for each in ("master", "worker")}
    if role == "master":  # its workers are those of the master before
        assert not after["master"] & set(before["master"])
        assert after["worker"] == set(before["worker"])
    if role == "worker":
        assert sorted(before["worker"])[0] not in after["worker"]
        assert re.search(r"worker \d was .*its pod was deleted", "".join(job.lines))


SCRIPT = Path(__file__).parents[2] / "own_loops" / "keras_script_loop.py"


@restricted
@pytest.mark.keras
def test_a_script_with_a_loop_of_its_own_survives_the_loss_of_a_pod_exactly(job, tmp_path):
    num_records = 4_000
    job.write_numbers(num_records)
    (tmp_path / "code").mkdir()
    script = Path(shutil.copy(SCRIPT, tmp_path / "code" / "loop.py"))  # its folder goes along
    words = [f"--num_records={num_records}", "--seconds=0.2", "--finals=/data/finals"]
    job.start_script(script, words, num_workers=3, minibatch_size=16, num_minibatches_per_task=5)
    job.until_records(400)
    worker = sorted(job.running("worker"))[0]
    job.namespace.delete(worker)
    job.until_records(1_200)
    job.hurry()
    assert job.end() == 0, "".join(job.lines)
    (row,) = job.summary()["ledger"]
    assert (row["trained_once"], row["repeated"], row["lost"]) == (num_records, 0, 0)
    with h5py.File(tmp_path / "model" / "model.weights.h5") as file:
        visits = max((np.asarray(value) for value in file["vars"].values()), key=np.size)
    np.testing.assert_allclose(visits, np.ones(num_records), rtol=1e-5)


@restricted
@pytest.mark.keras
@pytest.mark.timeout(600)  # six processes load TensorFlow
def test_towers_are_computed_in_pods_of_their_own_that_may_be_lost(job, tmp_path):
    counts = towers_job.write(tmp_path / "towers", "towers_keras")
    job.start(
        model_zoo=tmp_path / "towers" / "zoo",
        model_def="towers_keras.forward",
        training_data="/data/towers/data",
        export_tables="/data/tables",
        num_workers=2,
        num_model_servers=2,
        worker_resource_request="cpu=1,memory=1024Mi",
    )
    job.until_records(1)
    for role in ("modelserver", "worker"):
        job.namespace.delete(sorted(job.running(role))[0])
    assert job.end() == 0, "".join(job.lines)
    told = "".join(job.lines)
    for name in ("model server 0", "worker 0"):
        assert f"{name} was " in told, told
    assert job.has_exact_ledger()
    expected = np.stack([counts, counts], axis=1) * job.epochs
    for table in ("met", "beside"):
        np.testing.assert_array_equal(towers_job.rows_of(tmp_path, table), expected)


@restricted
def test_the_model_of_a_job_moves_to_more_pods_and_to_fewer(job):
    job.epochs = 4
    job.start_staged(seconds=0.02)
    job.until_records(4_000)
    for count in (3, 1):
        told = job.run("scale", job.full_name, f"--ps={count}")
        assert told.returncode == 0, told.stdout + told.stderr
        job.read_until(f"moved to {count} ps replicas")
    assert job.end() == 0, "".join(job.lines)
    assert job.is_exact()


@restricted
def test_a_job_that_is_suspended_hands_over_and_goes_on_exactly(job):
    """Kueue suspends a Job so, and `elasticdl stop --pause`: nothing of it runs meanwhile."""
    job.epochs = 4
    job.start()
    job.until_records(8_000)
    api = job.namespace.cluster.api
    listed = job.namespace.path("jobs", job.name, group="apis/batch/v1")

    api.patch(listed, {"spec": {"suspend": True}})

    assert job.end() == 130, "".join(job.lines)
    assert not any(map(job.running, ("master", "worker", "ps")))
    suspended = json.loads(job.run("status", job.full_name, "--json").stdout)
    assert (suspended["status"], suspended["records"] >= 8_000) == ("suspended", True)
    events = job.run("events", job.full_name).stdout  # nothing is trained again
    api.patch(listed, {"spec": {"suspend": False}})
    attached = subprocess.run(
        [*CLI, "attach", job.full_name],
        env=job.environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert attached.returncode == 0, attached.stdout + attached.stderr + events
    assert job.has_exact_counts()
    rows = json.loads(job.run("status", job.full_name, "--json").stdout)["ledger"]
    assert [(row["lost"], row["repeated"]) for row in rows] == [(0, 0)] * job.epochs


def test_a_job_whose_pods_are_refused_can_be_asked_for_and_stopped(job):
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    job.namespace.create("resourcequotas", quota)
    job.start()
    job.read_until("the master waits: .*exceeded quota")
    assert "exceeded quota" in job.run("status", job.full_name).stdout
    stopped = job.run("stop", job.full_name)
    assert stopped.returncode == 0, stopped.stderr
    listed = job.namespace.path("jobs", job.name, group="apis/batch/v1")
    job.namespace.cluster.wait_for(listed, lambda found: not found)


def name_in_certificate(address: str) -> str:
    """Return the role that the certificate of a server names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=10) as plain,
        context.wrap_socket(plain) as secured,
    ):
        shown = x509.load_der_x509_certificate(secured.getpeercert(binary_form=True))
    names = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return names.get_values_for_type(x509.DNSName)[0]


@restricted
def test_pods_prove_who_they_are_on_both_planes_with_a_secret_each(job):
    job.halt()
    job.start_staged()
    job.read_until(processes(3, 2))
    namespace = job.namespace

    (master,) = job.pods("master")
    members = json.loads(job.run("status", job.full_name, "--json").stdout)["members"]
    addresses = [member["address"] for member in members if member["role"] == "ps"]
    assert name_in_certificate(f"{master['status']['podIP']}:50001") == "master.elasticdl"
    assert [name_in_certificate(address) for address in addresses] == ["ps.elasticdl"] * 2

    found = namespace.cluster.api.get(namespace.path("secrets"))["items"]
    secrets = {each["metadata"]["name"]: each for each in found}
    replicas = {pod["metadata"]["name"] for role in ("worker", "ps") for pod in job.pods(role)}
    assert set(secrets) == replicas | {job.name, f"{job.name}.authority"}
    with_key = [name for name, each in secrets.items() if "ca.key" in each["data"]]
    assert with_key == [f"{job.name}.authority"]

    first = sorted(job.running("worker"))[0]
    namespace.delete(first, grace_seconds=0)
    namespace.cluster.wait_for(namespace.path("secrets", first), lambda found: not found)
    job.go_on()
    assert job.end() == 0, "".join(job.lines)
    assert job.is_exact()


@restricted
@pytest.mark.parametrize("tls", ["files", "off"])
def test_a_job_speaks_as_the_user_says(job, tls, tmp_path):
    job.epochs = 1
    flags = {"tls": "off", "insecure": "true"}
    if tls == "files":
        make_secret(job.namespace, tmp_path)
        flags = {f"tls_{what}": f"/tls/{what}.pem" for what in ("ca", "cert", "key")}
        flags |= {"tls": "files", "volume": f"{job.volume};secret_name=own,mount_path=/tls"}
    job.start(num_workers=1, num_ps_pods=1, **flags)
    assert job.end() == 0, "".join(job.lines)
    assert job.is_exact()


def make_secret(namespace, folder):
    """Make a Secret with one certificate for all roles, as a user would."""
    new = "openssl req -x509 -days 2 -nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256"
    names = ",".join(f"DNS:{role}.elasticdl" for role in ("master", "ps", "worker"))
    for line in (
        f"{new} -subj /CN=own -keyout ca.key -out ca.pem",
        f"{new} -subj /CN=job -keyout key.pem -out cert.pem -CA ca.pem -CAkey ca.key"
        f" -addext basicConstraints=critical,CA:FALSE -addext subjectAltName={names}"
        " -addext extendedKeyUsage=clientAuth,serverAuth",
    ):
        subprocess.run(line.split(), cwd=folder, check=True, capture_output=True)
    data = {
        name: base64.b64encode((folder / name).read_bytes()).decode()
        for name in ("ca.pem", "cert.pem", "key.pem")
    }
    namespace.create("secrets", {"metadata": {"name": "own"}, "data": data})


@restricted
def test_what_is_printed_runs_as_it_is(job):
    printed = job.run(*job.words(), "--dry_run")
    assert printed.returncode == 0, printed.stderr
    job.apply(printed.stdout)
    listed = job.namespace.path("jobs", job.name, group="apis/batch/v1")
    job.namespace.cluster.wait_for(listed, lambda found: found["status"].get("succeeded"), 200)
    assert job.has_exact_counts()  # no command has waited for the end, and written a summary
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


def test_a_master_whose_program_cannot_be_run_is_told(job, tmp_path):
    spec = tmp_path / "spec.py"
    spec.write_text(
        "def with_pod(pod):\n"
        "    pod.spec.containers[0].command = ['/no/such/program']\n"
        "    return pod\n"
    )
    job.start(cluster_spec=spec)
    job.read_until("its pod has ended: .*/no/such/program.*; still trying")

"""A job in a queue asks for pods when there is room for its minimum, and gives them back."""

import json
import threading

import pytest
from kubernetes import client

from elasticdl.errors import ConfigError, LaunchError
from elasticdl.job import Role
from elasticdl.launchers.base import Exited, ExitReason, PendingProcess, Started
from elasticdl.packages.kubernetes.admission import (
    CONTROLLER,
    Admission,
    members_of_minimum,
    minimum_job,
    place,
)
from elasticdl.packages.kubernetes.client import Api, ApiError
from elasticdl.packages.kubernetes.in_master import leftovers
from elasticdl.packages.kubernetes.job import KubernetesJob
from elasticdl.packages.kubernetes.manifests import manifests
from elasticdl.packages.kubernetes.pods import (
    Plan,
    WantedPod,
    owner_reference,
    owners,
    replica_pod,
)
from elasticdl.packages.kubernetes.settle import settle
from elasticdl.packages.kubernetes.submit import check_queue
from tests.packages.kubernetes.fake_api_server import FakeApiServer
from tests.packages.kubernetes.test_launcher import RUNNING, Cluster, ended

MINIMUM = ("jobs", "test-edl-minimum")
QUEUE = "kueue.x-k8s.io/queue-name"


@pytest.fixture
def make_queued(make_config):
    """Return a function that makes the settings of a job in a queue."""

    def make(**words):
        return make_config(**({"queue_name": "team", "job_dir": "/data/job"} | words))

    return make


@pytest.fixture
def server():
    server = FakeApiServer()
    yield server
    server.close()


def sample(config, role, **words):
    pod = WantedPod(role, 0, f"test-edl-{role}-0", ["true"], **words)
    return replica_pod(Plan(settle(config)), pod, owners("test-edl", "uid-1", "uid-2"))


def minimum_of(config):
    roles = (role for role, number in members_of_minimum(config).items() if number)
    samples = {role: sample(config, role) for role in roles}
    return minimum_job(config, samples, owner_reference("test-edl", "uid-1"))


def test_the_master_waits_in_the_queue_as_a_job_that_is_suspended(make_queued):
    job = manifests(make_queued())[-1]
    assert job["spec"]["suspend"] is True
    assert job["metadata"]["labels"][QUEUE] == "team"
    assert QUEUE not in job["spec"]["template"]["metadata"]["labels"]


def test_the_minimum_requests_what_its_pods_do_together(make_queued):
    config = make_queued(
        num_workers=5,
        num_ps_pods=3,
        num_model_servers=2,
        queue_min_workers=2,
        worker_resource_request="cpu=1.5,memory=1Gi,gpu=1",
        ps_resource_request="cpu=250m,memory=512Mi",
        node_selector="disk=ssd",
        labels="kueue.x-k8s.io/priority-class=low",
    )
    job = minimum_of(config)
    requests = {
        container["name"]: container["resources"]["requests"]
        for container in job["spec"]["template"]["spec"]["containers"]
    }
    assert requests == {
        "ps": {"cpu": "750m", "memory": str(3 * 512 * 2**20)},
        "modelserver": {"cpu": "3", "memory": str(2 * 2**30), "nvidia.com/gpu": "2"},
        "worker": {"cpu": "3", "memory": str(2 * 2**30), "nvidia.com/gpu": "2"},
    }
    assert job["spec"]["suspend"] is True
    assert job["spec"]["managedBy"] == "elasticdl.org/master"  # so no pod is made of it
    assert job["metadata"]["labels"][QUEUE] == "team"
    assert job["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "low"
    assert job["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    assert job["spec"]["template"]["spec"]["nodeSelector"] == {"disk": "ssd"}


def test_pods_of_the_minimum_run_where_the_queue_found_room(make_queued):
    config = make_queued(node_selector="disk=ssd")
    pod, template = sample(config, Role.PS), minimum_of(config)["spec"]["template"]
    before = list(pod["spec"]["tolerations"])
    spot = {"key": "spot", "operator": "Exists"}
    template["spec"]["nodeSelector"] = {"disk": "ssd", "kind": "spot"}
    template["spec"]["tolerations"] = [*before, spot]
    place(pod, template)
    assert pod["spec"]["nodeSelector"] == {"disk": "ssd", "kind": "spot"}
    assert pod["spec"]["tolerations"] == [*before, spot]


@pytest.mark.parametrize("words", [{}, {"state": "etcd://etcd:2379/a"}])
def test_a_queued_job_that_would_begin_anew_is_refused(make_config, words):
    with pytest.raises(ConfigError, match="--queue_name=team: a queue takes processors back"):
        settle(make_config(queue_name="team", **words))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ({"queue_min_workers": 2}, "--queue_min_workers=2: without a queue"),
        ({"queue_min_workers": 3, "queue_name": "a", "num_workers": 2}, "at most --num_workers=2"),
    ],
)
def test_a_minimum_that_cannot_be_is_refused(make_config, words, complaint):
    with pytest.raises(ConfigError, match=complaint):
        make_config(**words)


def test_the_place_in_the_queue_is_given_back_first_at_the_end(make_queued, server):
    configuration = client.Configuration()
    configuration.host = server.url
    api = Api(client.ApiClient(configuration), "team")
    first = leftovers(api, settle(make_queued()))[0]
    assert first == "/apis/batch/v1/namespaces/team/jobs/test-edl-minimum"


def test_the_queue_decides_about_a_job_that_is_to_pause(server):
    configuration = client.Configuration()
    configuration.host = server.url
    about = {"labels": {QUEUE: "team"}}
    server.objects["jobs", "clicks"] = {"metadata": about, "spec": {"suspend": True}, "status": {}}
    job = KubernetesJob(Api(client.ApiClient(configuration), "team"), "clicks")
    assert job.waiting() == "it waits in the queue team"
    with pytest.raises(LaunchError, match=r"in the queue team, which would let it go on at once"):
        job.interrupt()


class Cut:
    """The paths of an API that answers to nothing else."""

    namespace = "team"

    def __init__(self, code=404, **found):
        self._code, self._found = code, found

    def get(self, path):
        if found := self._found.get(path.rpartition("/")[2].replace(".", "_").replace("-", "_")):
            return found
        raise ApiError(self._code, "no")


KUEUE = {"preferredVersion": {"groupVersion": "kueue.x-k8s.io/v1beta2"}}


def test_a_queue_that_is_not_there_is_refused_before_the_job_is_made():
    with pytest.raises(LaunchError, match="--queue_name=a: this cluster has no Kueue"):
        check_queue(Cut(), "a")
    with pytest.raises(LaunchError, match="--queue_name=a: expected a LocalQueue of the namespace"):
        check_queue(Cut(kueue_x_k8s_io=KUEUE), "a")
    check_queue(Cut(kueue_x_k8s_io=KUEUE, a={"metadata": {}}), "a")


def test_who_may_not_look_for_a_queue_may_wait_in_it():
    check_queue(Cut(403), "a")
    check_queue(Cut(403, kueue_x_k8s_io=KUEUE), "a")


class SlowApi:
    """Says after a while that there is no Job; its first deletion fails."""

    def __init__(self):
        self.asked, self.is_asked, self.may_answer = [], threading.Event(), threading.Event()

    def path(self, kind, name=""):
        return kind

    def get(self, path):
        self.is_asked.set()
        self.may_answer.wait(100)
        raise ApiError(404, "no such Job")

    def create(self, path, job):
        self.asked.append("create")
        return job

    def delete(self, path):
        self.asked.append("delete")
        if self.asked.count("delete") == 1:
            raise ApiError(503, "away")


def test_a_queue_that_was_left_is_not_joined_again():
    api = SlowApi()
    about = {"name": "a-minimum", "ownerReferences": [{"uid": "uid-1"}]}
    job = {"metadata": about, "spec": {"suspend": True, "managedBy": CONTROLLER}}
    admission = Admission(api, job, lambda: None, lambda: (False, False))
    assert api.is_asked.wait(100)
    threading.Timer(0.3, api.may_answer.set).start()
    admission.give_up()
    admission._thread.join(100)
    assert api.asked == ["create", "delete", "delete"]


# --- a launcher, and a queue that the test plays --------------------------------------------------


class Queue:
    """What Kueue does to the Job of a minimum."""

    def __init__(self, server):
        self._server = server

    def _set(self, suspend, **template):
        self._server.wait_until(lambda: MINIMUM in self._server.objects)
        with self._server.lock:
            job = json.loads(json.dumps(self._server.objects[MINIMUM]))
            job["spec"]["suspend"] = suspend
            job["spec"]["template"]["spec"] |= template
            self._server.objects[MINIMUM] = job

    def admit(self, **template):
        self._set(False, **template)

    def take_back(self):
        self._set(True)


@pytest.fixture
def queue(server):
    return Queue(server)


@pytest.fixture
def cluster(server, make_queued):
    cluster = Cluster(server, make_queued(num_workers=3))
    yield cluster
    cluster.launcher.leave(0)


def labels(server, handle):
    return server.pods()[handle.ref]["metadata"]["labels"]


def told(cluster):
    """Return what is told next, but for what a process waits for."""
    while isinstance(event := cluster.next(), PendingProcess):
        pass
    return event


def test_no_pod_is_asked_for_before_the_minimum_was_admitted(cluster, server, queue):
    ps = cluster.start(Role.PS)
    waits = cluster.next()
    assert isinstance(waits, PendingProcess)
    assert waits.why == "the queue team has not admitted the minimum of ps and worker processes"
    assert not server.pods()
    queue.admit(nodeSelector={"kind": "spot"})
    cluster.is_there(ps)
    assert server.pods()[ps.ref]["spec"]["nodeSelector"] == {"kind": "spot"}
    assert QUEUE not in labels(server, ps)


def test_a_worker_beyond_the_minimum_waits_in_the_queue_by_itself(cluster, server, queue):
    queue.admit()
    first, second = cluster.start(index=0), cluster.start(index=1)
    cluster.is_there(first)
    cluster.is_there(second)
    queued = [labels(server, handle).get(QUEUE) for handle in (first, second)]
    assert sorted(queued, key=str) == [None, "team"]
    member = first if queued[0] is None else second
    server.set_status(member.ref, **ended(143))
    assert told(cluster) == Exited(member, ExitReason.KILLED, 143)
    successor = cluster.start(index=2)  # takes its place
    cluster.is_there(successor)
    assert QUEUE not in labels(server, successor)


def test_what_is_taken_back_is_lost_without_fault_and_waits_again(cluster, server, queue):
    queue.admit()
    worker = cluster.start()
    cluster.is_there(worker)
    server.set_status(worker.ref, **RUNNING)
    assert told(cluster) == Started(worker)
    queue.take_back()
    assert told(cluster) == Exited(worker, ExitReason.PREEMPTED, None)
    assert ("DELETE", "pods", worker.ref, 30) in server.requests
    successor = cluster.start(index=1)
    assert isinstance(cluster.next(), PendingProcess)
    assert not server.pods()
    queue.admit()
    cluster.is_there(successor)


def test_workers_hand_over_before_the_ps_replicas_that_they_push_to(cluster, server, queue):
    queue.admit()
    ps, worker = cluster.start(Role.PS), cluster.start(Role.WORKER)
    for pod in (ps, worker):
        cluster.is_there(pod)
    queue.take_back()
    server.wait_until(lambda: not server.pods())
    deleted = [request[2] for request in server.requests if request[:2] == ("DELETE", "pods")]
    assert deleted == [worker.ref, ps.ref]


def test_the_queue_is_told_what_becomes_of_the_minimum(cluster, server, queue):
    """Kueue gives its room to others only when none of its pods is there."""

    def is_told(active, ready):
        server.wait_until(
            lambda: server.objects[MINIMUM].get("status") == {"active": active, "ready": ready}
        )

    queue.admit()
    pods = [cluster.start(Role.PS), cluster.start(Role.WORKER)]
    for pod in pods:
        cluster.is_there(pod)
        is_told(1, 0)
        server.set_status(pod.ref, **RUNNING)
    is_told(1, 1)
    server.set_status(pods[0].ref, **ended(143))
    is_told(1, 0)
    server.set_status(pods[1].ref, **ended(143))
    is_told(0, 0)


def test_another_master_finds_the_minimum_admitted_and_who_is_of_it(server, make_queued, queue):
    first = Cluster(server, make_queued(num_workers=3))
    queue.admit()
    member = first.start()
    first.is_there(member)
    first.launcher.leave(0)
    second = Cluster(server, make_queued(num_workers=3))
    second.launcher.adopt(member)
    further = second.start(index=1)
    second.is_there(further)
    assert labels(server, further)[QUEUE] == "team"
    assert server.requests.count(("POST", *MINIMUM)) == 1
    second.launcher.leave(0)


def test_what_was_taken_back_while_there_was_no_master_goes(server, make_queued, queue):
    first = Cluster(server, make_queued())
    queue.admit()
    handles = [first.start(Role.PS), first.start(Role.WORKER)]
    for handle in handles:
        first.is_there(handle)
    first.launcher.leave(0)
    queue.take_back()
    second = Cluster(server, make_queued())
    for handle in handles:
        second.launcher.adopt(handle)
    assert {told(second).handle for _ in handles} == set(handles)
    assert not server.pods()
    second.launcher.leave(0)


def test_a_worker_that_waits_for_the_minimum_can_be_stopped(cluster):
    worker = cluster.start()
    assert isinstance(cluster.next(), PendingProcess)
    cluster.launcher.stop(worker, 1.0)
    assert told(cluster) == Exited(worker, ExitReason.KILLED, None)


@pytest.mark.parametrize("managed", [False, True])
def test_a_queue_that_cannot_be_used_fails_the_process(server, make_queued, managed):
    """An old Kubernetes would make pods of the minimum; and the right to make it may lack."""
    if managed:
        server.faults.append((403, "jobs.batch is forbidden: User x cannot create resource jobs"))
    else:
        ours = {"name": MINIMUM[1], "ownerReferences": [{"uid": "uid-1"}]}
        server.objects[MINIMUM] = {"metadata": ours, "spec": {"suspend": True}}
    cluster = Cluster(server, make_queued())
    cluster.start()
    exited = told(cluster)
    assert exited.reason is ExitReason.FAILED
    wanted = "elasticdl rbac --queues" if managed else "expected 1.32 or newer for --queue_name"
    assert wanted in exited.last_words
    cluster.launcher.leave(0)


def test_a_job_on_volcano_names_its_scheduler_and_queue_on_all_pods(make_config):
    words = {
        "scheduler_name": "volcano",
        "annotations": "scheduling.volcano.sh/queue-name=training",
    }
    config = make_config(**words)
    master = manifests(config)[-1]["spec"]["template"]
    for pod in (master, sample(config, Role.WORKER), sample(config, Role.PS)):
        assert pod["spec"]["schedulerName"] == "volcano"
        assert pod["metadata"]["annotations"]["scheduling.volcano.sh/queue-name"] == "training"

"""Pods of a job are asked for, watched and let go of, whatever the API server answers."""

import queue

import pytest
from kubernetes import client

from elasticdl.errors import LaunchError
from elasticdl.job import Role
from elasticdl.launchers.base import (
    Exited,
    ExitReason,
    PendingProcess,
    ProcessHandle,
    ProcessSpec,
    Started,
)
from elasticdl.packages.kubernetes.client import Api
from elasticdl.packages.kubernetes.cluster_spec import ClusterSpec
from elasticdl.packages.kubernetes.launcher import KubernetesLauncher
from elasticdl.packages.kubernetes.pods import Plan, owners
from elasticdl.packages.kubernetes.retry import _CREATORS
from elasticdl.packages.kubernetes.settle import settle
from elasticdl.runtime.credentials.authority import Authority
from elasticdl.runtime.credentials.job_authority import JobAuthority
from tests.packages.kubernetes.fake_api_server import FakeApiServer

RUNNING = {
    "phase": "Running",
    "containerStatuses": [{"name": "elasticdl", "state": {"running": {}}}],
}


def ended(code, reason="Error", phase="Failed", message=""):
    state = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    return {"phase": phase, "containerStatuses": [{"name": "elasticdl", "state": state}]}


@pytest.fixture
def server():
    server = FakeApiServer()
    yield server
    server.close()


def deletions(server):
    return [request for request in server.requests if request[0] == "DELETE"]


class Cluster:
    """A launcher, and what it tells."""

    def __init__(self, server, config, uid="uid-1", authority=None):
        self.server = server
        self.told = queue.SimpleQueue()
        configuration = client.Configuration()
        configuration.host = server.url
        api = Api(client.ApiClient(configuration), "team")
        owned_by = owners(config.cluster.job_name, uid, "uid-of-service")
        self.launcher = KubernetesLauncher(
            Plan(settle(config)), api, owned_by, "test-edl.team.svc:50001", self.told.put, authority
        )

    def start(self, role=Role.WORKER, index=0):
        return self.launcher.start(ProcessSpec(role, index, ()))

    def next(self):
        return self.told.get(timeout=100)

    def is_there(self, handle):
        self.server.wait_until(lambda: handle.ref in self.server.pods())

    def bind(self, handle):
        """Give its pod a node."""
        pod = self.server.pods()[handle.ref]
        self.server.put(pod | {"spec": pod["spec"] | {"nodeName": "node-0"}})

    def secret_of(self, handle):
        self.server.wait_until(lambda: ("secrets", handle.ref) in self.server.objects)
        return self.server.objects["secrets", handle.ref]


@pytest.fixture
def cluster(server, make_config):
    cluster = Cluster(server, make_config())
    yield cluster
    cluster.launcher.leave(0)


@pytest.fixture
def authority(tmp_path):
    return JobAuthority(Authority.create(tmp_path / "tls", "test-edl"), tmp_path, "test-edl", 60.0)


@pytest.fixture
def secured(server, make_config, authority):
    cluster = Cluster(server, make_config(), authority=authority)
    yield cluster
    cluster.launcher.leave(0)


def test_a_pod_runs_and_ends(cluster, server):
    handle = cluster.start()
    cluster.is_there(handle)
    pod = server.pods()[handle.ref]
    assert pod["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    (container,) = pod["spec"]["containers"]
    assert container["command"][:4] == ["python", "-P", "-u", "-m"]
    assert container["command"][4].endswith(".process_one")
    assert container["command"][5] == "elasticdl.worker"
    assert "test-edl.team.svc:50001" in container["command"]
    assert "/etc/elasticdl/secret/token" in container["command"]
    server.set_status(handle.ref, **RUNNING)
    assert cluster.next() == Started(handle)
    server.set_status(handle.ref, **ended(0, "Completed", "Succeeded"))
    assert cluster.next() == Exited(handle, ExitReason.FINISHED, 0)


def test_what_a_process_said_last_is_told(cluster, server):
    handle = cluster.start()
    cluster.is_there(handle)
    log = "2026-01-01 00:00:00.000 worker-0 ERROR ModelError: no such thing\nat the end\n"
    server.set_status(handle.ref, **ended(1, message=log))
    exited = cluster.next()
    assert (exited.reason, exited.code) == (ExitReason.FAILED, 1)
    assert exited.last_words == "ModelError: no such thing"


def test_why_a_pod_waits_is_told_once(cluster, server):
    handle = cluster.start()
    cluster.is_there(handle)
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "no room",
    }
    for _ in range(2):
        server.set_status(handle.ref, phase="Pending", conditions=[condition])
    server.set_status(handle.ref, **RUNNING)
    assert cluster.next() == PendingProcess(handle, "Unschedulable: no room", lacks_room=True)
    assert cluster.next() == Started(handle)


def test_a_pod_that_has_a_node_lacks_no_room(cluster, server):
    handle = cluster.start()
    cluster.is_there(handle)
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    server.set_status(handle.ref, phase="Pending", conditions=[condition])
    assert cluster.next().lacks_room
    server.set_status(handle.ref, phase="Pending", conditions=[condition | {"status": "True"}])
    assert not cluster.next().lacks_room


@pytest.mark.parametrize("fault", [(429, "slow down"), (500, "no leader"), (503, "away"), "lost"])
def test_a_pod_is_asked_for_until_there_is_one(cluster, server, fault):
    server.faults.extend([fault, fault] if fault != "lost" else [fault])
    handle = cluster.start()
    cluster.is_there(handle)
    server.set_status(handle.ref, **RUNNING)
    events = [cluster.next()]
    while not isinstance(events[-1], Started):
        events.append(cluster.next())
    assert len(server.pods()) == 1


def test_a_quota_is_waited_for_and_told(cluster, server):
    server.faults.append((403, 'pods "a" is forbidden: exceeded quota: team'))
    handle = cluster.start()
    waits = cluster.next()
    assert isinstance(waits, PendingProcess)
    assert waits.why == "exceeded quota: team"
    cluster.is_there(handle)


def test_a_pod_that_no_thread_has_asked_for_yet_ends_while_others_wait_for_room(cluster, server):
    server.faults.extend([(403, 'pods "a" is forbidden: exceeded quota: team')] * 1000)
    for index in range(_CREATORS):
        cluster.start(index=index)
        assert isinstance(cluster.next(), PendingProcess)
    last = cluster.start(index=_CREATORS)
    cluster.launcher.stop(last, 1.0)
    assert cluster.next() == Exited(last, ExitReason.KILLED, None)


def test_a_pod_that_is_refused_has_failed(cluster, server):
    server.faults.append((403, "pods is forbidden: User x cannot create resource pods"))
    handle = cluster.start()
    exited = cluster.next()
    assert (exited.handle, exited.reason, exited.code) == (handle, ExitReason.FAILED, None)
    assert "cannot create resource" in exited.last_words
    assert "elasticdl rbac prints the rights" in exited.last_words


def test_a_pod_that_the_users_file_cannot_change_has_failed(cluster, tmp_path):
    file = tmp_path / "spec.py"
    file.write_text("def with_pod(pod):\n    return pod.spec.node_selector['pool']\n")
    cluster.launcher._spec = ClusterSpec.read(file)
    handle = cluster.start()
    exited = cluster.next()
    assert (exited.handle, exited.reason) == (handle, ExitReason.FAILED)
    assert "with_pod: TypeError" in exited.last_words


def test_a_pod_that_goes_away_while_nobody_watches_is_noticed(cluster, server):
    handle = cluster.start()
    cluster.is_there(handle)
    server.set_status(handle.ref, **RUNNING)
    assert cluster.next() == Started(handle)
    before = server.num_lists
    with server.lock:
        del server.objects["pods", handle.ref]  # no event tells
    server.forget_history()
    exited = cluster.next()
    assert (exited.handle, exited.reason) == (handle, ExitReason.PREEMPTED)
    assert server.num_lists > before


def test_a_watch_that_ends_goes_on_where_it_was(cluster, server):
    handle = cluster.start()
    cluster.is_there(handle)
    server.forget_history()
    server.wait_until(lambda: server.watches >= 2)
    server.set_status(handle.ref, **RUNNING)
    assert cluster.next() == Started(handle)


@pytest.mark.parametrize(
    "line",
    [
        b'{"type": "MODIFIED", "object": {"metada',
        b"<html>bad gateway</html>\n",
        b'{"type": "MODIFIED", "object": {"metadata": {"resourceVersion": "1"}}}\n',
        b'["an array"]\n',
    ],
)
def test_a_watch_goes_on_after_a_line_that_cannot_be_read(cluster, server, line):
    handle = cluster.start()
    cluster.is_there(handle)
    server.watch_lines.append(line)
    server.forget_history()
    server.wait_until(lambda: not server.watch_lines)
    server.set_status(handle.ref, **RUNNING)
    assert cluster.next() == Started(handle)


def test_stop_deletes_a_pod_with_its_grace(cluster, server):
    handle = cluster.start()
    cluster.is_there(handle)
    server.set_status(handle.ref, **RUNNING)
    assert cluster.next() == Started(handle)
    cluster.launcher.stop(handle, 5.0)
    exited = cluster.next()
    assert (exited.handle, exited.reason) == (handle, ExitReason.KILLED)
    assert ("DELETE", "pods", handle.ref, 5) in server.requests


def test_another_master_adopts_pods(server, make_config):
    first = Cluster(server, make_config())
    alive, gone = first.start(index=0), first.start(index=1)
    first.is_there(alive)
    first.is_there(gone)
    server.set_status(alive.ref, **RUNNING)
    first.launcher.leave(0)
    assert set(server.pods()) == {alive.ref, gone.ref}  # they live on
    server.put(server.pods()[gone.ref], "DELETED")
    second = Cluster(server, make_config())
    second.launcher.adopt(alive)
    second.launcher.adopt(gone)
    told = {second.next().handle: None for _ in range(2)}
    assert set(told) == {alive, gone}
    server.set_status(alive.ref, **ended(1))
    assert second.next().code == 1
    second.launcher.leave(0)


def test_pods_of_a_job_before_of_the_same_name_are_not_ours(server, make_config):
    before = Cluster(server, make_config(), uid="uid-0")
    old = before.start()
    before.is_there(old)
    before.launcher.leave(0)
    cluster = Cluster(server, make_config())
    cluster.launcher.adopt(old)
    assert cluster.next() == Exited(old, ExitReason.UNKNOWN, None)
    cluster.launcher.leave(0)


@pytest.mark.parametrize("role", [Role.PS, Role.MODEL_SERVER])
def test_a_pod_that_no_master_speaks_of_is_deleted(server, make_config, role):
    killed = Cluster(server, make_config())
    stray = killed.start(role, 1)
    killed.is_there(stray)
    killed.launcher.leave(0)
    cluster = Cluster(server, make_config())
    handle = cluster.start(role, 1)
    cluster.is_there(handle)
    server.wait_until(lambda: stray.ref not in server.pods())
    cluster.launcher.leave(0)


@pytest.mark.parametrize("role", [Role.WORKER, Role.MODEL_SERVER])
def test_a_role_that_runs_out_of_memory_gets_more(server, make_config, role):
    cluster = Cluster(server, make_config(worker_resource_request="cpu=1,memory=1Gi"))
    for memory in ("1Gi", "1536Mi", "2304Mi", "3456Mi", "4096Mi", "4096Mi"):
        handle = cluster.start(role)
        cluster.is_there(handle)
        (container,) = server.pods()[handle.ref]["spec"]["containers"]
        assert container["resources"]["limits"]["memory"] == memory
        assert container["resources"]["requests"]["memory"] == memory
        server.set_status(handle.ref, **ended(137, "OOMKilled"))
        assert cluster.next().reason is ExitReason.OUT_OF_MEMORY
    handle = cluster.start(Role.PS)
    cluster.is_there(handle)
    (container,) = server.pods()[handle.ref]["spec"]["containers"]
    assert container["resources"]["limits"]["memory"] == "4096Mi"  # its own default
    cluster.launcher.leave(0)


def test_a_share_of_the_workers_has_high_priority(server, make_config):
    cluster = Cluster(server, make_config(worker_pod_priority="0.5", ps_pod_priority="top"))
    handles = [cluster.start(index=index) for index in range(5)]
    for handle in handles:
        cluster.is_there(handle)
    classes = [server.pods()[handle.ref]["spec"]["priorityClassName"] for handle in handles]
    assert sorted(classes) == ["high", "high", "high", "low", "low"]
    for role in (Role.PS, Role.MODEL_SERVER):  # workers wait for both
        handle = cluster.start(role)
        cluster.is_there(handle)
        assert server.pods()[handle.ref]["spec"]["priorityClassName"] == "top"
    cluster.launcher.leave(0)


def test_close_leaves_no_pod_that_runs(cluster, server):
    handles = [cluster.start(index=index) for index in range(3)]
    for handle in handles:
        cluster.is_there(handle)
    server.set_status(handles[0].ref, **ended(0, "Completed", "Succeeded"))
    assert cluster.next().reason is ExitReason.FINISHED
    cluster.launcher.close(5.0)
    assert set(server.pods()) == {handles[0].ref}  # kept for its log
    assert {cluster.next().handle for _ in range(2)} == set(handles[1:])
    with pytest.raises(LaunchError, match="the job is ending"):
        cluster.start()


@pytest.mark.parametrize(
    ("uid", "suspend", "is_suspended"),
    [("uid-1", False, False), ("uid-1", True, True), ("uid-of-the-next-job", True, False)],
)
def test_pods_outlive_their_master_unless_its_job_is_suspended(
    server, make_config, uid, suspend, is_suspended
):
    cluster = Cluster(server, make_config())
    handles = [cluster.start(role) for role in (Role.PS, Role.WORKER)]
    for handle in handles:
        cluster.is_there(handle)
    server.objects["jobs", "test-edl"] = {"spec": {"suspend": suspend}, "metadata": {"uid": uid}}
    cluster.launcher.leave(5.0)
    assert bool(server.pods()) is not is_suspended
    asked = list(dict.fromkeys((name, grace) for *_, name, grace in deletions(server)))
    ps, worker = handles  # workers hand over to ps replicas, which have the more time the sooner
    assert asked == ([(worker.ref, 15), (ps.ref, 25)] if is_suspended else [])


def test_workers_are_asked_for_after_the_replicas_that_they_wait_for(cluster, server):
    server.faults.extend([(403, 'pods "a" is forbidden: exceeded quota: team')] * 2)
    ps = cluster.start(Role.PS)
    waits = cluster.next()
    assert (waits.handle, waits.lacks_room) == (ps, True)
    worker = cluster.start()
    cluster.is_there(worker)
    names = [name for word, _, name in (r for r in server.requests if r[0] == "POST")]
    assert names == [ps.ref] * 3 + [worker.ref]


def test_a_worker_that_waits_for_replicas_can_be_withdrawn(cluster, server):
    server.faults.extend([(403, 'pods "a" is forbidden: exceeded quota: team')] * 100)
    cluster.start(Role.PS)
    worker = cluster.start()
    cluster.launcher.stop(worker, 5.0)
    while not isinstance(end := cluster.next(), Exited):
        pass
    assert (end.handle, end.reason) == (worker, ExitReason.KILLED)


@pytest.mark.parametrize("ends", ["stop", "close"])
def test_a_pod_that_waits_for_its_quota_can_be_withdrawn(cluster, server, ends):
    server.faults.extend([(403, 'pods "a" is forbidden: exceeded quota: team')] * 100)
    handle = cluster.start()
    assert isinstance(cluster.next(), PendingProcess)
    if ends == "stop":
        cluster.launcher.stop(handle, 5.0)
    else:
        cluster.launcher.close(0.0)
    assert cluster.next() == Exited(handle, ExitReason.KILLED, None)
    assert not server.pods()


def test_only_some_of_the_pods_that_ended_are_kept(cluster, server):
    for index in range(12):
        handle = cluster.start(index=index)
        cluster.is_there(handle)
        server.set_status(handle.ref, **ended(0, "Completed", "Succeeded"))
        assert isinstance(cluster.next(), Exited)
    server.wait_until(lambda: len(server.pods()) == 10)
    assert not any("-worker-0-" in name or "-worker-1-" in name for name in server.pods())


def test_pods_that_earlier_masters_have_kept_count_too(server, make_config):
    names = [f"test-edl-worker-{index}-abcdef" for index in range(12)]
    for index, name in enumerate(names):
        owned = [{"uid": "uid-1"}]
        labels = {"elasticdl-replica-type": "worker", "elasticdl-replica-index": str(index)}
        metadata = {"name": name, "ownerReferences": owned, "labels": labels}
        status = ended(0, "Completed", "Succeeded")
        terminated = status["containerStatuses"][0]["state"]["terminated"]
        terminated["finishedAt"] = f"2026-01-01T00:00:{index:02}Z"
        server.put({"metadata": metadata, "spec": {}, "status": status})
    cluster = Cluster(server, make_config())
    server.wait_until(lambda: set(server.pods()) == set(names[2:]))
    cluster.launcher.leave(0)


def test_a_handle_of_another_launcher_is_a_process_that_is_gone(cluster):
    handle = ProcessHandle(Role.WORKER, 0, '{"pid": 1}')
    cluster.launcher.adopt(handle)
    assert cluster.next() == Exited(handle, ExitReason.UNKNOWN, None)


def test_a_pod_gets_its_certificate_when_it_has_a_node(secured, server):
    first, second = secured.start(Role.PS, 1), secured.start(Role.PS, 2)
    secured.is_there(first)
    secured.is_there(second)
    (container,) = server.pods()[first.ref]["spec"]["containers"]
    assert container["command"][-2:] == ["--tls_dir", "/etc/elasticdl/tls"]
    secured.bind(second)
    secret = secured.secret_of(second)
    assert ("secrets", first.ref) not in server.objects
    assert secret["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Pod", "name": second.ref, "uid": f"uid-of-{second.ref}"}
    ]
    assert set(secret["stringData"]) == {"ca.pem", "ps-2.pem"}
    assert "PRIVATE KEY" in secret["stringData"]["ps-2.pem"]
    assert "PRIVATE KEY" not in secret["stringData"]["ca.pem"]


def test_a_pod_whose_master_died_before_it_got_a_certificate_gets_one(
    server, make_config, authority
):
    first = Cluster(server, make_config(), authority=authority)
    handle = first.start()
    first.is_there(handle)
    first.launcher.leave(0)
    first.bind(handle)
    second = Cluster(server, make_config(), authority=authority)
    second.launcher.adopt(handle)
    assert set(second.secret_of(handle)["stringData"]) == {"ca.pem", "worker-0.pem"}
    second.launcher.leave(0)


def test_a_certificate_that_is_there_already_is_left_as_it_is(secured, server):
    handle = secured.start()
    secured.is_there(handle)
    server.objects["secrets", handle.ref] = {"stringData": {}}
    secured.bind(handle)
    server.wait_until(lambda: ("POST", "secrets", handle.ref) in server.requests)
    server.set_status(handle.ref, **RUNNING)
    assert secured.next() == Started(handle)
    assert server.objects["secrets", handle.ref] == {"stringData": {}}


def test_a_pod_that_can_have_no_certificate_has_failed(secured, server):
    handle = secured.start()
    secured.is_there(handle)
    server.faults.append((403, "secrets is forbidden: User x cannot create resource secrets"))
    secured.bind(handle)
    exited = secured.next()
    assert (exited.handle, exited.reason) == (handle, ExitReason.FAILED)
    assert f"Kubernetes refuses the Secret {handle.ref}" in exited.last_words
    assert "elasticdl rbac prints the rights" in exited.last_words
    server.wait_until(lambda: handle.ref not in server.pods())

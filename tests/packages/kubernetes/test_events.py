"""Events of a job on a cluster come from its master, over any number of masters, and then its log.

The API is played, because a pod's life is told by the test; the masters are real gRPC servers.
"""

import base64
import contextlib
import itertools
import json
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from elasticdl.packages.kubernetes import names
from elasticdl.packages.kubernetes.client import ApiError
from elasticdl.packages.kubernetes.job import KubernetesJob
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.elasticdl_pb2_grpc import MasterServicer, add_MasterServicer_to_server

RUNNING = {"running": {}}
ENDED = {"terminated": {"exitCode": 0}}
CONNECT_SECONDS = 2.0


class Api:
    """A Job with the pods of its masters, the newest one last."""

    namespace = "default"

    def __init__(self, config):
        self.config = config
        self.pods, self.conditions, self.log, self.warnings = [], [], [], []

    def path(self, kind, name=""):
        return f"{kind}/{name}"

    def add_pod(self, port):
        for pod in self.pods:
            pod["metadata"]["deletionTimestamp"] = "now"
        name = f"master-{len(self.pods)}"
        labels = {names.ROLE_LABEL: "master", names.INDEX_LABEL: "0"}
        container = {"name": names.CONTAINER, "ports": [{"containerPort": port}]}
        status = {"phase": "Running", "podIP": "127.0.0.1"}
        status["containerStatuses"] = [{"name": names.CONTAINER, "state": RUNNING}]
        metadata = {"name": name, "labels": labels, "creationTimestamp": name}
        self.pods.append(
            {"metadata": metadata, "spec": {"containers": [container]}, "status": status}
        )

    def end(self, log):
        self.pods[-1]["status"]["containerStatuses"][0]["state"] = ENDED
        self.conditions, self.log = [{"type": "Complete", "status": "True"}], log

    def get(self, path, **query):
        kind = path.split("/")[0]
        if kind == "jobs":
            return {"metadata": {"uid": "now"}, "status": {"conditions": self.conditions}}
        if kind == "pods":
            return {"items": self.pods}
        if kind == "configmaps":
            return {"data": {names.CONFIG_KEY: self.config.model_dump_json()}}
        if kind == "events":
            wanted = dict(word.split("=") for word in query["fieldSelector"].split(","))
            return {"items": [each for each in self.warnings if wanted.items() <= each.items()]}
        assert kind == "secrets"
        return {"data": {names.TOKEN_KEY: base64.b64encode(b"00" * 32).decode()}}

    def stream(self, path, seconds, **query):
        assert "follow" not in query
        return iter(self.log)


@pytest.fixture
def api(make_config):
    return Api(make_config(tls="off", insecure=True))


class Master(MasterServicer):
    """Says what it is given to say, then hangs up as one that is lost, or ends the stream."""

    def __init__(self, events, is_lost):
        self.events, self.is_lost, self.asked = events, is_lost, []
        self.when_said = lambda: None

    def WatchEvents(self, request, context):
        self.asked.append((request.since, request.with_beats))
        for event in self.events:
            if event["time"] >= request.since:
                yield pb.Event(json=json.dumps(event))
        self.when_said()
        if self.is_lost:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the pod is gone")


@pytest.fixture
def serve():
    with contextlib.ExitStack() as ends:

        def start(api, events, is_lost=False):
            master = Master(events, is_lost)
            server = grpc.server(ends.enter_context(ThreadPoolExecutor(2)))
            add_MasterServicer_to_server(master, server)
            api.add_pod(server.add_insecure_port("127.0.0.1:0"))
            server.start()
            ends.callback(lambda: server.stop(None).wait())
            return master

        yield start


def event(time, name="phase"):
    return {"time": time, "role": "master", "index": 0, "event": name}


def test_the_master_is_asked_for_what_has_happened(api, serve):
    master = serve(api, [event(1.0), event(2.0)])
    job = KubernetesJob(api, "a")
    assert list(job.events(follow=False)) == [event(1.0), event(2.0)]
    assert list(job.events(follow=False, since=1.5, with_beats=True)) == [event(2.0)]
    assert master.asked == [(0.0, False), (1.5, True)]


def test_the_next_master_goes_on_where_the_one_before_was_lost(api, serve):
    first = serve(api, [event(1.0), event(2.0)], is_lost=True)
    first.when_said = lambda: len(api.pods) == 1 and serve(api, [event(2.0), event(3.0)])
    job = KubernetesJob(api, "a", CONNECT_SECONDS)
    assert list(job.events(follow=True)) == [event(t) for t in (1.0, 2.0, 3.0)]


@pytest.mark.parametrize("fault", [ApiError(503, "away"), ApiError(0, "reset")])
@pytest.mark.parametrize("number", range(5))
def test_events_go_on_after_the_api_server_was_away(api, serve, monkeypatch, fault, number):
    serve(api, [event(1.0), event(2.0)])
    get, calls = api.get, itertools.count()

    def get_or_fail(path, **query):
        if next(calls) == number:
            raise fault
        return get(path, **query)

    monkeypatch.setattr(api, "get", get_or_fail)
    job = KubernetesJob(api, "a", CONNECT_SECONDS)
    assert list(job.events(follow=True)) == [event(1.0), event(2.0)]


TEXT_LOG = [
    "2026-01-01 00:00:01.000 master INFO the job is training",
    "2026-01-01 00:00:02.500 master DEBUG no event",
    "{'printed': 'by the model file'}",
    "2026-01-01 00:00:03.000 master INFO the job is finished",
]
JSON_LOG = [
    '{"time": 1767225601.0, "process": "m", "level": "INFO", "message": "the job is training"}',
    '{"printed": "by the model file"}',
    '{"time": 1767225603.0, "process": "m", "level": "INFO", "message": "the job is finished"}',
]


@pytest.mark.parametrize("log", [TEXT_LOG, JSON_LOG], ids=["text", "json"])
def test_what_a_master_that_is_gone_had_still_to_say_is_in_its_log(api, serve, log):
    since = 1767225601.0
    master = serve(api, [event(since)], is_lost=True)
    master.when_said = lambda: api.end(log)
    said = list(KubernetesJob(api, "a", CONNECT_SECONDS).events(follow=True))
    assert said[0] == event(since)
    assert [(one["time"], one["text"]) for one in said[1:]] == [(1767225603, "the job is finished")]


def warning(uid, message):
    of = {"involvedObject.kind": "Job", "involvedObject.name": "a", "involvedObject.uid": uid}
    return of | {"type": "Warning", "message": message}


def test_a_job_does_not_wait_for_the_reason_of_an_earlier_job_of_its_name(api):
    job = KubernetesJob(api, "a")
    api.warnings.append(warning("before", "Job has reached the specified backoff limit"))
    assert job.waiting() == "it has no pod yet"
    assert list(job.events(follow=False)) == []
    api.warnings.insert(0, warning("now", "exceeded quota: team"))
    assert job.waiting() == "exceeded quota: team"
    assert [one["text"] for one in job.events(False)] == ["the master waits: exceeded quota: team"]

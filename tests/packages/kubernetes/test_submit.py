"""A command makes all objects of a job, or leaves none, whatever becomes of its requests."""

import contextlib

import pytest
from kubernetes import client

from elasticdl.errors import LaunchError
from elasticdl.packages.kubernetes import submit as room
from elasticdl.packages.kubernetes.client import Api, ApiError
from elasticdl.packages.kubernetes.submit import KubernetesSubmitter
from tests.packages.kubernetes.fake_api_server import FakeApiServer

OBJECTS = [
    ("jobs", "test-edl"),
    ("configmaps", "test-edl-model"),
    ("configmaps", "test-edl"),
    ("services", "test-edl"),
]


@pytest.fixture
def server(monkeypatch):
    with contextlib.closing(FakeApiServer()) as server:
        configuration = client.Configuration()
        configuration.host = server.url
        api = Api(client.ApiClient(configuration), "team")
        monkeypatch.setattr(Api, "connect", lambda namespace: api)
        yield server


@pytest.mark.parametrize("number", range(len(OBJECTS)))
def test_an_object_whose_answer_was_lost_is_the_jobs_own(server, make_config, number):
    server.faults.extend([None] * number + ["lost"])
    KubernetesSubmitter().submit(make_config(), is_tied=False)
    assert list(server.objects) == OBJECTS
    assert not [words for words in server.requests if words[0] == "DELETE"]


def test_a_job_of_this_name_that_another_command_has_made_stays(server, make_config):
    KubernetesSubmitter().submit(make_config(), is_tied=False)
    with pytest.raises(LaunchError, match="there is a job test-edl in the namespace team already"):
        KubernetesSubmitter().submit(make_config(), is_tied=False)
    assert not [words for words in server.requests if words[0] == "DELETE"]


@pytest.mark.parametrize("name", ["_make", "_make_part"])
def test_a_command_that_is_interrupted_leaves_no_job(server, make_config, monkeypatch, name):
    make = getattr(room, name)

    def make_and_be_interrupted(*words):
        make(*words)
        raise KeyboardInterrupt

    monkeypatch.setattr(room, name, make_and_be_interrupted)
    with pytest.raises(KeyboardInterrupt):
        KubernetesSubmitter().submit(make_config(), is_tied=False)
    assert ("DELETE", "jobs", "test-edl", None) in server.requests


@pytest.mark.parametrize("name", ["/data/jobs/clicks", "./clicks", "jobs/clicks/1", "clicks.1"])
def test_a_server_is_not_asked_for_a_folder(monkeypatch, name):
    def forbidden(self, path, **query):
        raise ApiError(403, "forbidden")

    monkeypatch.setattr(Api, "connect", lambda namespace: Api(None, namespace))
    monkeypatch.setattr(Api, "get", forbidden)
    assert KubernetesSubmitter().find(name) is None
    assert KubernetesSubmitter().places_of(name) == ""
    with pytest.raises(LaunchError, match=r"no folder of a job 'jobs/clicks' .*: forbidden"):
        KubernetesSubmitter().find("jobs/clicks")

"""What a master leaves behind when its job has ended."""

import pytest
from kubernetes import client

from elasticdl.packages.kubernetes import in_master, names
from elasticdl.packages.kubernetes.client import Api, ApiError
from elasticdl.packages.kubernetes.in_master import leftovers, tell_end
from elasticdl.packages.kubernetes.settle import settle
from elasticdl.packages.kubernetes.suspension import _end_replicas
from elasticdl.runtime import process
from tests.packages.kubernetes.fake_api_server import FakeApiServer


def test_keys_settings_and_service_are_of_no_use_after_the_end(make_config):
    server = FakeApiServer()
    try:
        configuration = client.Configuration()
        configuration.host = server.url
        api = Api(client.ApiClient(configuration), "team")
        server.put({"metadata": {"name": "test-edl-worker-0-ab"}}, "ADDED")
        config = settle(make_config(model_params="password=x"))
        found = [path.removeprefix("/api/v1/namespaces/team/") for path in leftovers(api, config)]
    finally:
        server.close()
    assert found == [
        "secrets/test-edl.authority",
        "secrets/test-edl",
        "secrets/test-edl-worker-0-ab",
        "secrets/test-edl-data",
        "configmaps/test-edl",
        "configmaps/test-edl-model",
        "services/test-edl",
    ]


class PlayedApi(Api):
    """Takes annotations of the size that Kubernetes takes; each first request fails."""

    def __init__(self, uid):
        super().__init__(None, "team")
        self.job = {"metadata": {"uid": uid}, "spec": {"suspend": True}}
        self.spec, self.annotations, self.deleted, self.asked = {}, {}, [], set()
        self.pods = {}

    def get(self, path, **query):
        if path not in self.asked:
            self.asked.add(path)
            raise ApiError(503, "away")
        return self.job if "/jobs/" in path else {"items": list(self.pods.values())}

    def patch(self, path, body):
        annotations = body.get("metadata", {}).get("annotations", {})
        if sum(map(len, annotations.values())) > 256 * 1024:
            raise ApiError(422, "metadata.annotations: Too long: may not be more than 262144 bytes")
        self.annotations |= annotations
        self.spec |= body.get("spec", {})
        return {}

    def delete(self, path, grace_seconds=None):
        if path not in self.asked:
            self.asked.add(path)
            raise ApiError(429, "later")
        self.pods.pop(path, None)
        self.deleted.append(path)


@pytest.mark.parametrize("size", [1_000, 300_000])
@pytest.mark.parametrize("code", [0, 1])
def test_a_failed_master_has_no_successor_however_large_its_picture(
    make_config, tmp_path, monkeypatch, size, code
):
    api = PlayedApi("uid-1")
    monkeypatch.setenv(names.OWNER_VARIABLE, "uid-1")
    monkeypatch.setattr(in_master.Api, "in_pod", lambda: api)
    (tmp_path / process.PICTURE_FILE).write_text("x" * size)
    tell_end(settle(make_config()), tmp_path, code)
    assert api.spec == ({"backoffLimit": 0} if code else {})
    assert (names.PICTURE_ANNOTATION in api.annotations) is (size == 1_000)
    assert api.path("secrets", "test-edl") in api.deleted


@pytest.mark.parametrize("code", [0, 1, process.STOPPED_EXIT_CODE])
def test_a_master_whose_job_was_deleted_leaves_the_next_job_of_its_name_alone(
    make_config, tmp_path, monkeypatch, code
):
    api = PlayedApi("uid-of-the-next")
    monkeypatch.setenv(names.OWNER_VARIABLE, "uid-1")
    monkeypatch.setattr(in_master.Api, "in_pod", lambda: api)
    for name in (process.PICTURE_FILE, process.BEFORE_FILE):
        (tmp_path / name).write_text("x")
    tell_end(settle(make_config()), tmp_path, code)
    assert (api.spec, api.annotations, api.deleted) == ({}, {}, [])


def test_a_master_that_had_not_begun_ends_the_pods_of_its_suspended_job(make_config):
    api = PlayedApi("uid-1")
    path = api.path("pods", "test-edl-ps-0-ab")
    about = {"name": "test-edl-ps-0-ab", "ownerReferences": [{"uid": "uid-1"}]}
    api.pods[path] = {"metadata": about, "spec": {}, "status": {}}
    config = make_config(queue_name="team", job_dir="/data/jobs/a")
    _end_replicas(api, settle(config), "uid-1")
    assert api.deleted == [path, api.path("jobs", "test-edl-minimum")]

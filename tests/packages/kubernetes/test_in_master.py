"""What a master leaves behind when its job has ended."""

from kubernetes import client

from elasticdl.packages.kubernetes.client import Api
from elasticdl.packages.kubernetes.in_master import leftovers
from elasticdl.packages.kubernetes.settle import settle
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

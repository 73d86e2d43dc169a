"""`--cluster_spec`: the user's own changes to pods and services."""

import pytest

from elasticdl.errors import ConfigError
from elasticdl.packages.kubernetes.cluster_spec import ClusterSpec
from elasticdl.packages.kubernetes.manifests import manifests

OF_THE_ORIGINAL = """
from kubernetes import client

class Cluster:
    def with_pod(self, pod):
        pod.spec.tolerations = [client.V1Toleration(key="pool", operator="Exists")]
        pod.metadata.labels["team"] = "ads"
        return pod

    def with_service(self, service):
        service.spec.type = "NodePort"
        return service

cluster = Cluster()
"""


def test_pods_and_services_are_as_the_users_file_wants_them(make_config, tmp_path):
    (tmp_path / "spec.py").write_text(OF_THE_ORIGINAL)
    _, settings, service, job = manifests(make_config(cluster_spec="spec.py"))
    template = job["spec"]["template"]
    assert template["spec"]["tolerations"] == [{"key": "pool", "operator": "Exists"}]
    assert template["metadata"]["labels"]["team"] == "ads"
    assert service["spec"]["type"] == "NodePort"
    assert settings["data"]["cluster_spec.py"] == OF_THE_ORIGINAL  # for the pods that follow
    assert (
        '"cluster_spec": "/etc/elasticdl/settings/cluster_spec.py"' in settings["data"]["job.json"]
    )


def test_functions_of_the_file_itself_do_as_well(tmp_path):
    path = tmp_path / "spec.py"
    path.write_text("def with_pod(pod):\n    pod.spec.node_name = 'a'\n    return pod\n")
    spec = ClusterSpec.read(path)
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "a", "image": "b"}]}}
    assert spec.pod(pod)["spec"]["nodeName"] == "a"
    assert spec.service({"kind": "Service"}) == {"kind": "Service"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("x = 1", "expected functions with_pod or with_service"),
        ("1 / 0", "ZeroDivisionError"),
        ("def with_pod(pod): pass", "expected with_pod to return the V1Pod .* found NoneType"),
        ("def with_pod(pod): return pod.spek", "with_pod: AttributeError"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path, text, complaint):
    path = tmp_path / "spec.py"
    path.write_text(text)
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "a", "image": "b"}]}}
    with pytest.raises(ConfigError, match=f"--cluster_spec={path}.*{complaint}"):
        ClusterSpec.read(path).pod(pod)

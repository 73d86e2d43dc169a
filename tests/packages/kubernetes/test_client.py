"""Which cluster is meant, by the file that kubectl uses."""

import json

import pytest

from elasticdl.errors import ConfigError
from elasticdl.packages.kubernetes.client import Api

pytest.importorskip("kubernetes")


def write_kubeconfig(path, namespace):
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "here",
                "clusters": [{"name": "here", "cluster": {"server": "http://127.0.0.1:1"}}],
                "users": [{"name": "me", "user": {}}],
                "contexts": [
                    {
                        "name": "here",
                        "context": {"cluster": "here", "user": "me", "namespace": namespace},
                    }
                ],
            }
        )
    )


@pytest.mark.parametrize("namespace", ["first", "second"])
def test_the_cluster_is_that_of_the_variable_as_it_is_now(namespace, tmp_path, monkeypatch):
    write_kubeconfig(tmp_path / "config", namespace)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    assert Api.connect().namespace == namespace


def test_without_a_cluster_the_error_says_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"no Kubernetes cluster is known.*KUBECONFIG"):
        Api.connect()

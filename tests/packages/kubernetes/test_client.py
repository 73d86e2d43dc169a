"""Which cluster is meant, by the file that kubectl uses."""

import json
from types import SimpleNamespace

import pytest

from elasticdl.errors import ConfigError
from elasticdl.packages.kubernetes import client as api_client
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


@pytest.mark.parametrize(
    ("namespace", "found"), [("first", "first"), ("second", "second"), ("", "default")]
)
def test_the_cluster_is_that_of_the_variable_as_it_is_now(namespace, found, tmp_path, monkeypatch):
    write_kubeconfig(tmp_path / "config", namespace)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    assert Api.connect().namespace == found


def test_in_a_pod_a_kubeconfig_wins_but_for_a_master(tmp_path, monkeypatch):
    monkeypatch.setattr("kubernetes.config.load_incluster_config", lambda **words: None)
    monkeypatch.setattr(api_client, "_namespace_of_pod", lambda: "of-the-pod")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    assert Api.connect().namespace == "of-the-pod"
    write_kubeconfig(tmp_path / "config", "of-the-file")
    assert Api.connect().namespace == "of-the-file"
    assert Api.in_pod().namespace == "of-the-pod"


def test_a_file_that_is_no_kubeconfig_is_told(tmp_path, monkeypatch):
    (tmp_path / "config").write_text("a: [")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with pytest.raises(ConfigError, match=r"(?s)no Kubernetes cluster is known: .*flow node"):
        Api.connect()


def test_without_a_cluster_the_error_says_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"no Kubernetes cluster is known.*KUBECONFIG"):
        Api.connect()


def test_the_page_of_a_proxy_is_cut_to_a_line():
    page = b"<html>\n<h1>502 Bad Gateway</h1>\n" + b"<hr>" * 1_000
    error = api_client._refusal(SimpleNamespace(data=page, status=502, headers={}))
    assert str(error).startswith("HTTP status 502: <html> <h1>502 Bad Gateway</h1> <hr>")
    assert len(str(error)) < 250
    assert error.is_transient

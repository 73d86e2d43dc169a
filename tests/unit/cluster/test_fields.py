import pytest

from tests.clusters.kubernetes.fields import NotFoundError, environment, expand, field, quantity
from tests.clusters.kubernetes.sandbox import image
from tests.clusters.kubernetes.status import unsupported

POD = {
    "metadata": {
        "name": "one",
        "namespace": "jobs",
        "uid": "u",
        "labels": {"job": "ctr", "a": "b"},
    },
    "spec": {"nodeName": "node-0", "serviceAccountName": "trainer"},
}


@pytest.mark.parametrize(
    ("text", "number"),
    [("500m", 0.5), ("2", 2), ("2Gi", 2**31), ("1e3", 1000), ("1.5k", 1500), (4, 4)],
)
def test_quantities_are_numbers(text, number):
    assert quantity(text) == pytest.approx(number)


def test_what_is_no_quantity_is_refused():
    with pytest.raises(ValueError, match="2 GB"):
        quantity("2 GB")


def test_references_to_variables_are_replaced_and_doubled_dollars_are_not():
    assert expand("$(A)/$(B) $$(A)", {"A": "a"}) == "a/$(B) $(A)"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "one"),
        ("metadata.labels['job']", "ctr"),
        ("metadata.labels", 'a="b"\njob="ctr"'),
        ("metadata.annotations['none']", ""),
        ("status.podIP", "10.1.2.3"),
        ("spec.nodeName", "node-0"),
    ],
)
def test_fields_of_the_pod(path, value):
    assert field(POD, path, "10.1.2.3") == value


def test_later_variables_win_and_may_refer_to_earlier_ones():
    container = {
        "envFrom": [{"secretRef": {"name": "keys"}}],
        "env": [{"name": "A", "value": "own"}, {"name": "B", "value": "$(A) $(C)"}],
    }

    found = environment(POD, container, "", lambda *_: {"A": b"1", "C": b"3"}, {"PATH": "/bin"})

    assert found == {"PATH": "/bin", "A": "own", "B": "own 3", "C": "3"}


def test_object_that_is_not_there_is_named_unless_it_is_optional():
    reference = {"name": "T", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}}
    with pytest.raises(NotFoundError, match='secret "keys" not found'):
        environment(POD, {"env": [reference]}, "", lambda *_: None, {})

    reference["valueFrom"]["secretKeyRef"]["optional"] = True

    assert environment(POD, {"env": [reference]}, "", lambda *_: None, {}) == {}


def test_image_of_no_registry_is_not_there():
    assert image("registry.invalid/model:1") is None
    assert image("registry.invalid:5000/model:1") is None
    assert image("python:3.11-slim") is not None


def test_what_a_pod_cannot_have_is_named():
    container = {"name": "main", "readinessProbe": {}, "ports": [{"hostPort": 80}]}

    words = unsupported({"containers": [container], "hostNetwork": True})

    assert all(word in words for word in ("readinessProbe", "hostPort", "host's network"))
    assert unsupported({"containers": [{"name": "main"}]}) == ""

"""The words with which users say what a process requests."""

from decimal import Decimal

import pytest

from elasticdl.settings.resources import parse_quantity, parse_resources


@pytest.mark.parametrize(
    ("text", "number"),
    [("2", "2"), ("250m", "0.25"), ("1Ki", "1024"), (".5", "0.5"), ("3k", "3000"), ("1Gi", 2**30)],
)
def test_a_quantity_is_a_number(text, number):
    assert parse_quantity(text) == Decimal(number)


def test_resources_have_the_names_of_kubernetes():
    text = "cpu=250m, memory=32Mi,disk=1Gi,gpu=1,amd.com/gpu=2"
    assert parse_resources(text) == {
        "cpu": "250m",
        "memory": "32Mi",
        "ephemeral-storage": "1Gi",
        "nvidia.com/gpu": "1",
        "amd.com/gpu": "2",
    }
    assert parse_resources("") == {}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("memory=1024", "memory: expected a unit, such as 1024Mi, found '1024'"),
        ("cpu=many", "expected a quantity such as 2, 250m or 4096Mi, found 'many'"),
        ("cpu", "expected a form like cpu=1,memory=4096Mi, found 'cpu'"),
        ("cpu=1,cpu=2", "expected each resource once, found cpu twice"),
        ("disk=1Gi,ephemeral-storage=1Gi", "found ephemeral-storage twice"),
        ("cores=1", "found 'cores'"),
        ("cpu=-1", "expected a quantity"),
    ],
)
def test_resources_that_cannot_be_are_refused(text, complaint):
    with pytest.raises(ValueError, match="expected") as caught:
        parse_resources(text)
    assert complaint in str(caught.value)

"""One cluster for all tests of a session, and a namespace for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.clusters.kubernetes.cluster import Cluster, NodeProcess, Shape, missing
from tests.clusters.kubernetes.namespace import Namespace

_numbers = itertools.count()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    lacks = missing()
    if lacks:
        pytest.skip(lacks)
    with Cluster([Shape(cpus=8, memory="16Gi")] * 3) as running:
        yield running


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace of the test; a parameter is its labels."""
    labels = getattr(request, "param", {})
    made = Namespace.make(cluster, f"test-{next(_numbers)}", labels)
    yield made
    made.remove()


@pytest.fixture
def node(cluster: Cluster) -> Iterator[NodeProcess]:
    """A node that a test may freeze or cut off; it is whole again afterwards."""
    broken = cluster.nodes[-1]
    yield broken
    broken.mend()
    broken.wait_until(ready=True)

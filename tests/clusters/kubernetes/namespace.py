"""A namespace of the cluster, and what tests and experiments do in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .api import MERGE, ApiError, Object
from .cluster import Cluster

HELD = "test.elasticdl.org/held"
"""A finalizer: the object of a pod stays when the pod is gone."""


@dataclass(frozen=True)
class Namespace:
    """A namespace that exists."""

    cluster: Cluster
    name: str

    @classmethod
    def make(cls, cluster: Cluster, name: str, labels: dict[str, str]) -> Namespace:
        """Make it; returns when pods can be created in it."""
        cluster.api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        namespace = cls(cluster, name)
        cluster.wait_for(namespace.path("serviceaccounts", "default"), bool)
        return namespace

    def path(self, *parts: str, group: str = "api/v1") -> str:
        """Return the path of a collection or an object, such as `pods`, `NAME`, `log`."""
        return "/".join([f"/{group}/namespaces/{self.name}", *parts])

    def create(self, collection: str, body: Object, group: str = "api/v1") -> Object:
        """Create an object."""
        return self.cluster.api.create(self.path(collection, group=group), body)

    def run(self, name: str, *command: str, **spec: Any) -> Object:
        """Create a pod that runs a command once; for `spec` see `pod`."""
        return self.create("pods", pod(name, *command, **spec))

    def wait(self, name: str, *phases: str, seconds: float = 200) -> Object:
        """Return a pod as soon as it is in one of the phases."""
        return self.cluster.wait_for(
            self.path("pods", name),
            lambda found: found.get("status", {}).get("phase") in phases,
            seconds,
        )

    def wait_gone(self, name: str, seconds: float = 200) -> None:
        """Return as soon as there is no such pod."""
        self.cluster.wait_for(self.path("pods", name), lambda found: not found, seconds)

    def log(self, name: str, **query: str) -> str:
        """Return the log of a pod's only container."""
        return self.cluster.api.text(self.path("pods", name, "log"), **query)

    def delete(self, name: str, grace_seconds: int | None = None) -> None:
        """Delete a pod; returns at once."""
        self.cluster.api.delete(self.path("pods", name), grace_seconds)

    def release(self, name: str) -> None:
        """Let go of a pod that was `HELD`."""
        patch = {"metadata": {"finalizers": None}}
        self.cluster.api.patch(self.path("pods", name), patch, MERGE)

    def remove(self) -> None:
        """Remove it with all pods, at once."""
        for each in self.cluster.api.get(self.path("pods"))["items"]:
            name = each["metadata"]["name"]
            try:
                if each["metadata"].get("finalizers"):
                    self.release(name)
                self.delete(name, grace_seconds=0)
            except ApiError as error:
                if error.code != 404:
                    raise
        self.cluster.api.delete(f"/api/v1/namespaces/{self.name}")


def pod(name: str, *command: str, **spec: Any) -> Object:
    """Return a pod that runs a command once.

    Args:
        name: The pod's.
        command: The command line.
        spec: Further fields of its spec; `container` and `metadata` add to those two.
    """
    container = {"name": "main", "image": "elasticdl:test", "command": list(command)}
    container |= spec.pop("container", {})
    metadata = {"name": name} | spec.pop("metadata", {})
    return {
        "metadata": metadata,
        "spec": {"restartPolicy": "Never", "containers": [container], **spec},
    }

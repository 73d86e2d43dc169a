"""`--cluster_spec`: the user's own changes to pods and services."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from elasticdl.errors import ConfigError
from elasticdl.packages.kubernetes.client import library
from elasticdl.packages.kubernetes.pods import Manifest

Change = Callable[[Any], Any]


class ClusterSpec:
    """The functions of the user's file for `--cluster_spec`.

    Each function takes an object of the Python client, such as `kubernetes.client.V1Pod`, changes
    it or makes another, and returns it. The functions are in the file, or in an object `cluster` of
    the file.
    """

    def __init__(self, path: Path | None, with_pod: Change | None, with_service: Change | None):
        self._path = path
        self._with_pod = with_pod
        self._with_service = with_service

    @classmethod
    def read(cls, path: Path | None) -> ClusterSpec:
        """Run the file; without a file nothing is changed.

        Raises:
            ConfigError: The file cannot be run, or has no such function.
        """
        if path is None:
            return cls(None, None, None)
        try:
            module = runpy.run_path(str(path))
        except Exception as error:
            raise ConfigError(f"--cluster_spec={path}: {type(error).__name__}: {error}") from error
        home = module.get("cluster", SimpleNamespace(**module))
        changes = [getattr(home, name, None) for name in ("with_pod", "with_service")]
        if not any(callable(change) for change in changes):
            raise ConfigError(
                f"--cluster_spec={path}: expected functions with_pod or with_service, or an object "
                "cluster that has them, found none"
            )
        return cls(path, *changes)

    def pod(self, pod: Manifest) -> Manifest:
        """Return a pod after the user's change."""
        return self._changed(self._with_pod, pod, "V1Pod", "with_pod")

    def service(self, service: Manifest) -> Manifest:
        """Return a service after the user's change."""
        return self._changed(self._with_service, service, "V1Service", "with_service")

    def _changed(self, change: Change | None, manifest: Manifest, kind: str, name: str) -> Manifest:
        if change is None:
            return manifest
        api = library().client.ApiClient()
        given = api.deserialize(json.dumps(manifest), kind, "application/json")
        try:
            made = change(given)
        except Exception as error:
            raise ConfigError(
                f"--cluster_spec={self._path}: {name}: {type(error).__name__}: {error}"
            ) from error
        if type(made) is not type(given):
            raise ConfigError(
                f"--cluster_spec={self._path}: expected {name} to return the {kind} that it was "
                f"given, found {type(made).__name__}"
            )
        changed: Manifest = api.sanitize_for_serialization(made)
        return changed

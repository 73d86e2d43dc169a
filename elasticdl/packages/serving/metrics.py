"""The metrics that a server gives Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from elasticdl.observe import prometheus
from elasticdl.packages.serving.versions import Version

_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class ServerMetrics:
    """The metrics of one server."""

    def __init__(self, version: Callable[[], Version | None]) -> None:
        """Make the metrics; `version` returns the version that is served."""
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "elasticdl_serve_requests", "Requests, by status.", ["status"], registry=self.registry
        )
        self.records = Counter(
            "elasticdl_serve_records", "Records that were scored.", registry=self.registry
        )
        self.seconds = Histogram(
            "elasticdl_serve_request_seconds",
            "From the end of a request to its answer: waiting and scoring.",
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.loaded = Counter(
            "elasticdl_serve_versions_loaded", "Versions loaded.", registry=self.registry
        )
        self.refused = Counter(
            "elasticdl_serve_versions_refused",
            "Times that the version to be served was missing or damaged.",
            registry=self.registry,
        )
        self.registry.register(_OfVersion(version))
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics, and their content type."""
        return prometheus.exposition(self.registry, accept)


class _OfVersion(Collector):
    def __init__(self, version: Callable[[], Version | None]) -> None:
        self._version = version

    def collect(self) -> Iterable[Metric]:
        version = self._version()
        if version is None:
            return
        manifest, tables = version.manifest, version.tables
        for name, text, value in (
            ("version", "Number of the version that is served.", manifest.number),
            ("model_version", "Updates that it has.", manifest.model_version),
            ("version_age_seconds", "Since it was exported.", time.time() - manifest.written),
            ("table_bytes", "Memory of its rows.", tables.num_bytes),
            ("table_layers", "Layers that a look-up goes through at most.", tables.num_layers),
        ):
            yield GaugeMetricFamily(f"elasticdl_serve_{name}", text, value=value)

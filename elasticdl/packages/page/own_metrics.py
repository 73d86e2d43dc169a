"""`/metrics` of a process: a worker or a ps replica serves its own metrics for Prometheus.

In a pod the master serves the metrics of the job in the same way, since its page is at loopback.

They are behind the token of the job's page.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from elasticdl.config import JobConfig
from elasticdl.errors import ConfigError
from elasticdl.job import Progress, Role, Usage
from elasticdl.observe import prometheus
from elasticdl.packages.page.token_server import Certificate, TokenServer, page_token
from elasticdl.runtime.addresses import LOOPBACK, join

FOLDER = "metrics"
"""The folder in a job's folder with the addresses of its metrics, for `file_sd_configs` of
Prometheus.
"""

_EVERYWHERE = "0.0.0.0"
_MOST_NAMES = 100

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OwnMetrics(Collector):
    """The metrics of one process; each part is read when Prometheus asks.

    progress: Returns the progress of a worker.
    stats: Returns the statistics of a ps replica, as `Store.stats` does.
    """

    usage: Callable[[], Usage]
    progress: Callable[[], Progress] | None = None
    stats: Callable[[], str] | None = None
    # The last values, by label.
    _seconds: dict[str, float] = field(default_factory=dict, init=False, compare=False)

    def collect(self) -> Iterable[Metric]:
        """Yield every metric of the process, but those of `ProcessCollector`."""
        usage = self.usage()
        for label, seconds in usage.label_seconds.items():
            # A heartbeat of a ps replica moves seconds from one label to another. For Prometheus a
            # counter that falls has begun anew, and all of it would count once more.
            self._seconds[label] = max(seconds, self._seconds.get(label, 0.0))
        yield from _of_usage(replace(usage, label_seconds=dict(self._seconds)))
        if self.progress is not None:
            yield from _of_progress(self.progress())
        if self.stats is not None:
            yield from _of_stats(json.loads(self.stats()))


@dataclass(frozen=True)
class JobMetrics(Collector):
    """The metrics of a job, from its master, read when Prometheus asks."""

    job_metrics: Callable[[], Iterable[Metric]]

    def collect(self) -> Iterable[Metric]:
        """Yield every metric of the job."""
        return self.job_metrics()


def _of_usage(usage: Usage) -> Iterator[Metric]:
    seconds = CounterMetricFamily(
        "elasticdl_own_seconds", "Time of this process by what it did.", labels=["label"]
    )
    for label, value in usage.label_seconds.items():
        seconds.add_metric([label], value)
    yield seconds
    for way, count in (("sent", usage.bytes_sent), ("received", usage.bytes_received)):
        name = f"elasticdl_own_tensor_{way}_bytes"
        yield CounterMetricFamily(name, f"Bytes {way} on the tensor plane.", value=count)


def _of_progress(progress: Progress) -> Iterator[Metric]:
    trained = ("elasticdl_own_records_trained", "Records trained by this worker.")
    yield CounterMetricFamily(*trained, value=progress.num_records)
    steps = ("elasticdl_own_minibatches_trained", "Minibatches trained by this worker.")
    yield CounterMetricFamily(*steps, value=progress.num_minibatches)
    stages = CounterMetricFamily(
        "elasticdl_own_stage_seconds", "Time of this worker in stages of a step.", labels=["stage"]
    )
    for stage, value in islice(progress.stage_seconds.items(), _MOST_NAMES):
        stages.add_metric([stage], value)
    yield stages


def _of_stats(stats: Mapping[str, Any]) -> Iterator[Metric]:
    version = ("elasticdl_own_model_version", "Updates that this ps replica has applied.")
    yield GaugeMetricFamily(*version, value=stats["version"])
    families: Sequence[tuple[type[Metric], str, str, str]] = (
        (GaugeMetricFamily, "rows", "elasticdl_own_table_rows", "Rows here."),
        (GaugeMetricFamily, "bytes", "elasticdl_own_table_bytes", "Memory of them."),
        (CounterMetricFamily, "pulled", "elasticdl_own_table_keys_pulled", "Keys asked for."),
        (CounterMetricFamily, "found", "elasticdl_own_table_keys_found", "With a row already."),
        (GaugeMetricFamily, "rows_on_disk", "elasticdl_own_table_rows_on_disk", "Not in memory."),
        (GaugeMetricFamily, "disk_bytes", "elasticdl_own_table_disk_bytes", "File of them."),
        (CounterMetricFamily, "disk_reads", "elasticdl_own_table_disk_reads", "Rows read there."),
        (CounterMetricFamily, "disk_writes", "elasticdl_own_table_disk_writes", "Rows written."),
    )
    for family, key, name, words in families:
        metric: Any = family(name, words, labels=["table"])  # type: ignore[call-arg]
        for table in islice(stats["tables"], _MOST_NAMES):
            metric.add_metric([table["name"]], table[key])
        yield metric


@contextlib.contextmanager
def serving_at(
    metrics: Collector, token: str, bind: str, port: int, certificate: Certificate | None = None
) -> Iterator[int]:
    """Serve the metrics of this process within the block, which is given the port.

    Args:
        metrics: The metrics of this process.
        token: The bearer token that each request must have.
        bind: The address to listen at.
        port: The port; 0: any free one.
        certificate: The certificate for TLS; None: clear text.

    Raises:
        ConfigError: The port is taken.
    """
    registry = CollectorRegistry()
    registry.register(metrics)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)

    async def give(request: Any) -> Any:
        from aiohttp import web

        accept = request.headers.get("Accept", "")
        # A collector may wait for another thread.
        body, content_type = await asyncio.to_thread(prometheus.exposition, registry, accept)
        return web.Response(body=body, headers={"Content-Type": content_type})

    server = TokenServer(
        "--metrics_port",
        token,
        lambda app: app.router.add_get("/metrics", give),
        certificate=certificate,
    )
    found = server.start(bind, port)
    try:
        yield found
    finally:
        server.close()


@contextlib.contextmanager
def serving(
    config: JobConfig,
    job_dir: Path,
    job_token: bytes,
    role: Role,
    index: int,
    metrics: Collector,
    certificate: Certificate | None,
) -> Iterator[None]:
    """Serve the metrics of this process within the block, if the settings want it.

    On one machine they are served at loopback, and a file of the job has the address. In a pod they
    are served at all addresses, by TLS if the job uses it, and the pod's annotations have the
    address. If the port is taken, this is logged and the process goes on without metrics.
    """
    port = config.seeing.metrics_port
    with contextlib.ExitStack() as stack:
        if port is not None:
            in_pod = config.launcher.metrics == "own"
            bind = _EVERYWHERE if in_pod else LOOPBACK
            token, proof = page_token(job_token), certificate if in_pod else None
            try:
                served = stack.enter_context(serving_at(metrics, token, bind, port, proof))
                if not in_pod:
                    address, name = join(bind, served), config.cluster.job_name
                    stack.enter_context(_announced(job_dir, name, role, index, address))
            except (ConfigError, OSError) as error:
                _log.warning("the metrics of this process are not served: %s", error)
        yield


@contextlib.contextmanager
def _announced(
    job_dir: Path, job_name: str, role: Role, index: int, address: str
) -> Iterator[None]:
    """Keep the address of this process's metrics in a file of the job, within the block.

    The next process that starts removes the files of processes of this machine that were killed.
    """
    folder = job_dir / FOLDER
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.json"):
        if not _is_there(path):
            path.unlink(missing_ok=True)
    path = folder / f"{role}-{index}.json"
    labels = {"job_name": job_name, "role": str(role), "index": str(index), "pid": str(os.getpid())}
    # Prometheus may read the folder at any time, so it must never see half a file.
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps([{"targets": [address], "labels": labels}]))
    partial.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _is_there(path: Path) -> bool:
    try:
        # Signal 0 does nothing; it only shows whether the process exists.
        os.kill(int(json.loads(path.read_text())[0]["labels"]["pid"]), 0)
    except (ProcessLookupError, FileNotFoundError):
        return False
    except (OSError, ValueError, LookupError, TypeError):
        return True  # it cannot be told
    return True

"""`/metrics` of a process: a worker or a ps replica serves its own metrics for Prometheus.

In a pod the master serves the metrics of the job in the same way, since its page is at loopback.

A thread serves the metrics behind the token of the job's page, and changes nothing. A request must
prove that it knows the token before anything else of it is read.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from elasticdl.config import JobConfig
from elasticdl.errors import ConfigError
from elasticdl.job import Progress, Role, Usage
from elasticdl.observe.dashboard import is_same, page_token
from elasticdl.observe.door import MOST_UNPROVEN, PATIENCE_SECONDS
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

    def collect(self) -> Iterable[Metric]:
        """Yield every metric of the process, but those of `ProcessCollector`."""
        yield from _of_usage(self.usage())
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
    for family, field, name, words in families:
        metric: Any = family(name, words, labels=["table"])  # type: ignore[call-arg]
        for table in islice(stats["tables"], _MOST_NAMES):
            metric.add_metric([table["name"]], table[field])
        yield metric


class MetricsServer:
    """Serves the metrics of this process; used as a context."""

    def __init__(
        self,
        metrics: Collector,
        token: str,
        bind: str,
        port: int,
        certificate: tuple[Path, Path] | None = None,
    ) -> None:
        """Listen.

        Args:
            metrics: The metrics of this process.
            token: The bearer token that each request must have.
            bind: The address to listen at.
            port: The port; 0: any free one.
            certificate: Files with the certificate and its key, for TLS; they may be renewed.

        Raises:
            ConfigError: The port is taken.
        """
        registry = CollectorRegistry()
        registry.register(metrics)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)

        class Handler(_Handler):
            pass

        Handler.registry, Handler.token = registry, token
        try:
            self._server = _Server((bind, port), Handler)
        except OSError as error:
            raise ConfigError(
                f"--metrics_port={port}: cannot listen at {bind}:{port}: {error.strerror}; choose "
                "another one, or 0 for any that is free"
            ) from error
        self._server.certificate = certificate
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    """Answers each connection once, so a connection proves nothing while it is open."""

    daemon_threads = True
    request_queue_size = 128
    certificate: tuple[Path, Path] | None = None

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        # In the order of their arrival, with the socket that reads each now, and the time when it
        # must go. The thread of a connection takes it out.
        self._open: dict[socket.socket, tuple[socket.socket, float]] = {}
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection; if too many wait, the oldest is closed."""
        with self._lock:
            while len(self._open) >= MOST_UNPROVEN:
                self._end(next(iter(self._open)))
            self._open[request] = (request, time.monotonic() + PATIENCE_SECONDS)
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Close connections that take too long, even if they still send; called twice a second."""
        with self._lock:
            now = time.monotonic()
            for request in [one for one, (_, until) in self._open.items() if until <= now]:
                self._end(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that was answered, or that cannot be."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def _end(self, request: socket.socket) -> None:
        reading, _ = self._open.pop(request)
        with contextlib.suppress(OSError):  # it has gone
            socket.socket.shutdown(reading, socket.SHUT_RDWR)  # without a word of TLS

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answer one connection, in a thread of its own."""
        # A client that sends nothing must not hold its thread for ever.
        request.settimeout(PATIENCE_SECONDS)
        if self.certificate is None:
            super().finish_request(request, client_address)
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # anew: it may have been renewed
        context.load_cert_chain(*self.certificate)
        # From here on the secured socket owns the connection, so it is the one to close.
        plain = request
        with context.wrap_socket(
            request, server_side=True, do_handshake_on_connect=False
        ) as secured:
            with self._lock:
                if plain not in self._open:
                    return
                self._open[plain] = (secured, self._open[plain][1])
            secured.do_handshake()
            super().finish_request(secured, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a peer that does not speak HTTP, or that is gone."""
        _log.debug("a request for metrics failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    registry: CollectorRegistry
    token: str
    protocol_version = "HTTP/1.1"
    timeout = PATIENCE_SECONDS

    def do_GET(self) -> None:
        scheme, _, sent = self.headers.get("Authorization", "").partition(" ")
        is_known = scheme.lower() == "bearer" and is_same(sent.strip(), self.token)
        if not is_known:
            self._answer(401, b"401: expected the page's token as the bearer token\n")
        elif self.path.partition("?")[0] != "/metrics":
            self._answer(404, b"404: there is /metrics alone\n")
        else:
            encode, content_type = choose_encoder(self.headers.get("Accept", ""))
            self._answer(200, encode(self.registry), content_type)

    def _answer(self, status: int, body: bytes, content_type: str = "text/plain") -> None:
        self.send_response(status)
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, *_words: Any) -> None:
        """Do not log requests."""


@contextlib.contextmanager
def serving(
    config: JobConfig,
    job_dir: Path,
    job_token: bytes,
    role: Role,
    index: int,
    metrics: Collector,
    certificate: tuple[Path, Path] | None,
) -> Iterator[None]:
    """Serve the metrics of this process within the block, if the settings want it.

    On one machine they are served at loopback, and a file of the job has the address. In a pod they
    are served at all addresses, by TLS if the job uses it, and the pod's annotations have the
    address. If the port is taken, this is logged and the process goes on without metrics.
    """
    port = config.seeing.metrics_port
    with contextlib.ExitStack() as stack:
        if port is not None:
            in_pod = config.is_on_kubernetes
            bind = _EVERYWHERE if in_pod else LOOPBACK
            token, proof = page_token(job_token), certificate if in_pod else None
            try:
                server = stack.enter_context(MetricsServer(metrics, token, bind, port, proof))
                if not in_pod:
                    address, name = join(bind, server.port), config.cluster.job_name
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

"""A job's metrics and spans for OpenTelemetry, by its exporter over HTTP.

The metrics are those of Prometheus, with the same names; `job_spans` has the spans. Headers,
certificates and time limits are read from OpenTelemetry's own variables, such as
OTEL_EXPORTER_OTLP_HEADERS.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from elasticdl.config import JobConfig
from elasticdl.distribution import install, is_missing
from elasticdl.errors import ConfigError, ElasticdlError
from elasticdl.job import Event, JobStatus
from elasticdl.observe.history.fold import History
from elasticdl.observe.job_spans import JobSpan, JobSpans
from elasticdl.observe.tracker import Outbox
from elasticdl.packages.trackers.settings import TrackersSection
from elasticdl.runtime.log_lines import Sparingly

if TYPE_CHECKING:  # they come with an extra
    from opentelemetry.sdk.metrics import export
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from prometheus_client.core import Metric

# The metrics are made as families of Prometheus.
_PACKAGES = ("prometheus_client", "opentelemetry.exporter.otlp.proto.http")
_SECONDS_BETWEEN = 10.0
_OVERLAP_SECONDS = 30.0  # before a master began; what ended then its predecessor may have kept
_SCOPE = "elasticdl"

log = logging.getLogger(__name__)


class OtlpExport:
    """Sends metrics of a job each ten seconds, and its spans when they have ended.

    A thread adds up events and sends, so the caller never waits for the collector.
    """

    flag = "--otlp_endpoint"

    def __init__(self, config: JobConfig, job: str, past: Callable[[], Iterable[Event]]) -> None:
        """Begin to send.

        Args:
            config: The settings of the job.
            job: The job's identity, which never changes.
            past: Returns the events before now, as far as they are known; called by the thread.

        Raises:
            ConfigError: The packages for it are not installed.
        """
        missing = [name for name in _PACKAGES if is_missing(name)]
        if missing:
            raise ConfigError(f"--otlp_endpoint needs {', '.join(missing)}: {install('otlp')}")
        self._endpoint = config.of(TrackersSection).otlp_endpoint
        self._about = {
            "service.name": os.environ.get("OTEL_SERVICE_NAME") or "elasticdl",
            "service.instance.id": job,
            "elasticdl.job.name": config.cluster.job_name,
        }
        self._exporter: _Exporter | None = None
        self._history, self._spans = History(), JobSpans(job)
        self._past, self._since = past, time.time()
        self._has_past = False
        self._unsent: list[JobSpan] = []
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._outbox: Outbox[bool] = Outbox(
            self.flag, self._send, seconds_between=_SECONDS_BETWEEN, is_sent_again=True
        )

    def put(self, event: Event) -> None:
        """Add an event."""
        self._events.put(event)

    def take(self, status: JobStatus, learning_rate: float | None, is_last: bool = False) -> None:
        """Send the metrics in their present state; now and then, and always the last ones."""
        self._outbox.put(True, may_be_left_out=not is_last)

    def close(self, seconds: float) -> None:
        """Send the rest; if the collector does not answer, the rest is dropped."""
        self._outbox.close(seconds)

    def _send(self, _: bool) -> None:
        from elasticdl.observe.metrics import JobCollector

        self._exporter = self._exporter or _Exporter(self._endpoint, self._about)
        self._take_in()
        began = self._history.bins.began or self._since
        self._exporter.send_metrics(JobCollector(self._history).collect(), began, time.time())
        if self._unsent:
            self._exporter.send_spans(self._spans.trace_id, self._unsent)
            # Only now: spans that could not be sent are sent with the next ones.
            self._unsent = []

    def _take_in(self) -> None:
        """Add the new events to the history and the spans."""
        if not self._has_past:
            self._has_past = True
            try:
                for event in self._past():
                    if event["time"] < self._since:
                        self._history.add(event)
                        self._spans.add(event)
            except ElasticdlError as error:
                log.warning("%s: what was before this master is not sent: %s", self.flag, error)
            self._unsent += self._spans.take_ended(self._since - _OVERLAP_SECONDS)
        while not self._events.empty():
            event = self._events.get()
            self._history.add(event)
            self._spans.add(event)
        self._unsent += self._spans.take_ended()


class _Exporter:
    """OpenTelemetry's exporters; made by the thread that sends, for they take a while to load."""

    def __init__(self, endpoint: str, about: Mapping[str, str]) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource

        self._metrics = OTLPMetricExporter(endpoint=f"{endpoint.rstrip('/')}/v1/metrics")
        self._traces = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
        for exporter in (OTLPMetricExporter, OTLPSpanExporter):  # they tell of each try
            logging.getLogger(exporter.__module__).addFilter(Sparingly(lines=4, seconds=600.0))
        self._resource = Resource.create(dict(about))

    def send_metrics(self, families: Iterable[Metric], began: float, now: float) -> None:
        _check(self._metrics.export(metrics_of(families, self._resource, began, now)).name)

    def send_spans(self, trace: int, spans: Iterable[JobSpan]) -> None:
        readable = [_readable(span, trace, self._resource) for span in spans]
        _check(self._traces.export(readable).name)


def _check(result: str) -> None:
    if result != "SUCCESS":
        raise OSError("the collector did not take what was sent")


def metrics_of(
    families: Iterable[Metric], resource: Resource, began: float, now: float
) -> export.MetricsData:
    """Return families of Prometheus in the form of OpenTelemetry, with the same names.

    Args:
        families: Counters become sums, histograms stay, and all others become gauges.
        resource: The owner of the metrics.
        began: The time from which counters count, in seconds since 1970.
        now: The time when the metrics were read.
    """
    from opentelemetry.sdk.metrics import export
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    times = int(began * 1e9), int(now * 1e9)
    found = [
        export.Metric(family.name, family.documentation, family.unit, _data(family, times))
        for family in families
        if any(math.isfinite(sample.value) for sample in family.samples)
    ]
    scope = export.ScopeMetrics(InstrumentationScope(_SCOPE), found, "")
    return export.MetricsData([export.ResourceMetrics(resource, [scope], "")])


def _data(family: Metric, times: tuple[int, int]) -> export.Gauge | export.Sum | export.Histogram:
    from opentelemetry.sdk.metrics import export

    began, now = times
    if family.type == "histogram":
        return _histogram(family, times)
    points = [
        export.NumberDataPoint(sample.labels, began, now, float(sample.value))
        for sample in family.samples
        if math.isfinite(sample.value) and not sample.name.endswith("_created")
    ]
    if family.type == "counter":
        return export.Sum(points, export.AggregationTemporality.CUMULATIVE, is_monotonic=True)
    return export.Gauge(points)


def _histogram(family: Metric, times: tuple[int, int]) -> export.Histogram:
    """Return a histogram without labels; the counts of its buckets are no longer sums."""
    from opentelemetry.sdk.metrics import export

    values = {sample.name: sample.value for sample in family.samples}
    upto = [
        (float(sample.labels["le"]), int(sample.value))
        for sample in family.samples
        if sample.name.endswith("_bucket")
    ]
    # Buckets of Prometheus count all values up to a bound; OpenTelemetry counts each bucket alone.
    sums = [0, *(count for _, count in upto)]
    point = export.HistogramDataPoint(
        attributes={},
        start_time_unix_nano=times[0],
        time_unix_nano=times[1],
        count=int(values.get(f"{family.name}_count", sums[-1])),
        sum=values.get(f"{family.name}_sum", 0.0),
        bucket_counts=[after - before for before, after in pairwise(sums)],
        explicit_bounds=[bound for bound, _ in upto if math.isfinite(bound)],
        min=None,
        max=None,
    )
    return export.Histogram([point], export.AggregationTemporality.CUMULATIVE)


def _readable(span: JobSpan, trace: int, resource: Resource) -> ReadableSpan:
    from opentelemetry import trace as api
    from opentelemetry.sdk.trace import Event as SpanEvent
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    def context(span_id: int) -> api.SpanContext:
        flags = api.TraceFlags(api.TraceFlags.SAMPLED)
        return api.SpanContext(trace, span_id, is_remote=False, trace_flags=flags)

    attributes: dict[str, Any] = {name: value for name, value in span.attributes.items() if value}
    return ReadableSpan(
        name=span.name,
        context=context(span.id),
        parent=context(span.parent) if span.parent else None,
        resource=resource,
        attributes=attributes,
        events=[SpanEvent(name, {"text": text}, int(at * 1e9)) for at, name, text in span.facts],
        status=api.Status(api.StatusCode.ERROR, span.error)
        if span.error
        else api.Status(api.StatusCode.OK),
        start_time=int(span.began * 1e9),
        end_time=int(span.ended * 1e9),
        instrumentation_scope=InstrumentationScope(_SCOPE),
    )

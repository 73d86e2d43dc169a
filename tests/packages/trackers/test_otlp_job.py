"""A job as metrics and a trace of OpenTelemetry, also over a master that is killed."""

import gzip
import http.server
import threading

import pytest

from tests.elastic.counting_job import CountingJob

pytest.importorskip("opentelemetry.exporter.otlp", reason="this needs elasticdl-train[otlp]")

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

REQUESTS = {"/v1/metrics": ExportMetricsServiceRequest, "/v1/traces": ExportTraceServiceRequest}


class Collector(http.server.ThreadingHTTPServer):
    """Keeps the metrics and spans that it is sent, and who sent them."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.jobs, self.keys = set(), set()
        self.metrics, self.spans = [], []

    def keep(self, message, key):
        self.keys.add(key)
        if isinstance(message, ExportMetricsServiceRequest):
            (part,) = message.resource_metrics
            self.metrics.append({each.name: each for each in part.scope_metrics[0].metrics})
        else:
            (part,) = message.resource_spans
            self.spans.extend(part.scope_spans[0].spans)
        names = {each.key: each.value.string_value for each in part.resource.attributes}
        self.jobs.add(names["service.instance.id"])

    def has_trained(self):
        return any("elasticdl_training_loss" in metrics for metrics in self.metrics)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.keep(REQUESTS[self.path].FromString(body), self.headers["x-key"])
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *words):
        pass


@pytest.fixture
def collector():
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_job_is_one_trace_over_a_master_that_is_killed(tmp_path, monkeypatch, collector):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=sesame")
    flags = {"otlp_endpoint": f"http://127.0.0.1:{collector.server_port}"}
    flags |= {"model_def": "counting.staged.forward", "model_params": "seconds=0.01"}
    with CountingJob(tmp_path, seed=7, **flags) as job:
        job.until_trained(1_000, collector.has_trained)
        job.send("master")
        job.until_trained(3_000)
        job.send("worker")
        summary = job.finish()
    job.check_counts(summary)
    assert collector.keys == {"sesame"}
    assert len(collector.jobs) == 1
    spans = collector.spans
    assert len({span.trace_id for span in spans}) == 1
    (root,) = (span for span in spans if not span.parent_span_id)
    assert root.name == "job"
    assert {"resumed", "lost"} <= {event.name for event in root.events}
    names = {span.name for span in spans}
    assert {"phase training", "phase exporting", "worker 0", "worker 1"} <= names
    (lost,) = (event["process"] for event in job.events("lost"))
    assert [span.name for span in spans if span.status.code == span.status.STATUS_CODE_ERROR] == [
        lost
    ]
    assert all(root.start_time_unix_nano <= s.start_time_unix_nano for s in spans)
    last = collector.metrics[-1]
    assert (
        last["elasticdl_model_version"].gauge.data_points[0].as_double == (summary["model_version"])
    )
    trained = last["elasticdl_records_trained"].sum
    assert trained.is_monotonic
    histogram = last["elasticdl_update_staleness"].histogram.data_points[0]
    assert histogram.count == sum(histogram.bucket_counts)
    assert len(histogram.bucket_counts) == len(histogram.explicit_bounds) + 1

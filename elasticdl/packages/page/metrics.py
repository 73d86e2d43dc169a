"""A job's history as metrics for Prometheus, with names and units by its conventions.

Every label has a limited number of values: roles, labels of seconds, stages, kinds of events, and
the first hundred tables and metrics of the model. Processes are added up by role, since new ones
come all the time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    StateSetMetricFamily,
)
from prometheus_client.registry import Collector

from elasticdl.job import Label, Role
from elasticdl.observe import prometheus
from elasticdl.packages.page.history.fold import LOSS_RECORDS, RECORDS, History
from elasticdl.packages.page.history.lanes import UNHEARD, Lane

_MOST_NAMES = 100
_STATES = ("starting", "pending", "alive", "leaving", "left", "lost")
_LABELS = (*map(str, Label), UNHEARD)
_PHASES = (
    "pending",
    "training",
    "predicting",
    "evaluating",
    "exporting",
    "checkpointing",
    "auditing",
    "finished",
    "failed",
)


class JobCollector(Collector):
    """Gives Prometheus the present state of a history."""

    def __init__(self, history: History) -> None:
        """Collect from a history."""
        self._history = history

    def collect(self) -> Iterable[Metric]:
        """Yield every metric of the job."""
        history = self._history
        yield from _of_job(history)
        yield from _of_training(history, history.picture)
        yield from _of_processes(list(history.lanes), history.num_lost)
        yield from _of_tables(history)


def exposition(history: History, accept: str) -> tuple[bytes, str]:
    """Return all metrics of a job and of this process, and their content type.

    Args:
        history: The history of the job.
        accept: The header that says whether the client reads OpenMetrics.
    """
    registry = CollectorRegistry()
    registry.register(JobCollector(history))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return prometheus.exposition(registry, accept)


def _of_job(history: History) -> Iterator[Metric]:
    picture = history.picture
    info = InfoMetricFamily("elasticdl_job", "The job.")
    info.add_metric([], {"job_name": str(picture.get("job_name", ""))})
    yield info
    phase = StateSetMetricFamily("elasticdl_job_phase", "What the job is at.")
    now = "training" if history.phase == "running" else history.phase
    phase.add_metric([], {name: name == now for name in _PHASES})
    yield phase
    seconds = history.latest - history.bins.began if history.bins.began is not None else 0.0
    yield _gauge("elasticdl_job_age_seconds", "Time since the first event.", seconds)
    yield _gauge("elasticdl_job_last_event_timestamp_seconds", "The last event.", history.latest)
    yield _gauge(
        "elasticdl_goodput_ratio",
        "Share of the workers' seconds spent on training that counted, since the job began.",
        history.goodput().share,
    )
    events = CounterMetricFamily("elasticdl_events", "Facts of the event log.", labels=["event"])
    for name, count in islice(sorted(history.counts.items()), _MOST_NAMES):
        events.add_metric([name], count)
    yield events
    made = history.checkpoints
    yield _counter(
        "elasticdl_checkpoints", "Checkpoints that were written.", history.counts["checkpoint"]
    )
    if made:
        last = made[-1]["time"]
        yield _gauge("elasticdl_checkpoint_timestamp_seconds", "The newest checkpoint.", last)


def _of_training(history: History, picture: Mapping[str, Any]) -> Iterator[Metric]:
    # Cells have parts of records. The rounding error of their sum changes when cells are added
    # together, and a counter that falls, however little, has begun anew for Prometheus.
    sums = history.progress.amounts.sum(axis=0).round()
    yield _counter(
        "elasticdl_records_trained", "Records trained, also those again.", float(sums[RECORDS])
    )
    yield _counter(
        "elasticdl_records_with_loss",
        "Records of which a loss is known.",
        float(sums[LOSS_RECORDS]),
    )
    if not picture:
        return
    yield _gauge(
        "elasticdl_records_done", "Records done, over all epochs.", picture["records_done"]
    )
    yield _gauge("elasticdl_records_expected", "Records of all epochs.", picture["records_total"])
    yield _gauge("elasticdl_epoch", "The epoch under way, from 0.", picture["epoch"])
    yield _gauge("elasticdl_epochs_expected", "Epochs of the job.", picture["num_epochs"])
    tasks = GaugeMetricFamily("elasticdl_tasks", "Tasks by state.", labels=["state"])
    for state in ("todo", "doing", "done"):
        tasks.add_metric([state], picture[f"tasks_{state}"])
    yield tasks
    if picture["loss"] is not None:
        yield _gauge("elasticdl_training_loss", "Mean over recent records.", picture["loss"])
    yield _gauge("elasticdl_model_version", "Updates of the model.", picture["model_version"])
    if picture.get("lag") is not None:
        yield from _of_stream(picture)
    yield _staleness(picture)
    measured = GaugeMetricFamily(
        "elasticdl_model_metric", "The newest value of a metric.", labels=["metric", "of"]
    )
    for of, points, key in (
        ("training", history.training.items, "recent_metrics"),
        ("evaluation", history.evaluations.items, "metrics"),
    ):
        for name, value in islice((points[-1][key] if points else {}).items(), _MOST_NAMES):
            measured.add_metric([name, of], value)
    yield measured
    stages = CounterMetricFamily(
        "elasticdl_stage_seconds", "Time of workers in stages of a step.", labels=["stage"]
    )
    for name, seconds in islice(sorted(history.stages.items()), _MOST_NAMES):
        stages.add_metric([name], seconds)
    yield stages


def _of_stream(picture: Mapping[str, Any]) -> Iterator[Metric]:
    yield _gauge(
        "elasticdl_stream_lag", "Positions of the stream that are not trained.", picture["lag"]
    )
    yield _counter("elasticdl_stream_late", "Records that came late.", picture["num_late"])
    if picture["watermark"]:
        yield _gauge(
            "elasticdl_stream_watermark_timestamp_seconds",
            "Event time up to which the stream is trained.",
            picture["watermark"],
        )


def _staleness(picture: Mapping[str, Any]) -> Metric:
    family = HistogramMetricFamily(
        "elasticdl_update_staleness", "Versions between a pull and its gradient."
    )
    buckets, sum_so_far = [], 0
    for bucket, count in enumerate(picture["staleness"]):
        sum_so_far += count
        buckets.append((str(float(2**bucket - 1)), sum_so_far))
    total = round(picture["mean_staleness"] * sum_so_far)  # of whole numbers; it never falls
    family.add_metric([], [*buckets, ("+Inf", sum_so_far)], total)
    return family


def _of_processes(lanes: list[Lane], num_lost: Mapping[str, int]) -> Iterator[Metric]:
    roles = [str(role) for role in Role]
    states = GaugeMetricFamily("elasticdl_processes", "By state.", labels=["role", "state"])
    lost = CounterMetricFamily("elasticdl_processes_lost", "Lost so far.", labels=["role"])
    seconds = CounterMetricFamily(
        "elasticdl_process_seconds",
        "Time of processes, by what they did.",
        labels=["role", "label"],
    )
    cpu = CounterMetricFamily("elasticdl_cpu_seconds", "Processor time.", labels=["role"])
    sent = CounterMetricFamily("elasticdl_sent_bytes", "On the tensor plane.", labels=["role"])
    received = CounterMetricFamily(
        "elasticdl_received_bytes", "On the tensor plane.", labels=["role"]
    )
    memory = GaugeMetricFamily("elasticdl_resident_memory_bytes", "Held now.", labels=["role"])
    for role in roles:
        those = [lane for lane in lanes if lane.role == role]
        counts = Counter(lane.state for lane in those)
        for state in _STATES:
            states.add_metric([role, state], counts[state])
        lost.add_metric([role], num_lost.get(role, 0))
        for label in _LABELS:
            sums = sum(lane.seconds.get(label, 0.0) for lane in those)
            # Rounded, as records are: lanes are added together too.
            seconds.add_metric([role, label], round(sums, 3))
        for at, family in enumerate((cpu, sent, received)):
            family.add_metric([role], round(sum(lane.totals[at] for lane in those), 3))
        alive = [lane for lane in those if lane.state not in ("lost", "left")]
        memory.add_metric([role], sum(lane.usage.get("resident_bytes", 0) for lane in alive))
    yield from (states, lost, seconds, cpu, sent, received, memory)


def _of_tables(history: History) -> Iterator[Metric]:
    tables = history.tables
    if not tables:
        return
    rows = GaugeMetricFamily("elasticdl_table_rows", "Rows of a table.", labels=["table"])
    held = GaugeMetricFamily("elasticdl_table_bytes", "Memory of a table.", labels=["table"])
    found = zip(tables["names"], tables["rows"], tables["num_bytes"], strict=True)
    for name, num_rows, num_bytes in islice(found, _MOST_NAMES):
        rows.add_metric([name], num_rows)
        held.add_metric([name], num_bytes)
    yield from (rows, held)
    pulled = CounterMetricFamily(
        "elasticdl_table_keys_pulled",
        "Keys that training asked for, each once a minibatch.",
        labels=["table"],
    )
    hits = CounterMetricFamily(
        "elasticdl_table_keys_found", "Those that had a row already.", labels=["table"]
    )
    for family, counts in ((pulled, "pulled"), (hits, "found")):
        for name, count in islice(history.keys[counts].items(), _MOST_NAMES):
            family.add_metric([name], count)
    yield from (pulled, hits)


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help, value=value if math.isfinite(value) else math.nan)


def _counter(name: str, help: str, value: float) -> Metric:
    return CounterMetricFamily(name, help, value=value)

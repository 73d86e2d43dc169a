"""A counter that Prometheus reads never falls: otherwise all of it would count once more."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("prometheus_client", reason="metrics need elasticdl-train[dashboard]")

from elasticdl.job import Label
from elasticdl.job.status import no_status
from elasticdl.master.pictures import picture_event
from elasticdl.observe.labels import LabelClock
from elasticdl.observe.usage import measure
from elasticdl.packages.page.history.fold import History
from elasticdl.packages.page.metrics import JobCollector
from elasticdl.packages.page.own_metrics import OwnMetrics
from tests.packages.page.test_history import BEGAN, fact, progress

PLAYED_CORE = SimpleNamespace(
    config=SimpleNamespace(command="evaluate"), tasks=SimpleNamespace(per_epoch=0)
)


def value(collector, name):
    (metric,) = [each for each in collector.collect() if each.name == name]
    return metric.samples[0].value


@pytest.mark.parametrize("name", ["elasticdl_records_trained", "elasticdl_records_with_loss"])
@pytest.mark.parametrize("records", [50, 64, 77, 149])
def test_records_are_as_many_when_cells_are_added_together(name, records):
    history = History.of([fact(BEGAN, "opened", schema=1, pid=1)])
    for beat in range(1, 190):
        history.add(progress(BEGAN + 3.13 * beat, records * beat))
    for seconds in (600, 700, 1300, 2500):  # each but the first makes the cells longer
        history.add(fact(BEGAN + seconds, "phase", phase="evaluating"))
        assert value(JobCollector(history), name) == records * 189


def test_the_sum_of_staleness_grows_when_its_mean_falls():
    history = History()
    for total, count in ((123_455_000, 10**8), (123_455_010, 10**8 + 1_000)):
        status = replace(no_status("job", 1), mean_staleness=total / count)
        status = replace(status, staleness_histogram=(0, count))
        history.add(fact(BEGAN, "picture", **picture_event(PLAYED_CORE, status).fields))
        found = [each for metric in JobCollector(history).collect() for each in metric.samples]
        assert [f.value for f in found if f.name == "elasticdl_update_staleness_sum"] == [total]


def test_a_failed_job_that_goes_on_is_in_the_phase_of_its_picture():
    history = History()

    def phase():
        (metric,) = [m for m in JobCollector(history).collect() if m.name == "elasticdl_job_phase"]
        return [each.labels[metric.name] for each in metric.samples if each.value]

    history.add(fact(BEGAN, "phase", phase="training"))
    history.add(fact(BEGAN + 1, "ended", phase="failed"))
    assert phase() == ["failed"]
    history.add(fact(BEGAN + 2, "resumed"))
    assert phase() == ["pending"]
    picture = picture_event(PLAYED_CORE, replace(no_status("job", 1), status="running")).fields
    history.add(fact(BEGAN + 3, "picture", **picture))
    assert phase() == ["training"]


def test_keys_of_a_ps_replica_that_is_replaced_stay_counted():
    history = History()
    for pulled, found, told in ((1_000, 600, 1_000), (400, 200, 1_000), (450, 230, 1_050)):
        rows = {"names": ["user"], "rows": [9], "num_bytes": [9]}
        history.add(fact(BEGAN, "tables", pulled=[pulled], found=[found], **rows))
        assert value(JobCollector(history), "elasticdl_table_keys_pulled") == told
    assert value(JobCollector(history), "elasticdl_table_keys_found") == 630


def test_seconds_that_a_ps_replica_moves_to_another_label_stay_until_more_have_passed():
    now = [0.0]
    labels = LabelClock(lambda: now[0], seconds_before=0.0)
    labels.enter(Label.IDLE)
    metrics = OwnMetrics(lambda: measure(labels))

    def seconds():
        (metric,) = [each for each in metrics.collect() if each.name == "elasticdl_own_seconds"]
        return {sample.labels["label"]: sample.value for sample in metric.samples}

    now[0] = 10.0
    assert seconds()["idle"] == 10.0
    labels.move(Label.IDLE, 4.0, to=Label.TRAIN)  # as a heartbeat does

    assert (seconds()["idle"], seconds()["train"]) == (10.0, 4.0)

    now[0] = 17.0
    assert seconds()["idle"] == 13.0

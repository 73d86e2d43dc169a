"""A worker scores the minibatches of each window of event time, and says so with its task."""

from types import SimpleNamespace

import numpy as np
import pytest

from elasticdl.backends.base import Minibatch, StepResult
from elasticdl.config import TrainingSection
from elasticdl.data.base import Records
from elasticdl.job import Lease, Outcome, Shard, Task, TaskKind, TaskReport
from elasticdl.observe.labels import LabelClock
from elasticdl.packages.streams.readings import STREAM_SHARE, TimedReading
from elasticdl.worker.activity import Activity
from elasticdl.worker.computation import Computation
from elasticdl.worker.exchange import Exchange
from elasticdl.worker.running import Item, Running
from elasticdl.worker.spans import Place, Spans

NOTHING = np.zeros(0, np.float32)


class Counting:
    """A model whose metric is the sum of its predictions."""

    def __init__(self):
        self.sum, self.is_begun = 0.0, False

    def new_metrics(self):
        self.sum, self.is_begun = 0.0, True

    def measure(self, minibatches, predictions):
        assert self.is_begun
        self.sum += sum(predictions)

    def metric_states(self):
        self.is_begun = False
        return {"sum": [np.array([self.sum])]}

    def train_step(self, minibatch, rows, dense, state):
        return StepResult(minibatch.labels / 10, (), NOTHING, NOTHING, minibatch.labels)


def spans_of_nobody():
    return Spans(Activity(LabelClock()), announce=lambda position: None)


@pytest.fixture
def report_of():
    """Return what trains minibatches of some windows, and returns the report of their task."""

    def report(windows, counts=None, is_suspect=False):
        model = Counting()
        computation = Computation(
            SimpleNamespace(training=TrainingSection()),
            model,
            model,
            Exchange(),
            None,
            spans_of_nobody().span,
            STREAM_SHARE,
        )
        task = Task(0, TaskKind.TRAINING, Shard("t-0", 0, 100))
        lease = Lease(task, 1, is_suspect=is_suspect)
        running = Running(lease, TimedReading(lease, None, 60.0))
        for window, count in (counts or {}).items():
            running.reading.read(Records(times=np.full(count, 60.0 * window + 1)))
        for index, window in enumerate(windows):
            place = Place(running.lease, index, 10)
            item = Item(running, index, place, Minibatch(None, index + 1, 10), window)
            item.parameters = SimpleNamespace(rows=(), dense=NOTHING, state=NOTHING)
            computation.step(item)
            computation.measure(item)
        return computation.finish(running, TaskReport(0, 1, Outcome.DONE))

    return report


def told(report):
    return [
        (w.number, w.num_messages, w.num_trained, w.num_measured, w.metric_states)
        for w in report.windows
    ]


def test_each_window_has_the_metrics_of_its_minibatches(report_of):
    report = report_of([5, 5, 6], {4: 3, 5: 12, 6: 15})
    assert told(report) == [
        (4, 3, 0, 0, {}),
        (5, 12, 20, 20, {"sum": [np.array([3.0])]}),
        (6, 15, 10, 10, {"sum": [np.array([3.0])]}),
    ]
    assert [w.loss_sum for w in report.windows] == pytest.approx([0.0, 3.0, 3.0])
    assert (report.num_measured, report.metric_states) == (0, {})


def test_minibatches_of_no_window_have_metrics_all_the_same(report_of):
    report = report_of([None, None, 7])
    assert told(report) == [(7, 0, 10, 10, {"sum": [np.array([3.0])]})]
    assert (report.num_measured, report.metric_states) == (20, {"sum": [np.array([3.0])]})


def test_a_suspect_is_not_scored_and_its_messages_are_counted(report_of):
    report = report_of([5, 6], {5: 10, 6: 10}, is_suspect=True)
    assert told(report) == [(5, 10, 0, 0, {}), (6, 10, 0, 0, {})]

"""Metrics of trained minibatches: merged over workers, made numbers by one of them."""

import numpy as np
import pytest

from elasticdl.job import Lease, Outcome, Shard, Task, TaskKind, TaskReport
from elasticdl.launchers.base import ProcessHandle
from elasticdl.master.actions import Note, StartProcess
from elasticdl.master.features.training_metrics import (
    TASK_ID,
    WINDOW_RECORDS,
    MeasuredTraining,
    TrainingMetrics,
)
from elasticdl.master.status import picture


def trained(metrics, epoch=0, num_measured=10, right=5.0, num_records=10, number=0):
    task = Task(number, TaskKind.TRAINING, Shard("a", 0, num_records), epoch)
    states = {"acc": [np.array([right, num_measured])]} if num_measured else {}
    report = TaskReport(
        number, 1, Outcome.DONE, num_records=num_records, num_measured=num_measured,
        metric_states=states,
    )  # fmt: skip
    metrics.trained(task, report)


def leased(metrics, worker_id, now, is_last):
    assert metrics.is_due(now, is_last)
    return metrics.lease(worker_id, now)


def answer(metrics, lease, **values):
    ratios = {name: float(a[0][0] / a[0][1]) for name, a in lease.metric_states.items()}
    values = {"outcome": Outcome.DONE, "metrics": ratios, **values}
    return metrics.answered(TaskReport(TASK_ID, lease.number, **values))


def test_sums_of_workers_add_up_and_say_of_how_many_records_they_are():
    metrics = TrainingMetrics()
    trained(metrics, right=5.0)
    trained(metrics, right=8.0)
    trained(metrics, num_measured=0)

    lease = leased(metrics, 0, 0.0, is_last=False)
    assert lease.task.kind is TaskKind.METRICS
    assert answer(metrics, lease)

    assert metrics.measured.metrics == {"acc": 0.65}
    assert metrics.measured.num_records == 20


def test_the_window_forgets_what_the_epoch_keeps():
    metrics = TrainingMetrics()
    trained(metrics, right=0.0)
    trained(metrics, right=10.0, num_records=WINDOW_RECORDS)
    answer(metrics, leased(metrics, 0, 0.0, is_last=False))
    assert metrics.measured.metrics == {"acc": 0.5}
    assert metrics.measured.recent == {"acc": 1.0}


def test_an_epoch_begins_with_empty_sums_and_a_late_task_changes_nothing():
    metrics = TrainingMetrics()
    trained(metrics, epoch=0, right=0.0)
    trained(metrics, epoch=1, right=10.0)
    trained(metrics, epoch=0, right=0.0)
    answer(metrics, leased(metrics, 0, 0.0, is_last=False))
    assert (metrics.measured.epoch, metrics.measured.num_records) == (1, 10)
    assert metrics.measured.metrics == {"acc": 1.0}


def test_what_is_recent_is_of_the_newest_epoch():
    metrics = TrainingMetrics()
    trained(metrics, epoch=0, right=0.0)
    trained(metrics, epoch=1, right=10.0)
    answer(metrics, leased(metrics, 0, 0.0, is_last=False))
    assert metrics.measured.recent == {"acc": 1.0}


def test_after_training_the_numbers_are_of_the_newest_epoch_or_there_are_none():
    metrics = TrainingMetrics()
    trained(metrics, epoch=0, right=5.0)
    answer(metrics, leased(metrics, 0, 0.0, is_last=False))
    trained(metrics, epoch=1, num_measured=0)
    assert not metrics.is_behind
    assert metrics.shown(is_training=True).metrics == {"acc": 0.5}  # said to be of the first epoch
    assert metrics.shown(is_training=False).metrics == {}
    trained(metrics, epoch=1, right=8.0)
    answer(metrics, leased(metrics, 0, 1.0, is_last=True))
    told = metrics.shown(is_training=False)
    assert (told.epoch, told.metrics, told.recent) == (1, {"acc": 0.8}, {"acc": 0.8})


def test_numbers_are_asked_for_every_ten_seconds_and_at_the_end():
    metrics = TrainingMetrics()
    assert not metrics.is_due(0.0, is_last=True)
    trained(metrics)
    answer(metrics, leased(metrics, 0, 0.0, is_last=False))
    trained(metrics)
    assert not metrics.is_due(9.0, is_last=False)
    assert metrics.is_due(9.0, is_last=True)


def test_a_lost_worker_is_not_waited_for():
    metrics = TrainingMetrics()
    trained(metrics)
    first = leased(metrics, 3, 0.0, is_last=True)
    metrics.lost(2)
    assert not metrics.is_due(1.0, is_last=True)
    metrics.lost(3)
    second = leased(metrics, 0, 1.0, is_last=True)
    assert not answer(metrics, first)
    assert answer(metrics, second)


def test_a_worker_that_does_not_answer_is_not_waited_for():
    metrics = TrainingMetrics()
    trained(metrics)
    first = leased(metrics, 0, 0.0, is_last=True)
    assert not metrics.is_due(5.0, is_last=True)
    second = leased(metrics, 0, 10.0, is_last=True)
    assert answer(metrics, second)
    assert not answer(metrics, first)
    assert not metrics.is_behind


def test_metrics_that_cannot_be_computed_are_given_up():
    metrics = TrainingMetrics()
    trained(metrics)
    assert not answer(metrics, leased(metrics, 0, 0.0, is_last=True), outcome=Outcome.FAILED)
    assert not metrics.is_behind


def start(kit, **settings):
    play = kit.play(kit.config(**settings), validation=())
    play.core.begin(play.now)
    for action in play.do(StartProcess):
        handle = ProcessHandle(action.role, action.index, "x")
        play.core.processes.started(handle, play.now)
    play.register(0)
    return play


def test_a_job_ends_with_the_numbers_of_its_last_epoch(master_kit):
    play = start(master_kit, num_epochs=2)
    metrics_tasks = 0
    while isinstance(lease := play.lease(), Lease):
        num_records = lease.task.shard.num_records
        values = {}
        if lease.task.kind is TaskKind.TRAINING:
            states = {"acc": [np.array([num_records / 2, num_records])]}
            values = {
                "num_records": num_records, "num_measured": num_records,
                "loss_sum": num_records * (2.0 + lease.task.epoch), "metric_states": states,
            }  # fmt: skip
        elif lease.task.kind is TaskKind.METRICS:
            metrics_tasks += 1
            values = {"metrics": {"epoch/acc": 0.5, "window/acc": 0.25}}
        assert play.report(lease, **values)

    status = picture(play.core, play.now)
    assert metrics_tasks == 2  # after the first task, and at the end
    assert status.train_metrics == {"acc": 0.5}
    assert status.recent_train_metrics == {"acc": 0.25}
    assert status.train_metrics_records == 60
    assert status.epoch_loss == pytest.approx(3.0)
    notes = [note for note in play.do(Note) if note.kind.event == "training metrics"]
    assert notes[-1].kind.metrics == {"acc": 0.5}
    assert notes[-1].kind.loss == pytest.approx(3.0)


def test_what_a_lost_worker_measured_is_lost_with_it(master_kit):
    play = start(master_kit)
    lease = play.lease()
    play.register(0, session="its successor")
    states = {"acc": [np.array([5.0, 10.0])]}
    assert not play.report(lease, num_records=30, num_measured=30, metric_states=states)
    assert not play.core.features.of(MeasuredTraining).holds(play.core.phase)

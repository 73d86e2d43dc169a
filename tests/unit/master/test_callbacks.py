"""When the user's callbacks are called, and what their decisions change."""

import json
from dataclasses import replace

import pytest

from elasticdl.checkpoints.writing import write_checkpoint
from elasticdl.job import (
    CallbackResult,
    Finished,
    Lease,
    MomentKind,
    Outcome,
    Shard,
    TaskAudit,
    TaskKind,
    TaskReport,
    Wait,
)
from elasticdl.master.durable import JobData
from elasticdl.master.in_process import InProcessMaster
from elasticdl.state.memory import MemoryState
from tests.unit.master.store_access import StoreAccess

DATA = JobData(training=(Shard("a", 0, 90),), validation=(Shard("v", 0, 30),))  # three tasks


class Job:
    """Works off a job with a model that has callbacks, which `decide` plays."""

    def __init__(self, config, decide=lambda moment: {}, state=None, tell=lambda note: None):
        self.applied, self.calls, self.rates, self.decide = {}, [], [], decide
        self.version = 0
        self.master = InProcessMaster(
            config,
            DATA,
            StoreAccess(self.applied, lambda directory: []),
            state=state,
            tell=tell,
        )

    def begin(self):
        self.master.register_worker(0, 1)
        self.master.has_callbacks(0)
        return self

    def work_off(self, until=lambda lease: False):
        while not isinstance(lease := self.master.lease(0), Finished):
            assert isinstance(lease, Lease), self.master.status()
            if until(lease):
                return self
            self.master.report(0, self.report_of(lease))
        return self

    def report_of(self, lease):
        task, values = lease.task, {}
        match task.kind:
            case TaskKind.TRAINING:
                self.version += 3
                self.applied[task.id] = TaskAudit(task.id, 3, 30)
                self.rates.append(lease.learning_rate)
                loss = 30 * (1.0 + task.epoch)
                values = {"num_records": 30, "loss_sum": loss, "model_version": self.version}
            case TaskKind.METRICS:
                values = {"metrics": {"auc": 0.5}}
            case TaskKind.CALLBACKS:
                call = lease.callbacks
                self.calls.append(call)
                values = {"callbacks": CallbackResult(f"{len(self.calls)}", **self.decide(call))}
        return TaskReport(task.id, lease.number, Outcome.DONE, **values)

    def moments(self):
        return [(call.moment.kind, call.moment.number) for call in self.calls]


def test_callbacks_are_told_of_begin_epochs_evaluations_and_end_in_order(master_kit):
    config = master_kit.config(num_epochs=2, evaluation_steps=6)
    job = Job(config).begin().work_off()
    assert job.master.status().status == "finished"
    assert job.moments() == [
        (MomentKind.TRAIN_BEGIN, 0),
        (MomentKind.EVALUATION, 0),
        (MomentKind.EPOCH_END, 0),
        (MomentKind.EVALUATION, 1),
        (MomentKind.EPOCH_END, 1),
        (MomentKind.EVALUATION, 2),
        (MomentKind.TRAIN_END, 0),
    ]
    of_epochs = [c.moment for c in job.calls if c.moment.kind is MomentKind.EPOCH_END]
    assert [moment.logs["loss"] for moment in of_epochs] == [1.0, 2.0]
    assert of_epochs[1].logs["val_auc"] == 0.5
    assert [call.state for call in job.calls] == ["", *map(str, range(1, len(job.calls)))]
    assert {call.num_epochs for call in job.calls} == {2}


def test_without_a_flag_the_end_of_an_epoch_has_its_own_evaluation(master_kit):
    def stop(call):
        is_second = call.moment == replace(call.moment, kind=MomentKind.EVALUATION, number=1)
        return {"stop": "EarlyStopping" if is_second else "", "learning_rate": len(job.calls)}

    job = Job(master_kit.config(num_epochs=5), stop)
    job.begin().work_off()
    evaluation, epoch = MomentKind.EVALUATION, MomentKind.EPOCH_END
    assert job.moments()[1:-1] == [(evaluation, 0), (epoch, 0), (evaluation, 1), (epoch, 1)]
    # The rate that is set at an epoch's end is that of the whole next one, and no task is begun
    # after the evaluation that stops training. Nothing is evaluated twice.
    assert job.rates == [1] * 3 + [3] * 3
    assert job.master.status().status == "finished"


def test_a_model_without_callbacks_has_no_such_tasks(master_kit):
    job = Job(master_kit.config(num_epochs=2))
    job.master.register_worker(0, 1)
    job.work_off()
    assert job.calls == []
    assert job.rates == [None] * 6


def test_a_rate_that_a_callback_sets_is_that_of_later_tasks(master_kit):
    def halve(call):
        is_epoch = call.moment.kind is MomentKind.EPOCH_END
        return {"learning_rate": 0.5 / 2**call.moment.number if is_epoch else call.learning_rate}

    job = Job(master_kit.config(num_epochs=3), halve).begin().work_off()
    assert job.rates == [None] * 3 + [0.5] * 3 + [0.25] * 3


def test_in_one_process_an_epoch_waits_for_the_callbacks_of_the_one_before(master_kit):
    job = Job(master_kit.config(num_epochs=2, evaluation_steps=0)).begin()

    def taken():
        """Lease as a pipeline does, which asks before what it has is done."""
        leases = list(iter(lambda: job.master.lease(0), Wait(0.1)))
        for lease in leases:
            job.master.report(0, job.report_of(lease))
        return [(lease.task.kind, lease.task.epoch) for lease in leases]

    called, of_epochs = [(TaskKind.CALLBACKS, 0)], [[(TaskKind.TRAINING, k)] * 3 for k in (0, 1)]
    assert [taken() for _ in range(4)] == [called, of_epochs[0], called, of_epochs[1]]


@pytest.mark.parametrize(("given", "rate"), [(None, 0.25), (0.5, None)])
def test_a_job_goes_on_with_the_rate_that_a_callback_had_set_when_its_checkpoint_was_written(
    master_kit, tmp_path, given, rate
):
    entry = {"files": []}
    folder = write_checkpoint(tmp_path, 6, "m", lambda to: [json.dumps(entry)], learning_rate=0.25)
    config = master_kit.config(checkpoint_dir_for_init=folder, learning_rate=given)
    told = []
    job = Job(config, lambda call: {"learning_rate": call.learning_rate}, tell=told.append)
    job.begin().work_off()
    assert set(job.rates) == {rate}
    (text,) = [note.text for note in told if note.kind.event == "begun with checkpoint"]
    assert "learning rate 0.25 that a callback had set" in text
    assert "epochs from 0, and callbacks begin anew" in text


def test_training_that_a_callback_stops_ends_in_order_and_is_proved(master_kit):
    def stop(call):
        ends = call.moment.kind is MomentKind.EPOCH_END
        return {"stop": "EarlyStopping" if ends else ""}

    job = Job(master_kit.config(num_epochs=5), stop).begin().work_off()
    status = job.master.status()
    assert (status.status, len(job.rates)) == ("finished", 3)
    assert [(line.epoch, line.records, line.trained_once) for line in status.ledger] == [
        (0, 90, 90)
    ]
    assert status.message == "EarlyStopping stopped training after 90 of 450 records"
    assert job.moments()[-1][0] is MomentKind.TRAIN_END


@pytest.mark.parametrize("kind", [TaskKind.CALLBACKS, TaskKind.TRAINING])
def test_a_restarted_master_goes_on_with_what_callbacks_remember(master_kit, kind):
    state, config = MemoryState(), master_kit.config(num_epochs=2)
    first = Job(config, lambda call: {"learning_rate": 0.25}, state).begin()
    seen = []
    first.work_off(
        until=lambda lease: lease.task.kind is kind and (seen.append(1) or len(seen) > 1)
    )
    second = Job(config, lambda call: {"learning_rate": call.learning_rate}, state)
    second.applied.update(first.applied)
    second.calls = first.calls
    second.master.register_worker(0, 2)
    second.work_off()
    assert second.master.status().status == "finished"
    assert [call.state for call in second.calls][:2] == ["", "1"]
    assert [kind for kind, _ in second.moments()].count(MomentKind.EPOCH_END) == 2
    assert second.rates[-1] == 0.25


def test_callbacks_that_fail_too_often_fail_the_job_at_its_end(master_kit):
    config = master_kit.config(num_epochs=2, max_task_retries=1)
    job = Job(config).begin()

    def report(lease):
        if lease.task.kind is TaskKind.CALLBACKS and job.rates:
            return TaskReport(lease.task.id, lease.number, Outcome.FAILED, message="Mine raised")
        return Job.report_of(job, lease)

    job.report_of = report
    job.work_off()
    status = job.master.status()
    assert status.status == "failed"
    assert "1 tasks failed 2 times each and were set aside: Mine raised" in status.message
    assert len(job.rates) == 6

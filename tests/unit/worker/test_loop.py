"""The loop against a real in-process store and a master that plays a script."""

import contextlib
import dataclasses
import math
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from elasticdl import Mode
from elasticdl._core import Store
from elasticdl.backends.numpy import NumpyTrainer
from elasticdl.data.base import Records
from elasticdl.errors import (
    DataError,
    ModelError,
    UnavailableError,
)
from elasticdl.job import Lease, Outcome, Position, Shard, Task, TaskKind
from elasticdl.worker.measuring import MeasuringBudget
from elasticdl.worker.protocol import LeaseProtocol
from elasticdl.worker.records import sample_minibatch, task_seed
from elasticdl.worker.running import Running
from elasticdl.worker.stores import StoreExchange
from elasticdl.worker.telling import Telling
from tests.unit.worker.scripted_run import (
    MINIBATCH,
    NAN_GRAD_SPEC,
    NAN_SPEC,
    SPEC,
    MemoryReader,
    Run,
    ScriptedMaster,
    UnevenTrainer,
    counting_model,
    dense_model,
    feed,
    training,
)


def test_each_record_of_the_leased_tasks_is_trained_once():
    run = Run([training(1, 0, 20), training(2, 20, 30)])()
    assert run.counts() == [1.0] * 30 + [0.0] * 10
    assert [(r.task_id, r.outcome, r.num_records) for r in run.master.reports] == [
        (1, Outcome.DONE, 20),
        (2, Outcome.DONE, 10),
    ]


@pytest.mark.parametrize("way", ["request", "heartbeat", "end of the worker"])
def test_a_report_that_may_wait_comes_with_the_next_request_or_when_there_is_none(way):
    is_kept, is_told = threading.Event(), threading.Event()

    class SecondWaits(MemoryReader):
        def read(self, shard):
            if shard.start:
                assert (is_told if way == "heartbeat" else is_kept).wait(100)
                if way == "end of the worker":
                    raise UnavailableError("no ps replica answers")
            return super().read(shard)

    leases = [training(1, 0, 20), training(2, 20, 24)]
    run = Run(
        [dataclasses.replace(lease, report_may_wait=True) for lease in leases], reader=SecondWaits()
    )
    telling = run.worker._telling
    tell = telling.tell

    def tell_and_say(running, report):
        tell(running, report)
        is_kept.set()

    def beat():
        assert is_kept.wait(100)
        assert run.master.reports == []
        run.worker.tell_kept()
        is_told.set()

    telling.tell = tell_and_say
    with ThreadPoolExecutor() as pool:
        beats = pool.submit(beat) if way == "heartbeat" else None
        with pytest.raises(UnavailableError) if "end" in way else contextlib.nullcontext():
            run()
        if beats is not None:
            beats.result()
    told = [report.task_id for report in run.master.reports]
    assert told == ([1] if "end" in way else [1, 2])
    assert any(1 in reports for reports in run.master.with_requests) == (way == "request")


def test_the_master_hears_of_what_was_done_before_it_hears_of_a_failure():
    master, protocol = ScriptedMaster([]), LeaseProtocol(1, is_synchronous=False)
    telling = Telling(master, 0, protocol, threading.Lock())
    leases = [dataclasses.replace(training(n, 0, 20), report_may_wait=True) for n in (1, 2)]
    done, failed = (Running(lease).returned() for lease in leases)
    protocol.answered(leases[1])
    telling.tell(Running(leases[0]), dataclasses.replace(done, outcome=Outcome.DONE))
    assert master.reports == []
    telling.tell(Running(leases[1]), failed)
    assert [report.task_id for report in master.reports] == [1, 2]


def test_a_later_lease_goes_on_where_the_replica_stands():
    store = Store()
    first = Run([], store)
    pulled = first.client.pull([(0, np.arange(4))], True)
    empty = np.zeros(0, np.float32)
    seeded = Run([training(1, 0, 20)], Store())()  # what a whole task gives
    order = np.arange(20)
    np.random.default_rng(task_seed(0, 1)).shuffle(order)
    pulled = first.client.pull([(0, order[:4])], True)
    first.client.push(pulled, [np.full((4, 1), -1, np.float32)], empty, empty, 1.0, 1, 1, 0, 4)
    run = Run([training(1, 0, 20, number=2)], store)()
    assert run.counts() == seeded.counts()
    assert run.master.reports[0].num_records == 16


def test_a_worker_whose_lease_was_given_away_trains_nothing_and_reports_nothing():
    store = Store()
    Run([], store).client.begin_task(1, 5)
    run = Run([training(1, 0, 20, number=4), training(2, 20, 24)], store)()
    assert run.counts() == [0.0] * 20 + [1.0] * 4 + [0.0] * 16
    assert [r.task_id for r in run.master.reports] == [2]


UNEVEN = [0.0] * 20 + [1.0, 2.0] * 5 + [0.0] * 10  # each record of 20 to 30, as often as fed


def test_what_feed_made_of_a_task_is_reported_also_if_it_is_nothing():
    leases = [training(1, 0, 20), training(2, 20, 30)]
    run = Run(leases, trainer=UnevenTrainer)()
    assert run.counts() == UNEVEN
    reports = run.master.reports
    assert [(r.outcome, r.end_index, r.num_examples, r.num_records) for r in reports] == [
        (Outcome.DONE, 0, 0, 0),
        (Outcome.DONE, 4, 15, 15),
    ]
    assert run.client.audit()[0].tolist() == [[2, 4, 15]]


def test_a_later_lease_of_an_uneven_task_trains_the_rest_and_reports_the_whole():
    store = Store()
    first = Run([], store, trainer=UnevenTrainer)
    fed = first.trainer.minibatches(
        MemoryReader().read(Shard("memory", 20, 30)), Mode.TRAINING, MINIBATCH, task_seed(0, 2)
    )
    ids = next(fed).features
    empty = np.zeros(0, np.float32)
    pulled = first.client.pull([(0, ids)], True)
    first.client.push(pulled, [np.full((4, 1), -1, np.float32)], empty, empty, 1.0, 2, 1, 0, 4)

    run = Run([training(2, 20, 30, number=2)], store, trainer=UnevenTrainer)()

    assert run.counts() == UNEVEN
    (report,) = run.master.reports
    assert (report.end_index, report.num_examples, report.num_records) == (4, 15, 11)
    assert run.client.audit()[0].tolist() == [[2, 4, 15]]


def test_a_skipped_minibatch_is_reported_with_its_examples():
    run = Run([training(1, 8, 14)], spec=NAN_SPEC, on_nan="skip")()
    (report,) = run.master.reports
    assert sum(report.skipped_examples) + report.num_records == report.num_examples == 6
    assert len(report.skipped) == len(report.skipped_examples) == 1


def test_a_model_is_built_from_the_first_record_that_feed_does_not_leave_out():
    sample = sample_minibatch(MemoryReader(), Run([]).trainer, Mode.TRAINING, MINIBATCH)
    assert sorted(sample.features) == [0, 1, 2, 3]
    uneven = Run([], trainer=UnevenTrainer).trainer
    sample = sample_minibatch(MemoryReader(), uneven, Mode.TRAINING, MINIBATCH)
    assert all(sample.features >= 20)


def test_a_feed_that_leaves_out_all_records_of_a_job_is_told_so():
    class LeavingOut(UnevenTrainer):
        def minibatches(self, records, mode, minibatch_size, seed):
            return iter(())

    with pytest.raises(DataError, match="no example of any of the 40 records in mode training"):
        Run([], trainer=LeavingOut)


@pytest.mark.parametrize("surplus", [-1, 1])
def test_a_reader_that_gives_other_records_than_it_was_asked_for_fails_the_task(surplus):
    class Miscounting(MemoryReader):
        def read(self, shard):
            return super().read(Shard(shard.name, shard.start, shard.end + surplus))

    run = Run([training(1, 10, 20)], reader=Miscounting())()
    (report,) = run.master.reports
    assert report.outcome is Outcome.FAILED
    expected = f"memory: Miscounting.read gave {10 + surplus} records for [10, 20), expected 10"
    assert expected in report.message


def test_a_record_that_does_not_parse_fails_its_task_and_no_other():
    class OneBadRecord(MemoryReader):
        def read(self, shard):
            for records in super().read(shard):
                yield Records(records.start, [b"bad" if v == b"25" else v for v in records.values])

    run = Run(
        [training(1, 0, 20), training(2, 20, 30), training(3, 30, 40)], reader=OneBadRecord()
    )()
    outcomes = {r.task_id: r for r in run.master.reports}
    assert outcomes[1].outcome is Outcome.DONE
    assert outcomes[3].outcome is Outcome.DONE
    assert outcomes[2].outcome is Outcome.FAILED
    assert "not a number: bad" in outcomes[2].message
    assert "memory: feed() failed on record 25" in outcomes[2].message


def test_a_loss_that_is_nan_is_reported_with_task_and_minibatch():
    run = Run([training(7, 0, 20)], spec=NAN_SPEC)()
    (report,) = run.master.reports
    assert report.outcome is Outcome.FAILED
    assert report.fatal
    assert "loss is nan in task 7 (records 0 to 20 of memory), minibatch" in report.message
    assert "--on_nan=skip" in report.message


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (lambda: counting_model(nan_grad_label=13), "embedding rows"),
        (lambda: dense_model(math.inf), "dense parameters"),
        (lambda: dense_model(math.nan), "dense parameters"),
    ],
)
def test_a_gradient_that_is_not_finite_stops_the_job_though_its_loss_is(model, what):
    run = Run([training(7, 0, 20)], spec=dataclasses.replace(SPEC, model=model))()
    (report,) = run.master.reports
    assert report.fatal
    said = f"loss is 0.5, and its gradient of {what} has NaN or infinity in task 7"
    assert said in report.message
    assert "--on_nan=skip" in report.message
    rows = run.client.pull([(0, np.arange(40))], False).rows if "rows" in what else []
    values = [*rows, run.client.pull([], False).dense]
    assert all(np.isfinite(array).all() for array in values)


def test_state_that_is_finite_again_after_infinity_is_refused_and_not_made_nan():
    steps = iter([math.inf, math.inf, 3.0, 4.0, 5.0])  # of the state after each minibatch

    def gradients(dense, rows, features, labels):
        new, old = np.array([next(steps)], np.float32), run.client.pull([], False).state
        left = np.where(new == old, 0, np.nan)  # no number is the change of an infinite one
        change = np.where(np.isinf(old), left, new - np.where(np.isinf(old), 0, old))
        return 0.5, [], {}, {"high": change.astype(np.float32)}

    model = dataclasses.replace(
        dense_model(1.0), dense={}, gradients=gradients, state={"high": np.zeros(1, np.float32)}
    )
    spec = dataclasses.replace(SPEC, model=lambda: model)
    run = Run([training(7, 0, 20)], spec=spec, use_async=False)
    (report,) = run().master.reports
    assert report.fatal
    assert "state of the model that was infinite is finite now" in report.message
    assert "in task 7 (records 0 to 20 of memory), minibatch 2" in report.message
    assert run.client.pull([], False).state.tolist() == [math.inf]


@pytest.mark.parametrize("spec", [NAN_SPEC, NAN_GRAD_SPEC], ids=["loss", "gradient"])
def test_a_minibatch_that_is_not_finite_can_be_skipped(spec):
    run = Run([training(7, 0, 20)], spec=spec, on_nan="skip")()
    (report,) = run.master.reports
    assert report.outcome is Outcome.DONE
    assert len(report.skipped) == 1
    assert report.num_records == 16
    counts = run.counts()
    assert sum(counts) == 16
    assert counts[13] == 0


def test_evaluation_leaves_rows_alone_and_reports_sums():
    run = Run(
        [
            training(1, 0, 8),
            Lease(Task(2, TaskKind.EVALUATION, Shard("memory", 0, 16), evaluation_id=0), 1),
        ]
    )()
    report = run.master.reports[1]
    assert report.num_records == 16
    assert report.metric_states["mean"][0].tolist()[1] == 16
    assert run.counts() == [1.0] * 8 + [0.0] * 32


def test_metrics_are_computed_from_merged_states():
    task = Task(3, TaskKind.METRICS, Shard("", 0, 0), evaluation_id=0)
    run = Run([Lease(task, 1, metric_states={"mean": [np.array([6.0, 4.0])]})])()
    assert run.master.reports[0].metrics == {"mean": 1.5}


def test_predictions_come_whole_and_in_the_order_of_the_records():
    run = Run(
        [
            training(1, 0, 8),
            Lease(Task(2, TaskKind.PREDICTION, Shard("memory", 4, 14)), 1),
        ]
    )()
    # The prediction may be pulled before the last pushes of the first task: only order counts.
    assert len(run.sink.written[2]) == 10


def test_an_unreachable_replica_ends_the_worker():
    class Unreachable(StoreExchange):
        def pull(self, ids, step=None):
            raise UnavailableError("ps replica 1 at nowhere:1")

    run = Run([training(1, 0, 20)])
    run.use(Unreachable)
    with pytest.raises(UnavailableError, match="ps replica 1"):
        run()
    assert run.master.reports == []


def test_a_pull_that_fails_for_its_task_alone_leaves_room_for_others():
    class RefusesThirteen(StoreExchange):
        def pull(self, ids, step=None):
            if (ids[0] == 13).any():
                raise ValueError("thirteen")
            return super().pull(ids, step)

    leases = [training(n, 12, 16) for n in range(10)]  # more than may be in flight
    run = Run([*leases, training(99, 20, 24)])
    run.use(RefusesThirteen)
    run()
    assert [r.outcome for r in run.master.reports] == [Outcome.FAILED] * 10 + [Outcome.DONE]


@pytest.mark.parametrize("kind", [TaskKind.TRAINING, TaskKind.EVALUATION])
@pytest.mark.parametrize("settings", [{}, {"use_async": False}, {"max_staleness": 0}])
def test_each_stage_of_a_suspect_is_announced_before_it_begins_one_minibatch_at_a_time(
    kind, settings
):
    lease = Lease(Task(1, kind, Shard("memory", 0, 8)), 1, is_suspect=True)
    run = Run([lease, training(2, 8, 16)], **settings)()
    step = ["pull", "compute", "push"] if kind is TaskKind.TRAINING else ["pull", "evaluate"]
    assert run.master.announced[0] == Position(1, 1, 0, "feed")
    stages = [(p.minibatch, p.stage) for p in run.master.announced]
    each = ["feed", "ids", *step]
    assert stages == [*((0, s) for s in each), *((1, s) for s in each), (2, "feed")]
    assert [r.outcome for r in run.master.reports] == [Outcome.DONE] * 2


@pytest.mark.parametrize("kind", [TaskKind.TRAINING, TaskKind.EVALUATION, TaskKind.PREDICTION])
def test_suspect_that_fails_ends_and_others_go_on(kind):
    def fails(records, mode, metadata):
        if b"5" in records:
            raise ValueError("five")
        return feed(records, mode, metadata)

    lease = Lease(Task(1, kind, Shard("memory", 0, 20)), 1, is_suspect=True)
    run = Run([lease, training(2, 20, 40)], spec=dataclasses.replace(SPEC, feed=fails))()
    assert [r.outcome for r in run.master.reports] == [Outcome.FAILED, Outcome.DONE]


def refusing_model(*refused):
    """A model that raises where one of the ids is refused."""
    model = counting_model()

    def given(features):
        if np.isin(features, refused).any():
            raise IndexError("no such place")

    def predict(dense, rows, features):
        given(features)
        return model.predict(dense, rows, features)

    def gradients(dense, rows, features, labels):
        given(features)
        return model.gradients(dense, rows, features, labels)

    return dataclasses.replace(model, predict=predict, gradients=gradients)


@pytest.mark.parametrize("kind", [TaskKind.TRAINING, TaskKind.EVALUATION, TaskKind.PREDICTION])
def test_a_step_that_raises_is_told_with_its_place_and_its_record_or_else_its_minibatch(kind):
    leases = [Lease(Task(1, kind, Shard("memory", 10, 20)), 1), training(2, 20, 40)]
    spec = dataclasses.replace(SPEC, model=lambda: refusing_model(13))
    failed, done = Run(leases, spec=spec)().master.reports
    assert (failed.outcome, failed.is_certain, done.outcome) == (Outcome.FAILED, True, Outcome.DONE)
    at_record = rf"memory: {kind} fails with record 13: IndexError: no such place \(.*test_loop.py:"
    assert re.match(at_record, failed.message)

    spec = dataclasses.replace(SPEC, model=lambda: refusing_model(*range(10, 20)))
    failed, _ = Run(leases, spec=spec)().master.reports
    assert (failed.outcome, failed.is_certain) == (Outcome.FAILED, False)
    assert f"{kind} task 1 (records 10 to 20 of memory" in failed.message
    assert re.search(rf"{kind} fails in minibatch 0: IndexError.*test_loop.py:", failed.message)


@pytest.mark.parametrize("code", [0, 3, "sorry"])
def test_model_file_that_exits_fails_its_task_and_not_the_worker(code):
    def exits(records, mode, metadata):
        if b"25" in records:
            sys.exit(code)
        return feed(records, mode, metadata)

    leases = [training(1, 0, 20), training(2, 20, 30), training(3, 30, 40)]
    run = Run(leases, spec=dataclasses.replace(SPEC, feed=exits))()
    assert [r.outcome for r in run.master.reports] == [Outcome.DONE, Outcome.FAILED, Outcome.DONE]
    assert f"called sys.exit({code!r}) in feed (" in run.master.reports[1].message
    assert "test_loop.py:" in run.master.reports[1].message


def test_task_seeds_differ_by_task_and_by_job():
    seeds = {task_seed(job, task) for job in range(10) for task in range(1000)}
    assert len(seeds) == 10_000


def test_ids_that_need_parameters_are_asked_for_when_no_update_is_under_way():
    run = Run([training(1, 0, 20), training(2, 20, 40)])
    run.trainer.ids_need_parameters = True
    ids, versions = run.trainer.ids, []

    def ids_of_a_version(minibatch):
        versions.append(run.client.pull([], training=False).version)
        return ids(minibatch)

    run.trainer.ids = ids_of_a_version
    run()
    assert run.counts() == [1.0] * 40
    assert versions == list(range(10))


class MeasuringTrainer(NumpyTrainer):
    """Counts the records that it measures."""

    def new_metrics(self):
        super().new_metrics()
        self._count = 0.0

    def measure(self, minibatches, predictions):
        assert len(minibatches) == len(predictions)
        self._count += sum(minibatch.num_records for minibatch in minibatches)

    def metric_states(self):
        return {"count": [np.array([self._count])]}

    def metric_results(self, states):
        return {name: float(arrays[0][0]) for name, arrays in states.items()}


def test_what_is_measured_of_a_task_comes_with_its_report(monkeypatch):
    monkeypatch.setattr(MeasuringBudget, "allows", True)
    states = {"epoch/count": [np.array([7.0])], "window/count": [np.array([3.0])]}
    numbers = Lease(Task(-1, TaskKind.METRICS, Shard("", 0, 0)), 1, metric_states=states)

    run = Run([training(1, 0, 20), numbers, training(2, 20, 30)], trainer=MeasuringTrainer)()

    reports = {r.task_id: r for r in run.master.reports}
    assert reports[-1].metrics == {"epoch/count": 7.0, "window/count": 3.0}
    for task_id, num_records in ((1, 20), (2, 10)):
        assert reports[task_id].num_measured == num_records
        assert reports[task_id].metric_states == {"count": [np.array([num_records])]}


def test_a_skipped_minibatch_is_not_measured():
    run = Run([training(7, 12, 16)], spec=NAN_SPEC, trainer=MeasuringTrainer, on_nan="skip")()
    (report,) = run.master.reports
    assert report.skipped == (0,)
    assert report.num_measured == 0


def test_a_metric_that_fails_does_not_fail_the_training(caplog):
    class FailingTrainer(MeasuringTrainer):
        def measure(self, minibatches, predictions):
            raise ModelError("metric 'x' raised ValueError")

    run = Run([training(1, 0, 20), training(2, 20, 30)], trainer=FailingTrainer)()
    assert [r.num_measured for r in run.master.reports] == [0, 0]
    assert [r.num_records for r in run.master.reports] == [20, 10]
    assert caplog.text.count("metrics of training cannot be computed: metric 'x' raised") == 1


def test_leases_are_given_back_though_a_watch_of_the_steps_does_not_end():
    may_end, has_begun, told = threading.Event(), threading.Event(), []

    class Slow:
        def handed_in(self, item, done):
            has_begun.set()

        def close(self):
            told.append([report.outcome for report in run.master.reports])
            assert may_end.wait(60)

    class Waiting(NumpyTrainer):
        def train_step(self, *given):
            if has_begun.is_set():
                run.worker.leave()
            return super().train_step(*given)

    run = Run([training(1, 0, 40)], trainer=Waiting)
    run.worker._watches = [Slow()]
    with ThreadPoolExecutor(2) as threads:
        ended = threads.submit(run.worker.run)
        has_begun.wait(60)
        given_back = threads.submit(run.worker.give_back, 60)
        try:
            given_back.result(30)
        finally:
            may_end.set()
        ended.result(60)
    assert [report.outcome for report in run.master.reports] == [Outcome.RETURNED]
    assert len(told) == 1

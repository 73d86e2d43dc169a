"""Watermark, lateness and windows of event time (packages/streams/watermark.py)."""

import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from elasticdl.config import CheckpointSection
from elasticdl.job import MeasuredWindow, Outcome, Shard, TaskReport
from elasticdl.master.actions import ExpireRows, WriteCheckpoint
from elasticdl.master.core import JobCore
from elasticdl.master.features.sources import RecordSource
from elasticdl.master.features.training_metrics import TrainingMetrics
from elasticdl.master.interpreter import Interpreter
from elasticdl.master.journal import Journal
from elasticdl.master.parameters.schedule import CheckpointSchedule
from elasticdl.master.tasks import make_tasks
from elasticdl.packages.streams.readings import TaskTimes, measured_windows
from elasticdl.packages.streams.sources import TimedStreamSource
from elasticdl.packages.streams.stream_table import StreamTable
from elasticdl.packages.streams.watermark import EventTime

MINUTE = 60.0


class Stream:
    """Tasks of partitions, and their event times, on one journal."""

    def __init__(self, disorder=0.0, lateness=None):
        self.journal = Journal()
        self.table = StreamTable([Shard("t-0", 0, 0), Shard("t-1", 0, 0)])
        self.times = EventTime(self.journal, self.table, MINUTE, disorder, lateness)
        self.journal.handle("cut", self._cut)
        self.written = []

    def _cut(self, name, end):
        number = len(self.table)
        self.table.cut(name, end)
        self.times.cut(name, number)

    def cut(self, name, count=10):
        self.journal.record("cut", name, self.table.next[name] + count)
        return len(self.table) - 1

    def done(self, task, newest, windows=(), lease=1):
        report = TaskReport(task, lease, Outcome.DONE, time=newest, windows=tuple(windows))
        self.times.done(self.table.name_of(task), report)

    def at(self, now=0.0, waiting=()):
        self.times.look(waiting, now)
        return self.times.watermark

    def counts(self):
        return {w.start // MINUTE: w.num_messages for w in self.times.windows.statuses()}

    def again(self):
        """Return the stream as another master takes it up, from its facts."""
        self.written += json.loads(json.dumps(self.journal.take()))
        other = Stream()
        for fact in self.written:
            other.journal.replay(fact)
        snapshot = json.loads(json.dumps([self.table.snapshot(), self.times.snapshot()]))
        assert json.loads(json.dumps([other.table.snapshot(), other.times.snapshot()])) == snapshot
        restored = Stream(self.times._disorder_seconds, self.times._lateness_seconds)
        restored.table.restore(snapshot[0])
        restored.times.restore(snapshot[1])
        restored.written = self.written
        return restored


def window(number, messages=10, measured=0, states=0.0, loss=0.0):
    sums = {"m": [np.array([states])]} if measured else {}
    return MeasuredWindow(number, messages, messages, loss, measured, sums)


def test_the_watermark_is_the_newest_time_before_the_first_open_task():
    stream = Stream()
    first, second, third = (stream.cut("t-0") for _ in range(3))
    stream.done(second, 200.0)
    assert stream.at() == 0.0
    stream.done(first, 300.0)
    assert stream.at() == 300.0
    stream.done(third, 250.0)
    assert stream.at() == 300.0


def test_the_watermark_is_the_least_of_the_partitions_and_less_the_disorder():
    stream = Stream(disorder=5.0)
    a, b = stream.cut("t-0"), stream.cut("t-1")
    stream.done(a, 900.0)
    assert stream.at() == 0.0  # of the other one nothing is known
    stream.done(b, 400.0)
    assert stream.at() == 395.0


def test_an_idle_partition_holds_the_watermark_for_some_seconds_only():
    stream = Stream()
    stream.done(stream.cut("t-0"), 100.0)
    stream.at(now=0.0)
    for now in (1.0, 9.0, 12.0):
        stream.done(stream.cut("t-1"), 500.0 + now)
        stream.cut("t-1")
        assert stream.at(now) == (100.0 if now < 10.0 else 501.0)


def test_a_partition_that_has_messages_waiting_is_not_idle():
    stream = Stream()
    stream.done(stream.cut("t-0"), 100.0)
    stream.done(stream.cut("t-1"), 500.0)
    for now in (0.0, 20.0, 40.0):
        assert stream.at(now, waiting={"t-0"}) == 100.0


def test_no_partition_becomes_idle_while_the_source_is_away():
    stream = Stream()
    stream.done(stream.cut("t-0"), 100.0)
    stream.done(stream.cut("t-1"), 500.0)
    stream.at(0.0)
    stream.times.answers_again(60.0)
    assert stream.at(60.0) == 100.0
    assert stream.at(70.0) == 500.0


def test_the_watermark_is_looked_at_when_what_holds_it_is_done():
    stream = Stream()
    tasks = [stream.cut(name) for name in ("t-0", "t-1", "t-1")]
    assert stream.times.is_held_by("t-1")  # nobody has looked
    stream.at()
    stream.done(tasks[0], 900.0)
    stream.at()
    assert [stream.times.is_held_by(name) for name in ("t-0", "t-1")] == [False, True]
    stream.done(tasks[1], 950.0)
    assert stream.at() == 900.0
    assert [stream.times.is_held_by(name) for name in ("t-0", "t-1")] == [True, False]


def test_a_stream_that_is_done_is_as_far_as_its_newest_message_and_never_goes_back():
    stream = Stream()
    stream.done(stream.cut("t-0"), 100.0)
    stream.done(stream.cut("t-1"), 500.0)
    stream.at(0.0)
    assert stream.at(20.0) == 500.0
    stream.done(stream.cut("t-0"), 120.0)
    assert stream.at(21.0) == 500.0


def test_a_task_that_is_set_aside_holds_nothing_up_and_counts_once_if_it_is_done_later():
    stream = Stream()
    first, second = stream.cut("t-0"), stream.cut("t-0")
    stream.times.set_aside("t-0", first)
    stream.done(second, 200.0, [window(3)])
    assert stream.at() == 200.0
    stream = stream.again()
    for _ in range(2):
        stream.done(first, 100.0, [window(1)])
    assert stream.counts() == {1: 10, 3: 10}


def test_late_is_decided_when_a_task_is_begun_and_never_again():
    stream = Stream(lateness=50.0)
    first, second = stream.cut("t-0"), stream.cut("t-0")
    assert stream.times.begun(first) == 0.0
    stream.done(first, 300.0)
    stream.at()
    assert stream.times.begun(second) == 250.0
    stream = stream.again()
    stream.done(stream.cut("t-0"), 900.0)
    stream.at()
    assert stream.times.begun(second) == 250.0
    stream.table.forget(second + 1)
    assert not stream.table.late_before


def test_nothing_is_late_without_a_limit():
    stream = Stream()
    stream.done(stream.cut("t-0"), 300.0)
    stream.at()
    assert stream.times.begun(stream.cut("t-0")) == 0.0
    assert not stream.table.late_before


def test_windows_count_each_task_once_and_scores_of_first_leases_alone():
    stream = Stream()
    first, second = stream.cut("t-0"), stream.cut("t-0")
    stream.done(first, 70.0, [window(0, 4, 4, 1.0, 8.0), window(1, 6, 6, 2.0, 6.0)])
    stream.done(first, 70.0, [window(0, 4, 4, 1.0, 8.0)])  # replayed: a ps replica was lost
    stream.done(second, 90.0, [window(1, 10, 10, 5.0, 99.0)], lease=2)
    assert stream.counts() == {0: 4, 1: 16}
    asked = stream.times.windows.ask()
    assert {n: s["m"][0].tolist() for n, s in asked.items()} == {"0": [1.0], "1": [2.0]}
    assert [w.loss for w in stream.times.windows.statuses()] == [2.0, 1.0]


def told(stream, is_end=False):
    return [(w.start, w.num_messages, w.metrics) for w in stream.times.tell(is_end)]


def test_a_window_is_told_once_when_it_is_over_and_its_metrics_are_known():
    stream = Stream()
    stream.done(stream.cut("t-0"), 130.0, [window(0, 10, 10), window(2, 1, 1)])
    assert told(stream) == []  # the watermark was not looked at
    stream.at()
    assert told(stream) == []  # nobody has made metrics of the sums
    stream.times.windows.ask()
    stream.times.windows.answered({"0": {"auc": 0.75}})
    assert told(stream) == [(0.0, 10, {"auc": 0.75})]
    assert told(stream) == []
    stream = stream.again()
    assert told(stream, is_end=True) == [(120.0, 1, {})]  # its sums were lost with the master
    assert [w.metrics for w in stream.times.windows.statuses()] == [{"auc": 0.75}, {}]


def test_windows_are_told_without_metrics_where_there_are_none():
    stream = Stream()
    stream.done(stream.cut("t-0"), 60.0, [window(0, 10, 10)])
    stream.times.windows.is_given_up = True
    stream.at()
    assert told(stream) == [(0.0, 10, {})]


def test_what_is_kept_of_windows_has_a_bound_and_none_is_told_twice():
    stream, seen = Stream(), []
    for number in range(2_000):
        stream.done(stream.cut("t-0"), 60.0 * number, [window(number, 10, 10)])
        seen += told(stream)
        assert len(stream.times.windows._windows) <= 600
    while stream.times.windows.is_behind:
        assert len(stream.times.windows.ask()) <= 32
        stream.times.windows.answered({})
    seen += told(stream, is_end=True)
    assert [start for start, *_ in seen] == [60.0 * number for number in range(2_000)]
    assert len(stream.times.windows.statuses()) <= 61
    stream.done(stream.cut("t-0"), 1e6, [window(5)])  # of a window that is forgotten
    assert told(stream, is_end=True) == []


def test_large_sums_are_asked_for_a_few_at_a_time_and_not_kept_of_windows_that_are_over():
    stream, large = Stream(), {"m": [np.zeros(100_000)]}
    for number in range(10):
        measured = MeasuredWindow(number, 5, 5, 0.0, 5, large)
        stream.done(stream.cut("t-0"), 60.0 * number, [measured])
    asked = []
    while stream.times.windows.is_behind:
        asked.append(sorted(stream.times.windows.ask(), key=int))
        stream.times.windows.answered({})
    assert asked == [[str(number)] for number in range(10)]
    told(stream, is_end=True)
    stream.done(stream.cut("t-0"), 600.0, [window(2, 7, 7, 1.0)])
    assert not stream.times.windows.is_behind
    assert stream.counts()[2] == 12
    assert not any(each.states for each in stream.times.windows._windows.values())


def test_metrics_of_windows_are_asked_for_with_those_of_training():
    stream = Stream()
    metrics = TrainingMetrics(stream.times.windows)
    task = stream.cut("t-0")
    stream.done(task, 70.0, [window(0, 10, 4, 1.0), window(1, 10, 5, 2.0)])
    report = TaskReport(
        task,
        1,
        Outcome.DONE,
        num_records=20,
        windows=(window(0, 10, 4, 1.0), window(1, 10, 5, 2.0)),
    )

    class Training:
        epoch = 0

    metrics.trained(Training, report)
    assert metrics.is_due(20.0, is_last=False)
    lease = metrics.lease(0, 20.0)
    sums = {name: arrays[0].tolist() for name, arrays in lease.metric_states.items()}
    assert sums == {"epoch/m": [3.0], "window/m": [3.0], "0/m": [1.0], "1/m": [2.0]}
    values = {"epoch/m": 0.5, "window/m": 0.5, "0/m": 0.1, "1/m": 0.2}
    assert metrics.answered(TaskReport(-1, lease.number, Outcome.DONE, metrics=values))
    assert metrics.measured.num_records == 9
    assert not metrics.is_behind
    assert [w.metrics for w in stream.times.windows.statuses()] == [{"m": 0.1}, {"m": 0.2}]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_lost_or_repeated_each_message_counts_once_and_is_judged_once(seed):
    """Messages out of order by up to a minute; tasks are done in any order, and some again."""
    draw, stream = random.Random(seed), Stream(lateness=20.0)
    wanted, judged, late = Counter(), {}, {}
    times_of, doing, finished, clock = {}, [], [], 1_000.0
    for now in range(300):
        clock += draw.uniform(0.0, 10.0)
        if draw.random() < 0.6:
            task = stream.cut(draw.choice(["t-0", "t-1"]))
            times_of[task] = np.array([clock - draw.uniform(0.0, 60.0) for _ in range(10)])
            doing.append(task)
        stream.at(float(now))
        if doing and draw.random() < 0.6:
            task = draw.choice(doing)
            before = stream.times.begun(task)
            assert judged.setdefault(task, before) == before
            found = (times_of[task] < before).tolist()
            assert late.setdefault(task, found) == found
            if draw.random() < 0.3:
                continue  # its worker is lost
            doing.remove(task)
            finished.append(task)
            wanted.update((times_of[task] // MINUTE).astype(int).tolist())
            report(stream, task, times_of[task], draw.choice([1, 2]))
        if finished and draw.random() < 0.1:
            task = draw.choice(finished)  # a ps replica is lost
            assert stream.times.begun(task) == judged[task]
            report(stream, task, times_of[task], 3)
        if draw.random() < 0.05:
            stream = stream.again()
        stream.times.tell(is_end=False)
    assert stream.counts() == wanted
    assert any(map(any, late.values()))


def report(stream, task, times, lease):
    read = TaskTimes(MINUTE)
    read.read(times, now=1e9)
    stream.done(task, read.newest, measured_windows(read.counts, {}), lease)


def test_a_minibatch_is_in_the_window_of_its_newest_message():
    times = TaskTimes(MINUTE)
    times.read(np.array([50.0, 10.0, 61.0, 5.0]), now=1e9)
    times.read(np.array([0.0, 130.0]), now=1e9)
    assert [times.window_after(n) for n in (2, 4, 5, 6, 99)] == [0, 1, 1, 2, 2]
    assert times.counts == {0: 3, 1: 1, 2: 1}  # a message without a time is in none
    assert times.newest == 130.0


def test_messages_of_the_future_are_of_now():
    times = TaskTimes(MINUTE)
    times.read(np.array([50.0, 1e12]), now=70.0)
    assert (times.newest, dict(times.counts)) == (70.0, {0: 1, 1: 1})


def test_messages_without_times_are_in_no_window():
    times = TaskTimes(MINUTE)
    times.read(np.zeros(3), now=70.0)
    assert times.window_after(3) is None
    assert measured_windows(times.counts, {}) == ()


def test_rows_expire_by_the_time_of_events(master_kit):
    """A stream that is read again, or is behind, is no reason for rows to go."""
    asked = []

    class Access:
        def expire(self, now_seconds=None):
            asked.append(now_seconds)
            return ""

    def interpreter_of(**settings):
        config = master_kit.config(num_ps=1, validation_data="", **settings)
        core = JobCore(config, make_tasks(config, [Shard("t-0", 0, 100)], [], []))
        run = lambda effect, line: effect()()  # noqa: E731
        return core, Interpreter(core, Access(), None, None, "job", print, print, run, print)

    core, interpreter = interpreter_of(training_data="kafka://b/t")
    interpreter.carry_out(ExpireRows())
    assert asked == []
    core.features.of(TimedStreamSource).times.watermark = 1_000.5
    interpreter.carry_out(ExpireRows())
    _, interpreter = interpreter_of(training_data="train/")
    interpreter.carry_out(ExpireRows())
    assert asked == [1_000, None]


def test_a_checkpoint_is_asked_for_by_the_report_that_passes_an_hour(master_kit):
    """Of what came in one piece, of whole hours, the source of the stream is not asked again."""
    settings = {"checkpoint_dir": Path("here"), "checkpoint_event_time": "1h"}
    config = master_kit.config(
        num_ps=1, training_data="kafka://b/t", validation_data="", **settings
    )
    shards = [Shard(f"t-{number}", 0, 0) for number in range(2)]
    play = master_kit.Play(JobCore(config, make_tasks(config, shards, [], [])))
    play.core.begin(0.0)
    play.register_ps(0)
    play.register(0)
    play.core.features.of(RecordSource).arrived([Shard(shard.name, 0, 90) for shard in shards], 1.0)
    for lease in [play.lease() for _ in range(6)]:  # three of each partition
        assert not play.do(WriteCheckpoint)
        hours = 0.25 + 0.5 * (lease.task.id // 2)
        play.report(lease, num_records=30, num_minibatches=3, model_version=1, time=3600 * hours)
    (asked,) = play.do(WriteCheckpoint)
    assert not asked.is_private


def test_checkpoints_are_due_at_multiples_of_event_time():
    settings = CheckpointSection(checkpoint_dir="here", checkpoint_event_time="1m")
    journal, facts, watermark = Journal(), [], [0.0]

    def schedule_of(journal):
        return CheckpointSchedule(journal, settings, event_seconds=lambda: watermark[0])

    schedule, due = schedule_of(journal), []
    for watermark[0] in (0.0, 90.0, 119.0, 120.0, 130.0, 400.0, 419.0, 420.5):
        schedule.begin_training(0.0)
        if schedule.is_due(1):
            due.append(watermark[0])
            schedule.begin(1)
        facts += json.loads(json.dumps(journal.take()))
        again = schedule_of(Journal())
        for fact in facts:
            again._journal.replay(fact)
        assert again.snapshot() == schedule.snapshot()
    assert due == [120.0, 400.0, 420.5]

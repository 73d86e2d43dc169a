"""Few things are told, once each, and of an even job nothing."""

import math

import pytest

from elasticdl.job import Label, Progress, Role, Usage
from elasticdl.observe.kinds import ParameterTables
from elasticdl.packages.advice.anomalies import RISE, SECONDS, SLOW, Anomalies


class Job:
    """Workers and ps replicas that are heard each second, and looked at."""

    def __init__(
        self, rates, busy=0.1, waits=0.0, slow_stage="compute", idle=(), does="", per_record=False
    ):
        self.anomalies = Anomalies(0.0)
        self.now, self.told = 0.0, []
        self.rates, self.busy, self.waits = list(rates), busy, waits
        self.slow_stage, self.idle = slow_stage, idle
        self.per_record = per_record  # whether each record takes the usual time in the usual stages
        self.does = does  # what the last worker does for most of its time
        self.records = [0.0] * len(self.rates)
        self.loss = 0.5

    def go_on(self, seconds=SECONDS):
        for _ in range(int(seconds)):
            self.now += 1.0
            for index, rate in enumerate(self.rates):
                self.records[index] += rate
                self.heard(index)
            self.anomalies.heard(Role.PS, 0, None, self.usage(train=self.busy, idle=1 - self.busy))
            self.told += self.anomalies.look(self.now, self.loss)
        return self.told

    def heard(self, index):
        stages = {"feed": 0.1 * self.now, "compute": 0.5 * self.now, "no task": 0.0}
        if self.per_record:
            stages = {name: s * self.rates[index] / 100 for name, s in stages.items()}
        if self.rates[index] < max(self.rates):
            stages[self.slow_stage] = 0.9 * self.now
            stages["staleness wait"] = self.now  # for what it computes itself
        idle = 0.5 if index in self.idle else 0.0
        progress = Progress(int(self.records[index]), 0.0, 0, 0, stages)
        train = 1.0 - self.waits - idle
        shares = {"train": train, "wait for parameters": self.waits, "idle": idle}
        if self.does and index == len(self.rates) - 1:
            shares |= {"train": 0.3 * train, self.does: 0.7 * train}
        self.anomalies.heard(Role.WORKER, index, progress, self.usage(**shares))

    def usage(self, **shares):
        seconds = {name: share * self.now for name, share in shares.items()}
        return Usage(0.0, Label.TRAIN, seconds, 0.0, 0, 0, 0)


def test_of_an_even_job_nothing_is_told():
    job = Job([100, 101, 99, 80])
    assert job.go_on(10 * SECONDS) == []


@pytest.mark.parametrize("stage", ["feed", "compute"])
def test_straggler_is_told_once_with_the_stage_that_makes_it_slow(stage):
    job = Job([100, 100, 100, 100 * SLOW - 10], slow_stage=stage)
    ((anomaly, text),) = job.go_on(5 * SECONDS)
    assert (anomaly.what, anomaly.process, anomaly.stage) == ("straggler", "worker 3", stage)
    assert text.startswith("worker 3 trains 40 records/s, the median is 100; its ")


def test_straggler_that_was_over_is_told_again():
    job = Job([100, 100, 100, 10])
    job.go_on(3 * SECONDS)
    job.rates[3] = 100
    job.go_on(3 * SECONDS)
    job.rates[3] = 10
    job.go_on(3 * SECONDS)
    assert len(job.told) == 2


def test_of_two_workers_none_is_a_straggler_and_of_one_without_a_task_neither():
    assert Job([100, 10]).go_on(3 * SECONDS) == []
    assert Job([100, 100, 100, 10], idle=(3,)).go_on(3 * SECONDS) == []


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ("metrics", "it spends time on metrics, and the other workers do not"),
        ("lease", "none of its stages takes longer than in the other workers"),
    ],
)
def test_of_a_stage_that_others_do_not_have_no_factor_is_told(stage, words):
    job = Job([100, 100, 100, 40], slow_stage=stage, per_record=True)
    ((_, text),) = job.go_on(3 * SECONDS)
    assert f"the median is 100; {words}. Look" in text


@pytest.mark.parametrize("label", ["evaluate", "checkpoint", "recover", "re-form"])
def test_a_worker_that_did_something_else_than_training_is_no_straggler(label):
    assert Job([100, 100, 100, 30], slow_stage="evaluate", does=label).go_on(3 * SECONDS) == []


def test_rising_loss_is_told_at_the_second_look_that_sees_it():
    job = Job([100])
    job.go_on(2 * SECONDS)
    job.loss = 0.5 * RISE + 0.01
    assert job.go_on() == []
    ((anomaly, _),) = job.go_on()
    assert anomaly.what == "rising loss"


def test_loss_that_is_no_number_is_told():
    job = Job([100])
    job.loss = math.nan
    ((anomaly, text),) = job.go_on(3 * SECONDS)
    assert anomaly.what == "loss is no number"
    assert anomaly.advice in text


def test_busy_ps_replica_is_told_only_if_workers_wait_for_it():
    assert Job([100] * 3, busy=0.95).go_on(3 * SECONDS) == []
    assert Job([100] * 3, waits=0.5).go_on(3 * SECONDS) == []
    ((anomaly, _),) = Job([100] * 3, busy=0.95, waits=0.5).go_on(3 * SECONDS)
    assert (anomaly.what, anomaly.process) == ("busy ps replica", "ps replica 0")


def test_process_that_is_gone_is_forgotten():
    job = Job([100, 100, 100, 10])
    job.go_on(2 * SECONDS)
    job.rates.pop()
    job.go_on(3 * SECONDS)
    assert (Role.WORKER, 3) not in job.anomalies._processes


class Said:
    """Two ps replicas, which are asked for rows."""

    def __init__(self, asked=(1, 1), busy=0.5):
        self.anomalies = Anomalies(0.0)
        self.told = []
        for second in range(1, int(4 * SECONDS) + 1):
            spent = {"train": busy * second, "idle": (1 - busy) * second}
            for index in (0, 1):
                usage = Usage(0.0, Label.TRAIN, spent, 0.0, 0, 0, 0)
                self.anomalies.heard(Role.PS, index, None, usage)
            pulled = [1_000 * second * rows for rows in asked]
            tables = ParameterTables(["user"], [50_000], [0], [0, 0], [0, 0], (), (), (), pulled)
            self.anomalies.tabled(tables)
            self.told += self.anomalies.look(float(second), 0.5)


def test_skewed_ps_replicas_are_told_if_the_one_that_is_asked_has_much_to_do():
    ((anomaly, text),) = Said(asked=(1, 5)).told
    assert (anomaly.what, anomaly.process) == ("skewed ps replicas", "ps replica 1")
    assert text.startswith("ps replica 1 is asked for 1.7 times as many rows as the mean. ")
    assert Said(asked=(4, 5)).told == []
    assert Said(asked=(1, 5), busy=0.1).told == []

"""A file that differs from the others is told, and none of data that are alike."""

import random

import pytest

from elasticdl.job import Outcome, Role, Shard, Task, TaskKind, TaskReport, Usage
from elasticdl.observe.anomalies import SECONDS, Anomalies
from elasticdl.observe.data_skew import (
    FEWEST_FILES,
    FEWEST_TASKS,
    NUM_BEFORE,
    OTHER_LOSS,
    SLOW,
    DataSkew,
)

RECORDS = 100
FILES = [f"part-{number}.csv" for number in range(8)]


class Job:
    """Workers in turn report tasks of files in a drawn order."""

    def __init__(self, losses=None, times=None, files=FILES, num_workers=2, seed=5):
        self.skew, self.now, self.num_tasks = DataSkew(), 0.0, 0
        self.losses, self.times = losses or {}, times or {}
        self.files, self.num_workers = files, num_workers
        self.random = random.Random(seed)

    def loss(self, name):
        return 0.6 * self.losses.get(name, 1.0) * self.random.uniform(0.8, 1.2)

    def seconds(self, worker, name):
        return self.times.get(name, 1.0) * self.random.uniform(0.8, 1.2)

    def report(self, worker, name, kind=TaskKind.TRAINING, outcome=Outcome.DONE):
        task = Task(self.num_tasks, kind, Shard(name, 0, RECORDS))
        loss_sum = RECORDS * self.loss(name)
        report = TaskReport(
            task.id, 1, outcome, num_records=RECORDS, loss_sum=loss_sum, end_index=4
        )
        self.skew.reported(worker, task, report, self.now)
        self.num_tasks += 1

    def train(self, num_epochs=20, num_tasks_of_a_file=2):
        clocks = [0.0] * self.num_workers
        for _ in range(num_epochs):
            order = self.files * num_tasks_of_a_file
            self.random.shuffle(order)
            for name in order:
                worker = clocks.index(min(clocks))
                clocks[worker] += self.seconds(worker, name)
                self.now = clocks[worker]
                self.report(worker, name)
        return self.told()

    def told(self):
        return {anomaly.what: anomaly.source for anomaly, _ in self.skew.found()}


@pytest.mark.parametrize("seed", range(20))
def test_of_files_that_are_alike_nothing_is_told(seed):
    assert Job(seed=seed).train() == {}


@pytest.mark.parametrize("multiple", [1.3 * OTHER_LOSS, 0.7 / OTHER_LOSS])
def test_file_of_another_loss_is_told_whether_it_is_higher_or_lower(multiple):
    assert Job(losses={FILES[3]: multiple}).train() == {"file of other loss": FILES[3]}


def test_file_whose_records_take_longer_is_told():
    assert Job(times={FILES[2]: 1.5 * SLOW}).train() == {"slow file": FILES[2]}


def test_smaller_differences_are_not_told():
    usual = {FILES[1]: 0.7 * OTHER_LOSS}
    assert Job(losses=usual, times={FILES[1]: 0.7 * SLOW}).train() == {}


def test_the_file_that_differs_most_is_named_and_the_others_are_counted():
    job = Job(times={FILES[0]: 5.0, FILES[4]: 8.0})
    job.train()
    ((anomaly, text),) = job.skew.found()
    assert anomaly.source == FILES[4]
    assert text.startswith(f"a record of '{FILES[4]}' (and of 1 more) takes ")
    assert anomaly.advice in text


def test_slow_worker_makes_no_file_slow():
    class OneIsSlow(Job):
        def seconds(self, worker, name):
            return super().seconds(worker, name) * (10.0 if worker == 1 else 1.0)

    assert OneIsSlow(num_workers=3).train() == {}


def test_loss_that_falls_is_no_difference_between_files():
    class Learns(Job):
        def loss(self, name):
            return super().loss(name) * 0.99**self.num_tasks

    assert Learns().train() == {}


def test_of_files_that_are_read_one_after_the_other_no_loss_is_told():
    """The first one was trained on by a model that knew nothing."""

    class Learns(Job):
        def loss(self, name):
            return super().loss(name) * (0.03 + 0.9**self.num_tasks)

    job = Learns()
    for name in FILES:
        for _ in range(10 * FEWEST_TASKS):
            job.now += 1.0
            job.report(0, name)
    assert job.told() == {}


def test_losses_below_zero_say_nothing():
    class Likelihood(Job):
        def loss(self, name):
            return -super().loss(name)

    assert Likelihood(losses={FILES[3]: 9.0}).train() == {}


def test_of_few_files_and_of_few_tasks_nothing_is_told():
    slow = {FILES[0]: 9.0}
    assert Job(times=slow, files=FILES[: FEWEST_FILES - 1]).train() == {}
    few = NUM_BEFORE // len(FILES)
    assert Job(times=slow).train(num_epochs=few, num_tasks_of_a_file=1) == {}


def test_pauses_and_other_tasks_between_training_tasks_cost_no_file_anything():
    class Evaluates(Job):
        def report(self, worker, name, *rest):
            if name == FILES[5]:
                self.now += 50.0
                super().report(worker, "validation.csv", TaskKind.EVALUATION)
                self.now += 1.0
            super().report(worker, name, *rest)

    job = Evaluates(num_workers=1)
    for number in range(300):
        job.now += 1.0
        job.report(0, FILES[number % len(FILES)])
    assert job.told() == {}


def test_task_that_failed_is_no_measure_of_its_file():
    job = Job()
    job.train()
    for number in range(50):
        job.now += 100.0
        job.report(0, FILES[1], TaskKind.TRAINING, Outcome.FAILED)
        job.now += 1.0
        job.report(0, FILES[number % len(FILES)])
    assert job.told() == {}


def test_what_workers_report_is_told_once_with_the_other_anomalies():
    job = Job(times={FILES[2]: 2 * SLOW})
    anomalies, told = Anomalies(0.0), []
    job.skew = anomalies
    job.told = dict
    for look in range(1, 5):
        job.train(num_epochs=10)
        usage = Usage(0.0, "train", {}, float(look), 0, 0, 0)
        for worker in range(job.num_workers):
            anomalies.heard(Role.WORKER, worker, None, usage)
        told += anomalies.look(look * SECONDS, None)
    assert [(anomaly.what, anomaly.source) for anomaly, _ in told] == [("slow file", FILES[2])]


def test_worker_that_is_gone_is_forgotten():
    job = Job()
    job.train()
    job.skew.lost(1)
    assert 1 not in job.skew._times
    assert 1 not in job.skew._reported

"""What is rare is counted, also across masters."""

from elasticdl.job import COUNTERS, Outcome, TaskReport
from elasticdl.master.counters import Counters
from elasticdl.master.journal import Journal


def done(lease=1, num_minibatches=4, end_index=4, skipped=()):
    return TaskReport(
        7,
        lease,
        Outcome.DONE,
        num_minibatches=num_minibatches,
        end_index=end_index,
        skipped=skipped,
    )


def test_every_counter_is_there_from_the_start():
    assert Counters(Journal()).values == dict.fromkeys(COUNTERS, 0)


def test_a_task_that_goes_on_past_its_start_is_counted():
    counters = Counters(Journal())
    counters.finished(done())
    counters.finished(done(lease=2))
    counters.finished(done(lease=2, num_minibatches=3, skipped=(1,)))
    assert counters.values["resumed_tasks"] == 0
    counters.finished(done(lease=2, num_minibatches=3))
    assert counters.values["resumed_tasks"] == 1


def test_what_replicas_say_is_a_total():
    counters = Counters(Journal())
    counters.of_replicas({"duplicates": 3, "gaps": 1})
    counters.of_replicas({"duplicates": 5, "gaps": 1})
    assert (counters.values["duplicates"], counters.values["gaps"]) == (5, 1)


def test_another_master_goes_on_counting():
    counters = Counters(Journal())
    counters.refused_report()
    counters.resumed_job()
    after = Counters(Journal())
    after.restore(counters.snapshot())
    after.resumed_job()
    assert (after.values["stale_reports"], after.values["resumed_masters"]) == (1, 2)

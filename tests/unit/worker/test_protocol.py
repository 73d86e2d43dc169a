"""The life of a lease, without threads."""

from dataclasses import replace

import pytest

from elasticdl.errors import (
    AuthenticationError,
    DataError,
    GapError,
    MemoryLimitError,
    StaleLeaseError,
    StaleParametersError,
    UnavailableError,
)
from elasticdl.job import Lease, Outcome, Shard, Task, TaskKind, TaskReport, Wait
from elasticdl.worker.protocol import Arrival, LeaseProtocol, Ruling, Stage, rule
from elasticdl.worker.running import Running

PIPELINE = (Stage.PREPARE, Stage.COMPUTE, Stage.PUSH_FROM_COMPUTE, Stage.COMMIT)


def running(task_id=1, number=1, kind=TaskKind.TRAINING):
    return Running(Lease(Task(task_id, kind, Shard("a", 0, 100)), number))


def protocol(max_in_flight=2, is_synchronous=False):
    return LeaseProtocol(max_in_flight, is_synchronous)


def done(lease):
    return TaskReport(lease.lease.task.id, lease.lease.number, Outcome.DONE)


def test_a_report_waits_only_for_a_request_that_comes_when_what_is_leased_is_fed():
    leases = protocol()
    lease = replace(running().lease, report_may_wait=True)
    waits, awaited = Running(lease), running()
    report = done(waits)
    assert not leases.keeps(waits, report)  # no task was asked for
    leases.answered(lease)
    assert not leases.keeps(awaited, report)
    assert not leases.keeps(waits, waits.returned())
    assert leases.keeps(waits, report)
    assert leases.asks() == [report]
    assert not leases.keeps(waits, report)  # the answer may be long in coming
    leases.answered(Wait(0.1))
    assert not leases.keeps(waits, report)
    assert leases.asks() == []


@pytest.mark.parametrize(
    ("number", "is_synchronous", "asks"),
    [(1, False, False), (2, False, True), (1, True, True), (2, True, True)],
)
def test_holders_are_asked_where_to_begin_unless_nobody_can_have_begun(
    number, is_synchronous, asks
):
    lease = running(number=number).lease
    assert protocol(is_synchronous=is_synchronous).asks_where_to_begin(lease) == asks


def test_holders_are_never_asked_about_a_task_that_does_not_train():
    lease = running(number=2, kind=TaskKind.EVALUATION).lease
    assert not protocol(is_synchronous=True).asks_where_to_begin(lease)


def test_no_more_steps_are_in_flight_than_may_be():
    leases = protocol(max_in_flight=2)
    first, second = running(1), running(2)
    assert leases.may_pull(first, [0])
    assert leases.may_pull(second, [0])
    assert not leases.may_pull(second, [1])
    leases.landed(first, 0)
    assert leases.may_pull(second, [1])
    assert leases.num_in_flight == 2


def test_a_step_that_lands_twice_makes_room_for_one_only():
    leases = protocol(max_in_flight=2)
    lease = running()
    for index in range(2):
        assert leases.may_pull(lease, [index])
    leases.landed(lease, 0)
    leases.landed(lease, 0)
    assert leases.may_pull(lease, [2])
    assert not leases.may_pull(lease, [3])


def test_a_step_that_never_took_off_makes_no_room():
    leases = protocol(max_in_flight=1)
    assert leases.may_pull(running(1), [0])
    leases.landed(running(2), 0)
    assert not leases.may_pull(running(2), [1])


def test_a_pull_is_pending_from_when_it_has_to_wait_until_it_may_go():
    leases = protocol(max_in_flight=1)
    lease = running()
    assert leases.may_pull(lease, [0], "first")
    assert leases.pending is None
    assert not leases.may_pull(lease, [1], "second")
    assert leases.pending == "second"
    leases.landed(lease, 0)
    assert leases.may_pull(lease, [1], "second")
    assert leases.pending is None


def test_a_living_lease_is_computed_and_then_finished():
    leases = protocol()
    lease = running()
    assert leases.arrives(lease, None) is Arrival.STEP
    assert leases.arrives(lease, done(lease)) is Arrival.FINISH


def test_minibatches_of_a_lease_that_is_over_are_dropped_and_its_end_is_passed_on():
    leases = protocol()
    lease = running()
    leases.failed(Stage.COMMIT, lease, GapError("lost minibatches"))
    assert not leases.goes_on(lease)
    assert leases.arrives(lease, None) is Arrival.DROP
    assert leases.arrives(lease, done(lease)) is Arrival.PASS


def test_an_end_that_is_no_success_is_passed_on_without_being_finished():
    leases = protocol()
    lease = running(kind=TaskKind.EVALUATION)
    failure = lease.failure(DataError("torn"))
    assert leases.arrives(lease, failure) is Arrival.PASS
    assert leases.ends(lease, failure)


def test_what_feed_gave_out_before_it_failed_is_worked_off():
    leases = protocol()
    lease = running()
    assert leases.failed(Stage.FEED, lease, ValueError("bad record")) is Ruling.FAIL
    assert leases.goes_on(lease)
    assert leases.arrives(lease, None) is Arrival.STEP
    assert leases.ends(lease, lease.failure(ValueError("bad record")))


@pytest.mark.parametrize("stage", PIPELINE)
def test_an_error_of_the_users_ends_its_lease_wherever_it_comes_up(stage):
    leases = protocol()
    lease, other = running(1), running(2)
    error = MemoryLimitError("full") if stage is Stage.COMMIT else ValueError("bad")
    assert leases.failed(stage, lease, error) is Ruling.FAIL
    assert not leases.goes_on(lease)
    assert leases.goes_on(other)


def test_a_lease_whose_replica_lost_minibatches_is_given_back_once_and_not_reported_done():
    leases = protocol()
    lease = running()
    assert leases.failed(Stage.COMMIT, lease, GapError("lost")) is Ruling.RETURN
    assert leases.ends(lease, lease.returned())
    assert not leases.ends(lease, lease.returned())
    assert not leases.ends(lease, done(lease))


def test_nothing_is_said_of_a_lease_that_somebody_else_has():
    leases = protocol()
    lease = running()
    assert leases.failed(Stage.COMMIT, lease, StaleLeaseError("newer")) is Ruling.LOST
    assert not leases.ends(lease, done(lease))


def test_a_failure_is_reported_in_its_order_and_nothing_after_it():
    leases = protocol()
    lease = running()
    assert leases.failed(Stage.COMPUTE, lease, ValueError("bad")) is Ruling.FAIL
    # Minibatches before it are in commit still; its report passes through behind them.
    failure = lease.failure(ValueError("bad"))
    assert leases.arrives(lease, failure) is Arrival.PASS
    assert leases.ends(lease, failure)
    assert not leases.ends(lease, done(lease))


def test_a_lease_that_was_worked_off_is_reported():
    leases = protocol()
    lease = running()
    assert leases.ends(lease, done(lease))


def test_parameters_that_came_too_late_are_computed_again_in_synchronous_training():
    leases = protocol(max_in_flight=1, is_synchronous=True)
    lease = running()
    error = StaleParametersError("too old")
    assert leases.pushes_from_compute(lease)
    assert leases.failed(Stage.PUSH_FROM_COMPUTE, lease, error) is Ruling.RECOMPUTE
    assert leases.goes_on(lease)


def test_parameters_that_came_too_late_otherwise_give_the_lease_back():
    leases = protocol()
    lease = running()
    assert not leases.pushes_from_compute(lease)
    assert leases.failed(Stage.COMMIT, lease, StaleParametersError("too old")) is Ruling.RETURN


def test_a_gap_that_compute_meets_is_left_for_commit_to_give_back_in_order():
    leases = protocol(is_synchronous=True)
    lease = running()
    error = GapError("lost")
    assert leases.failed(Stage.PUSH_FROM_COMPUTE, lease, error) is Ruling.COMMIT_DECIDES
    assert leases.goes_on(lease)
    assert leases.failed(Stage.COMMIT, lease, error) is Ruling.RETURN


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("error", [UnavailableError("away"), AuthenticationError("token")])
def test_a_holder_that_cannot_be_reached_ends_the_worker_and_not_the_task(stage, error):
    assert rule(stage, error) is Ruling.END_WORKER


@pytest.mark.parametrize(
    ("stage", "ruling"),
    [
        (Stage.PREPARE, Ruling.FAIL),
        (Stage.COMPUTE, Ruling.END_WORKER),
        (Stage.PUSH_FROM_COMPUTE, Ruling.FAIL),
        (Stage.COMMIT, Ruling.FAIL),
    ],
)
def test_replicas_that_are_full_fail_the_task_that_asked_for_rows(stage, ruling):
    assert rule(stage, MemoryLimitError("full")) is ruling


def test_minibatches_that_wait_for_others_of_their_push_leave_room_for_these():
    leases = LeaseProtocol(max_in_flight=1, is_synchronous=False, push_steps=4)
    lease = running()
    assert leases.steps_of_push(lease) == 4
    assert [leases.may_pull(lease, [index]) for index in range(5)] == [True] * 4 + [False]


def test_later_leases_and_suspects_push_each_minibatch_by_itself():
    leases = LeaseProtocol(max_in_flight=1, is_synchronous=False, push_steps=4)
    for changes in ({"number": 2}, {"is_suspect": True}):
        lease = Running(replace(running().lease, **changes))
        assert leases.steps_of_push(lease) == 1
        assert [leases.may_pull(lease, [index]) for index in range(2)] == [True, False]
        leases.landed(lease, 0)


def exchanging(number):
    return LeaseProtocol(max_in_flight=3, is_synchronous=False, exchange_minibatches=number)


def test_minibatches_that_are_exchanged_together_cost_as_many_updates_of_staleness_at_most():
    leases, lease = exchanging(4), running()
    assert leases.may_pull(lease, [0, 1, 2, 3])
    assert not leases.may_pull(lease, [4, 5, 6, 7])
    for kept in (1, 2):
        assert leases.is_to_push(lease, kept) is (kept == 2), "then the pull that waits is made"
    for index in (0, 1):
        leases.landed(lease, index)
    assert leases.may_pull(lease, [4, 5, 6, 7])
    assert leases.num_in_flight == 3 - 1 + 4
    assert [leases.is_to_push(lease, kept) for kept in (1, 2, 3, 4)] == [False] * 3 + [True]


def test_nothing_that_is_computed_waits_when_nothing_is_under_way():
    leases, lease = exchanging(4), running()
    assert leases.may_pull(lease, [0, 1])
    assert [leases.is_to_push(lease, kept) for kept in (1, 2)] == [False, True]
    lease.is_over = True
    assert leases.is_to_push(lease, 1)


def test_any_lease_exchanges_several_minibatches_but_that_of_a_suspect():
    leases = exchanging(4)
    later, suspect = (
        Running(replace(running().lease, **changes))
        for changes in ({"number": 2}, {"is_suspect": True})
    )
    assert [leases.steps_of_pull(lease) for lease in (later, suspect)] == [4, 1]
    assert [leases.steps_of_push(lease) for lease in (later, suspect)] == [4, 1]


def test_minibatches_of_a_suspect_go_through_one_by_one():
    leases = protocol()
    lease = Running(replace(running().lease, is_suspect=True))
    assert leases.may_feed(lease)
    leases.fed(lease)
    assert not leases.may_feed(lease)
    leases.landed(lease, 0)
    assert leases.may_feed(lease)


def test_minibatches_of_any_other_lease_are_fed_ahead():
    leases = protocol()
    lease = running()
    for _ in range(5):
        assert leases.may_feed(lease)
        leases.fed(lease)
    leases.landed(lease, 0)
    assert leases.may_feed(lease)

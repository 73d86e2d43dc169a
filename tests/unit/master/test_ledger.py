import pytest

from elasticdl.errors import StateError
from elasticdl.job import Outcome, Shard
from elasticdl.master.journal import Journal
from elasticdl.master.ledger import Ledger, Settled
from elasticdl.master.tasks import JobTasks, TaskTable

W0, W1 = 0, 1


def make_ledger(num_tasks=3, num_epochs=2, shuffle=False, max_retries=3, seed=0, validation=2):
    training = TaskTable([Shard("a", 0, 30 * num_tasks)], 30)
    tasks = JobTasks(
        training, TaskTable([Shard("v", 0, 30 * validation)], 30), TaskTable([], 30), num_epochs
    )
    ledger = Ledger(
        tasks,
        Journal(),
        seed=seed,
        shuffle=shuffle,
        max_retries=max_retries,
        minibatch_size=10,
    )
    return ledger, tasks


def lease(ledger, worker_id=W0, request=0):
    lease = ledger.lease(worker_id, request)
    return lease.task.id, lease.number


def test_tasks_are_leased_in_order_over_epochs():
    ledger, _ = make_ledger()
    assert [lease(ledger) for _ in range(6)] == [(id, 1) for id in range(6)]
    assert ledger.next_id() is None


def test_shuffled_order_is_a_permutation_that_the_seed_decides():
    def order(seed):
        ledger, _ = make_ledger(num_tasks=50, shuffle=True, seed=seed)
        return [lease(ledger)[0] for _ in range(100)]

    first, again, other = order(1), order(1), order(2)
    assert first == again != other
    assert sorted(first[:50]) == list(range(50))
    assert sorted(first[50:]) == list(range(50, 100))
    assert [id - 50 for id in first[50:]] != first[:50]


def test_next_epoch_does_not_wait_for_stragglers():
    ledger, _ = make_ledger(num_tasks=2)
    held = lease(ledger)
    lease(ledger)
    assert lease(ledger) == (2, 1)
    assert ledger.epochs.first_open == 0
    ledger.report(W0, *held, Outcome.DONE)
    assert ledger.epochs.settled == [1, 0]


def test_lost_worker_returns_its_tasks_to_the_front():
    ledger, _ = make_ledger()
    lease(ledger, W0)
    lease(ledger, W1)
    lease(ledger, W0)
    assert ledger.worker_lost(W0) == [0, 2]
    assert [lease(ledger, W1) for _ in range(3)] == [(0, 2), (2, 2), (3, 1)]


def test_returned_task_costs_no_retry():
    ledger, _ = make_ledger(max_retries=0)
    for number in range(1, 9, 2):
        assert lease(ledger) == (0, number)
        assert ledger.report(W0, 0, number, Outcome.RETURNED) is Settled.REQUEUED
        assert lease(ledger) == (0, number + 1)
        ledger.worker_lost(W0)
    ledger.report(W0, *lease(ledger), Outcome.DONE)
    assert not ledger.aside.quarantined


def test_failing_task_is_set_aside_after_its_retries():
    ledger, _ = make_ledger(num_tasks=1, num_epochs=1, max_retries=2)
    for _ in range(2):
        assert ledger.report(W0, *lease(ledger), Outcome.FAILED, "boom") is Settled.REQUEUED
    assert ledger.report(W0, *lease(ledger), Outcome.FAILED, "boom at 7") is Settled.QUARANTINED
    assert ledger.aside.quarantined == {0: "boom at 7"}
    assert ledger.next_id() is None
    assert ledger.is_trained  # nothing is left to wait for; the job will fail
    assert ledger.training_records_done == 0


def test_late_report_of_an_old_lease_is_refused():
    ledger, _ = make_ledger()
    old = lease(ledger, W0)
    ledger.worker_lost(W0)
    new = lease(ledger, W1)
    assert ledger.report(W0, *old, Outcome.DONE) is Settled.STALE
    assert ledger.report(W1, *new, Outcome.DONE) is Settled.DONE
    assert ledger.report(W1, *new, Outcome.DONE) is Settled.STALE
    assert ledger.training_records_done == 30


def test_report_by_another_worker_is_refused():
    ledger, _ = make_ledger()
    held = lease(ledger, W0)
    assert ledger.report(W1, *held, Outcome.DONE) is Settled.STALE


def test_repeated_request_finds_its_lease():
    ledger, _ = make_ledger()
    held = lease(ledger, W0, request=7)
    assert ledger.lease_of_request(W0, 7) == held
    assert ledger.lease_of_request(W0, 8) is None
    assert ledger.lease_of_request(W1, 7) is None


def test_queued_tasks_come_before_training():
    ledger, tasks = make_ledger()
    lease(ledger, W1)
    ledger.worker_lost(W1)
    ledger.queue(tasks.evaluation_ids(0))
    leased = [lease(ledger)[0] for _ in range(3)]
    assert leased == [*tasks.evaluation_ids(0), 0]


def test_lost_evaluation_task_is_done_again_first():
    ledger, tasks = make_ledger()
    ledger.queue(tasks.evaluation_ids(0))
    first, second = tasks.evaluation_ids(0)
    lease(ledger, W0)
    ledger.worker_lost(W0)
    assert [lease(ledger, W1), lease(ledger, W1)] == [(first, 2), (second, 1)]


def test_dropped_tasks_are_not_leased():
    ledger, tasks = make_ledger()
    ledger.queue(tasks.evaluation_ids(0))
    ledger.drop(tasks.evaluation_ids(0))
    assert lease(ledger) == (0, 1)


def test_counts_follow_the_tasks():
    ledger, _ = make_ledger(num_tasks=2, num_epochs=1)
    assert (ledger.num_todo, ledger.num_doing, ledger.num_done) == (2, 0, 0)
    held = lease(ledger)
    assert (ledger.num_todo, ledger.num_doing, ledger.num_done) == (1, 1, 0)
    ledger.report(W0, *held, Outcome.DONE)
    assert (ledger.num_todo, ledger.num_doing, ledger.num_done) == (1, 0, 1)
    assert ledger.training_records_done == 30
    assert not ledger.is_trained


def test_journal_of_another_order_is_refused():
    ledger, _ = make_ledger(num_tasks=20, shuffle=True)
    with pytest.raises(StateError, match="was not the next one"):
        ledger._journal.replay(["lease", 19 - ledger.next_id(), W0, 1, 1])


def test_unknown_fact_is_refused():
    ledger, _ = make_ledger()
    with pytest.raises(StateError, match="does not fit together"):
        ledger._journal.replay(["levitate", 1])


# --- suspects -------------------------------------------------------------------------------------


def with_suspects():
    """A ledger whose worker 0 has died of one of the tasks 0 and 1; worker 1 has done task 2."""
    ledger, _ = make_ledger(num_tasks=6, num_epochs=1, max_retries=1)
    lease(ledger, W0)
    lease(ledger, W0)
    ledger.report(W1, *lease(ledger, W1), Outcome.DONE)
    assert ledger.worker_lost(W0, are_suspects=True) == [0, 1]
    return ledger


def test_suspect_goes_to_a_worker_that_has_done_a_task_and_holds_none():
    ledger = with_suspects()
    assert ledger.next_id(W1) == 0
    assert ledger.lease(W1, 0).is_suspect
    newcomer = 7
    assert ledger.next_id(newcomer) == 3


def test_worker_that_holds_a_task_lets_go_of_it_before_it_gets_a_suspect():
    ledger = with_suspects()
    newcomer = 7
    held = lease(ledger, newcomer), lease(ledger, newcomer)
    ledger.report(newcomer, *held[0], Outcome.DONE)
    assert ledger.next_id(newcomer) is None
    ledger.report(newcomer, *held[1], Outcome.DONE)
    assert ledger.next_id(newcomer) == 0


def test_worker_that_holds_a_suspect_gets_nothing_beside_it():
    ledger = with_suspects()
    lease(ledger, W1)
    assert ledger.next_id(W1) is None
    assert ledger.next_id(7) == 3


def test_newcomer_gets_a_suspect_when_there_is_nothing_else():
    ledger = with_suspects()
    for newcomer in (7, 8, 9):
        ledger.report(newcomer, *lease(ledger, newcomer), Outcome.DONE)
    assert ledger.next_id(10) == 0


def test_suspect_that_is_done_was_innocent():
    ledger = with_suspects()
    ledger.report(W1, *lease(ledger, W1), Outcome.DONE)
    assert not ledger.is_suspect(0)
    assert ledger.is_suspect(1)
    assert not ledger.aside.quarantined


def test_task_that_is_blamed_too_often_is_set_aside():
    ledger = with_suspects()
    lease(ledger, W1)
    assert ledger.blame(0, "worker 1 crashed") is Settled.REQUEUED
    assert ledger.worker_lost(W1) == []
    assert lease(ledger, W1) == (1, 2)
    ledger.report(W1, 1, 2, Outcome.DONE)
    assert lease(ledger, W1) == (0, 3)
    assert ledger.blame(0, "worker 1 crashed again") is Settled.QUARANTINED
    assert ledger.aside.quarantined == {0: "worker 1 crashed again"}
    assert ledger.next_id(W1) == 3


def test_suspect_whose_worker_is_killed_from_outside_pays_nothing_and_stays_one():
    ledger = with_suspects()
    for number in range(2, 9):
        assert lease(ledger, W1) == (0, number)
        ledger.worker_lost(W1)
    assert ledger.is_suspect(0)
    assert not ledger.aside.quarantined


def test_suspect_of_an_evaluation_waits_for_replays_and_can_be_dropped():
    ledger, tasks = make_ledger(num_epochs=1)
    for _ in range(3):
        ledger.report(W0, *lease(ledger), Outcome.DONE)
    evaluation = tasks.evaluation_ids(0)
    ledger.queue(evaluation)
    lease(ledger)
    ledger.worker_lost(W0, are_suspects=True)
    assert ledger.next_id(W0) == evaluation[0]
    ledger.replay([1])
    assert lease(ledger) == (1, 2)
    ledger.report(W0, 1, 2, Outcome.DONE)
    assert ledger.next_id(W0) == evaluation[0]
    ledger.drop(evaluation)
    assert ledger.next_id(W0) is None
    assert ledger.is_idle


def test_suspects_are_known_after_a_restart_of_the_master():
    ledger = with_suspects()
    again, _ = make_ledger(num_tasks=6, num_epochs=1, max_retries=1)
    again.restore(ledger.snapshot())
    assert again.snapshot() == ledger.snapshot()
    assert (again.next_id(W1), again.is_suspect(1)) == (0, True)

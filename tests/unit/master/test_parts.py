"""The small machines: relaunch, evaluation, checkpoints, membership, proof."""

import numpy as np
import pytest

from elasticdl.errors import ModelError
from elasticdl.job import Role, Shard, TaskAudit
from elasticdl.job.status import EpochLedger
from elasticdl.launchers.base import ExitReason
from elasticdl.master.evaluation import Evaluations, decode_states, encode_states
from elasticdl.master.journal import Journal
from elasticdl.master.membership import START_TIMEOUT_SECONDS, Membership
from elasticdl.master.missing_tasks import Made
from elasticdl.master.parameters.proof import prove
from elasticdl.master.parameters.schedule import to_delete
from elasticdl.master.relaunch import (
    Counts,
    Decision,
    EndedProcess,
    RelaunchVerdict,
    decide,
    describe,
    may_be_of_task,
)
from elasticdl.master.tasks import JobTasks, TaskTable
from elasticdl.runtime.process import OWN_FAILURE_EXIT_CODE, TIMED_OUT_EXIT_CODE

# --- relaunch -----------------------------------------------------------------------------------


def verdict(reason, code, tasks_done=3, role=Role.WORKER, was_ready=True, **counts):
    given = {
        "failures": 0,
        "max_relaunches": 2,
        "job_tasks_done": 5,
        "same_message_before": False,
        "others_present": 1,
        **counts,
    }
    found = decide(EndedProcess(role, reason, code, was_ready, tasks_done), Counts(**given))
    return found.decision, found.is_failure


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (ExitReason.KILLED, -9),
        (ExitReason.KILLED, 143),
        (ExitReason.NODE_LOST, None),
        (ExitReason.UNKNOWN, None),
        (ExitReason.FINISHED, 0),
    ],
)
def test_preemption_costs_nothing(reason, code):
    assert verdict(reason, code, failures=99) == (Decision.RELAUNCH, False)


@pytest.mark.parametrize(
    ("reason", "code"),
    [(ExitReason.FAILED, 1), (ExitReason.OUT_OF_MEMORY, -9), (ExitReason.KILLED, -11)],
)
def test_failures_are_counted(reason, code):
    assert verdict(reason, code) == (Decision.RELAUNCH, True)
    assert verdict(reason, code, failures=2) == (Decision.GIVE_UP, True)
    assert verdict(reason, code, failures=2, others_present=0) == (Decision.FAIL_JOB, True)


OF_TASKS = [
    (ExitReason.KILLED, -6),
    (ExitReason.FAILED, 139),  # as a container says SIGSEGV
    (ExitReason.OUT_OF_MEMORY, -9),
    (ExitReason.FAILED, 3),
    (ExitReason.FINISHED, 0),
    (ExitReason.FAILED, TIMED_OUT_EXIT_CODE),
]
NOT_OF_TASKS = [
    (ExitReason.KILLED, -9),
    (ExitReason.KILLED, 143),
    (ExitReason.NODE_LOST, None),
    (ExitReason.UNKNOWN, None),
    (ExitReason.FAILED, OWN_FAILURE_EXIT_CODE),
]


@pytest.mark.parametrize(("reason", "code"), OF_TASKS)
def test_crash_exit_memory_and_time_may_be_of_the_task(reason, code):
    assert may_be_of_task(reason, code)


@pytest.mark.parametrize(("reason", "code"), NOT_OF_TASKS)
def test_kill_from_outside_and_own_failure_are_never_of_the_task(reason, code):
    assert not may_be_of_task(reason, code)


def test_death_of_a_task_spares_the_relaunches_while_the_job_gets_on():
    def died(tasks, deaths):
        ended = EndedProcess(Role.WORKER, ExitReason.KILLED, -6, True, 0, is_of_task=True)
        found = decide(ended, Counts(2, 2, tasks, False, 0, deaths_of_tasks=deaths))
        return found.decision, found.is_failure

    assert died(tasks=5, deaths=4) == (Decision.RELAUNCH, False)
    assert died(tasks=5, deaths=5) == (Decision.FAIL_JOB, True)


def test_death_of_the_look_at_the_data_spares_the_relaunches():
    ended = EndedProcess(Role.WORKER, ExitReason.KILLED, -6, True, 0, is_of_look=True)
    assert decide(ended, Counts(2, 2, 0, False, 0)) == RelaunchVerdict(Decision.RELAUNCH, False)


def test_process_that_is_killed_before_it_gets_anywhere_is_a_failure():
    assert verdict(ExitReason.KILLED, -9, tasks_done=0) == (Decision.RELAUNCH, True)


def test_same_failure_again_before_any_task_fails_the_job():
    again = {"same_message_before": True, "job_tasks_done": 0, "tasks_done": 0}
    assert verdict(ExitReason.FAILED, 1, **again) == (Decision.FAIL_JOB, True)
    assert verdict(ExitReason.KILLED, -9, **again) == (Decision.RELAUNCH, True)
    again["job_tasks_done"] = 1
    assert verdict(ExitReason.FAILED, 1, **again) == (Decision.RELAUNCH, True)


def test_ps_replica_that_was_killed_is_always_replaced():
    spent = {"role": Role.PS, "was_ready": True, "tasks_done": 0, "failures": 9}
    assert verdict(ExitReason.KILLED, -9, **spent) == (Decision.RELAUNCH, False)
    assert verdict(ExitReason.NODE_LOST, None, **spent) == (Decision.RELAUNCH, False)
    assert verdict(ExitReason.OUT_OF_MEMORY, -9, **spent) == (Decision.FAIL_JOB, True)


def test_ps_replica_that_was_not_ready_is_replaced_or_missed():
    ended = {"role": Role.PS, "was_ready": False, "tasks_done": 0}
    assert verdict(ExitReason.FAILED, 1, **ended) == (Decision.RELAUNCH, True)
    assert verdict(ExitReason.FAILED, 1, failures=2, **ended) == (Decision.FAIL_JOB, True)


def test_verdict_says_why():
    found = decide(
        EndedProcess(Role.WORKER, ExitReason.FAILED, 1, True, 0),
        Counts(2, 2, 1, False, others_present=0),
    )
    why = "--max_relaunches=2 are spent, and no other worker is left"
    assert found == RelaunchVerdict(Decision.FAIL_JOB, True, why)


def test_end_is_described_in_words():
    assert describe(ExitReason.KILLED, -9) == "was killed by signal 9"
    assert describe(ExitReason.KILLED, -11) == "crashed (SIGSEGV)"
    assert describe(ExitReason.FAILED, 2) == "failed with exit code 2"
    assert describe(ExitReason.FAILED, 134) == "crashed (SIGABRT)"
    assert describe(ExitReason.FAILED, TIMED_OUT_EXIT_CODE) == "timed out"
    assert describe(ExitReason.UNKNOWN, None) == "was lost"


# --- evaluation ---------------------------------------------------------------------------------


def test_states_are_summed_in_float64():
    evaluations = Evaluations(Journal(), num_tasks=3, every_versions=0)
    evaluation_id = evaluations.start(version=7)
    for value in (1e16, 1.0, 1.0):
        evaluations.evaluated(evaluation_id, {"m": [np.array([value]), np.array(2.0)]})
    assert evaluations.states["m"][0].tolist() == [1e16 + 1.0 + 1.0]
    assert evaluations.states["m"][1].tolist() == 6.0
    assert evaluations.states["m"][0].dtype == np.float64


def test_last_task_of_an_evaluation_is_told():
    evaluations = Evaluations(Journal(), num_tasks=2, every_versions=0)
    evaluation_id = evaluations.start(0)
    assert not evaluations.evaluated(evaluation_id, {"m": [np.ones(1)]})
    assert evaluations.evaluated(evaluation_id, {"m": [np.ones(1)]})


def test_task_of_a_given_up_evaluation_counts_for_nothing():
    evaluations = Evaluations(Journal(), num_tasks=2, every_versions=1)
    evaluation_id = evaluations.start(0)
    evaluations.abandon()
    assert not evaluations.evaluated(evaluation_id, {"m": [np.ones(1)]})
    assert not evaluations.is_due(100, 0)


def test_other_metrics_are_refused():
    evaluations = Evaluations(Journal(), num_tasks=3, every_versions=0)
    evaluation_id = evaluations.start(0)
    evaluations.evaluated(evaluation_id, {"m": [np.ones(1)]})
    with pytest.raises(ModelError, match=r"expected metric states .*'m'.* found .*'n'"):
        evaluations.check(evaluation_id, {"n": [np.ones(1)]})


def test_a_validation_task_of_which_feed_left_out_all_records_adds_nothing():
    evaluations = Evaluations(Journal(), num_tasks=3, every_versions=0)
    evaluation_id = evaluations.start(0)
    for states in ({}, {"m": [np.ones(1)]}, {}):
        evaluations.check(evaluation_id, states)
        is_last = evaluations.evaluated(evaluation_id, states)
    assert is_last
    assert evaluations.states["m"][0].tolist() == [1.0]


def test_states_survive_json_bit_for_bit():
    states = {"a": [np.random.default_rng(0).normal(size=(2, 3)), np.array(0.1)], "b": []}
    found = decode_states(encode_states(states))
    assert found.keys() == states.keys()
    for name, arrays in states.items():
        for before, after in zip(arrays, found[name], strict=True):
            np.testing.assert_array_equal(before, after, strict=True)


# --- checkpoints and members ----------------------------------------------------------------------


def test_newest_checkpoints_are_kept():
    assert to_delete([30, 10, 20], keep=2) == [10]
    assert to_delete([10, 20], keep=2) == []
    assert to_delete([10, 20, 30], keep=0) == []


def test_starting_process_is_given_time():
    members = Membership(Journal(), heartbeat_timeout_seconds=5)
    member = members.plan(Role.WORKER, now=-100.0)
    members.runs(member, now=0.0)
    assert members.silent(START_TIMEOUT_SECONDS) == []
    assert members.silent(START_TIMEOUT_SECONDS + 1) == [member]
    members.register(Role.WORKER, 0, "s", 1, "", now=400.0)  # and goes on to build its model
    assert members.silent(405.1) == []
    members.heard(Role.WORKER, 0, "s", now=500.0)
    assert members.silent(505.0) == []
    assert members.silent(505.1) == [member]


def test_pending_process_is_not_silent_for_however_long():
    members = Membership(Journal(), heartbeat_timeout_seconds=5)
    member = members.plan(Role.WORKER, now=0.0)
    members.started(Role.WORKER, 0, "pod", now=1.0)
    members.pending(member, "no room", lacks_room=True, now=2.0)
    assert members.silent(1e6) == []
    members.runs(member, now=1e6)
    assert member.pending == ""
    assert members.silent(1e6 + START_TIMEOUT_SECONDS) == []
    assert members.silent(1e6 + START_TIMEOUT_SECONDS + 1) == [member]


def test_indexes_of_workers_are_never_used_twice():
    members = Membership(Journal(), 5)
    first = members.plan(Role.WORKER, 0.0)
    members.lose(first, "was killed")
    members.register(Role.WORKER, 7, "by hand", 1, "", 0.0)
    assert members.plan(Role.WORKER, 0.0).index == 8


def test_member_that_was_given_up_is_not_heard():
    members = Membership(Journal(), 5)
    member = members.register(Role.WORKER, 0, "s", 1, "", 0.0)
    members.lose(member, "was silent")
    assert members.heard(Role.WORKER, 0, "s", 9.0) is None
    assert members.register(Role.WORKER, 0, "s", 1, "", 9.0).gone
    assert not members.register(Role.WORKER, 0, "t", 2, "", 9.0).gone


# --- proof --------------------------------------------------------------------------------------


def make_tasks(num_epochs=1):
    return JobTasks(
        TaskTable([Shard("a", 0, 55)], 30), TaskTable([], 30), TaskTable([], 30), num_epochs
    )


def run_audit(*replicas, skipped=None, num_epochs=1, uneven=None, set_aside=frozenset()):
    entries = [[TaskAudit(*entry) for entry in replica] for replica in replicas]
    uneven = {task: Made(*made) for task, made in (uneven or {}).items()}
    tasks = make_tasks(num_epochs)
    return prove(tasks, 10, entries, skipped or {}, None, uneven, set_aside)


def test_all_trained_once():
    found = run_audit([(0, 3, 30), (1, 3, 25)], [(1, 3, 25), (0, 3, 30)])
    assert found.ledger == (EpochLedger(0, 55, 55, 0, 0),)
    assert (found.problem, found.note) == ("", "")


def test_epochs_are_told_apart():
    found = run_audit([(0, 3, 30), (1, 3, 25), (2, 3, 30)], num_epochs=2)
    assert found.ledger == (EpochLedger(0, 55, 55, 0, 0), EpochLedger(1, 55, 30, 0, 25))
    assert "have not applied the same of 1 tasks" in found.problem


def test_replica_that_lacks_a_minibatch_is_believed():
    found = run_audit([(0, 3, 30), (1, 3, 25)], [(0, 2, 20), (1, 3, 25)])
    assert found.ledger == (EpochLedger(0, 55, 45, 0, 10),)
    assert "have not applied the same of 1 tasks" in found.problem


def test_replica_that_repeated_a_minibatch_is_believed():
    found = run_audit([(0, 3, 30), (1, 3, 25)], [(0, 3, 40), (1, 3, 25)])
    assert found.ledger == (EpochLedger(0, 55, 45, 10, 0),)
    assert "10 records were trained more than once" in found.problem


def test_repeating_one_does_not_make_up_for_losing_another():
    found = run_audit([(0, 2, 30), (1, 3, 25)])
    assert found.ledger == (EpochLedger(0, 55, 35, 10, 10),)


def test_skipped_minibatches_are_lost_but_explained():
    found = run_audit([(0, 3, 20), (1, 3, 20)], skipped={0: {1: 10}, 1: {2: -1}})
    assert found.ledger == (EpochLedger(0, 55, 40, 0, 15),)
    assert (found.problem, found.note) == ("", "")


def test_records_skipped_by_a_worker_that_could_not_report_it_are_noted():
    found = run_audit([(0, 3, 20), (1, 3, 25)])
    assert found.ledger == (EpochLedger(0, 55, 45, 0, 10),)
    assert found.problem == ""
    assert "10 records were not trained: a worker that was lost had skipped them" in found.note


@pytest.mark.parametrize(
    ("uneven", "replica", "examples"),
    [
        ({0: (2, 17), 1: (1, 4)}, [(0, 2, 17), (1, 1, 4)], 21),  # most records left out
        ({0: (0, 0), 1: (3, 23)}, [(1, 3, 23)], 23),  # all of a task's
        ({0: (0, 0), 1: (0, 0)}, [], 0),  # all
        ({0: (6, 60), 1: (5, 50)}, [(0, 6, 60), (1, 5, 50)], 110),  # two examples of each
        ({0: (3, 31), 1: (4, 25)}, [(0, 3, 31), (1, 4, 25)], 56),  # minibatches of its own sizes
    ],
)
def test_each_record_is_trained_once_whatever_feed_makes_of_it(uneven, replica, examples):
    found = run_audit(replica, list(reversed(replica)), uneven=uneven)
    assert found.ledger == (EpochLedger(0, 55, 55, 0, 0, examples),)
    assert (found.problem, found.note) == ("", "")


TWICE = {0: (6, 60), 1: (5, 50)}
HALF = {0: (2, 15), 1: (2, 12)}


@pytest.mark.parametrize(
    ("uneven", "replica", "row"),
    [
        (HALF, [(0, 2, 15), (1, 1, 10)], (53, 0, 2)),  # the last minibatch is not there
        (HALF, [(0, 2, 15)], (43, 0, 12)),
        (TWICE, [(0, 6, 60), (1, 4, 40)], (45, 0, 10)),  # of 5 records, or of 10 at the most
        (TWICE, [(0, 6, 60)], (30, 0, 25)),
    ],
)
def test_minibatches_that_all_replicas_lack_of_a_task_that_was_done_are_a_problem(
    uneven, replica, row
):
    found = run_audit(replica, replica, uneven=uneven)
    assert found.ledger == (EpochLedger(0, 55, *row, sum(n for _, n in uneven.values())),)
    assert "have not applied the same of 1 tasks" in found.problem


@pytest.mark.parametrize(("uneven", "last"), [(HALF, (1, 2, 22)), (TWICE, (1, 5, 60))])
def test_examples_that_were_applied_twice_are_a_problem(uneven, last):
    first = (0, *uneven[0])
    found = run_audit([first, (1, *uneven[1])], [first, last], uneven=uneven)
    assert (found.ledger[0].trained_once, found.ledger[0].repeated) == (45, 10)
    assert "10 records were trained more than once" in found.problem


def test_a_skipped_minibatch_is_lost_with_its_own_number_of_examples():
    replica = [(0, 3, 27), (1, 3, 25)]
    found = run_audit(replica, uneven={0: (3, 31)}, skipped={0: {1: 4}})
    assert found.ledger == (EpochLedger(0, 55, 51, 0, 4, 56),)
    assert (found.problem, found.note) == ("", "")


def test_a_task_set_aside_among_uneven_ones_is_lost_and_never_repeated():
    replica = [(0, 6, 60), (1, 4, 40)]
    found = run_audit(replica, uneven={0: (6, 60)}, set_aside={1})
    assert found.ledger == (EpochLedger(0, 55, 30, 0, 25, 100),)
    assert found.problem == ""


@pytest.mark.parametrize("second", [[], [(1, 1, 10)], [(1, 2, 20)]])
def test_task_set_aside_is_lost_as_far_as_it_is_and_no_further_problem(second):
    found = run_audit([(0, 3, 30), (1, 1, 10)], [(0, 3, 30), *second], set_aside={1})
    trained = 30 + (second[0][2] if second == [(1, 1, 10)] else 10 if second else 0)
    assert found.ledger[0].lost == 55 - trained
    assert (found.ledger[0].repeated, found.problem, found.note) == (0, "", "")


def test_task_that_never_arrived_is_a_problem():
    found = run_audit([(0, 3, 30)])
    assert found.ledger == (EpochLedger(0, 55, 30, 0, 25),)
    assert found.problem

"""Real jobs of real processes lose some of them and still count exactly (scripts/chaos).

One job that loses workers and the master and gains a worker is for every run of the tests, and one
that averages gradients; the others are for long ones. `test_chaos_ps.py` has the loss of a ps
replica, `test_tls_job.py` that of two processes at once.
"""

import pytest

from tests.elastic.chaos_run import one_of, run_chaos

pytestmark = pytest.mark.timeout(400)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_counts_stay_exact_when_a_worker_is_killed(seed, tmp_path):
    run_chaos(seed, "worker", tmp_path)


@pytest.mark.long
def test_counts_stay_exact_when_a_worker_is_added(tmp_path):
    run_chaos(20, "add", tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", [21, 22])
def test_counts_stay_exact_when_the_master_is_killed_and_restarted(seed, tmp_path):
    run_chaos(seed, "master", tmp_path)


@pytest.mark.parametrize("seed", one_of(23, 24, 25))
def test_counts_stay_exact_under_all_faults_in_one_job(seed, tmp_path):
    run_chaos(seed, "worker,worker,master,add", tmp_path)


@pytest.mark.parametrize("mode", one_of("synchronous", "bounded"))
@pytest.mark.parametrize("faults", one_of("worker,master,add", "worker,worker"))
def test_counts_stay_exact_and_nobody_waits_for_the_dead(faults, mode, tmp_path):
    run_chaos(30, faults, tmp_path, mode=mode)


@pytest.mark.long
@pytest.mark.parametrize("faults", ["worker,ps,add", "worker,ps,master", "worker+ps,ps"])
def test_counts_stay_exact_when_gradients_are_added_up_before_a_push(faults, tmp_path):
    run_chaos(33, faults, tmp_path, mode="summed")


@pytest.mark.long
@pytest.mark.parametrize("faults", ["worker,ps,master", "worker,worker,add"])
def test_counts_stay_exact_when_records_are_shuffled_over_all_files(faults, tmp_path):
    run_chaos(35, faults, tmp_path, mode="records")


@pytest.mark.long
@pytest.mark.parametrize("seed", [40, 41])
def test_counts_stay_exact_when_two_roles_are_killed_at_once(seed, tmp_path):
    run_chaos(seed, "worker+ps,ps+master,worker+master", tmp_path)


# The phases after these are over before a watcher can be sure to strike in them: the soak does.
@pytest.mark.long
@pytest.mark.parametrize(
    "faults",
    [
        "worker@pending,ps@evaluating",
        "master@pending,worker@evaluating",
        "ps@pending,master@evaluating",
    ],
)
def test_counts_stay_exact_when_processes_are_killed_in_start_up_and_evaluation(faults, tmp_path):
    run_chaos(50, faults, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("faults", ["worker-stop", "ps-stop", "worker-returns", "master-stop"])
def test_counts_stay_exact_when_a_stopped_process_goes_on(faults, tmp_path):
    run_chaos(60, faults, tmp_path)

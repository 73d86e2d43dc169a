"""Real jobs of real processes lose some of them and still count exactly (scripts/chaos).

One job that loses a worker, a ps replica and the master and gains a worker is for every run of the
tests; modes of updates that `tests/simulation` does not have, other phases and stopped processes
are for long ones. `make soak` has other seeds. Ps replicas are lost in more ways in
`test_chaos_ps.py`.
"""

import pytest

from tests.elastic.chaos_run import run_chaos

pytestmark = pytest.mark.timeout(400)


def test_counts_stay_exact_under_all_faults_in_one_job(tmp_path):
    summary = run_chaos(23, "worker,ps,master,add", tmp_path)
    assert [recovery["is_replayed"] for recovery in summary["recoveries"]] == [True]


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "mode", "faults"),
    [
        (33, "summed", "worker+ps,ps"),
        (34, "exchanged", "worker+ps,ps+master,worker+master"),
        (35, "records", "worker,ps,master"),
    ],
)
def test_counts_stay_exact_whenever_updates_are_made(seed, mode, faults, tmp_path):
    run_chaos(seed, faults, tmp_path, mode=mode)


# The phases after these are over before a watcher can be sure to strike in them: the soak does.
@pytest.mark.long
def test_counts_stay_exact_when_processes_are_killed_in_start_up_and_evaluation(tmp_path):
    run_chaos(50, "ps@pending,master@evaluating", tmp_path)


@pytest.mark.long
def test_counts_stay_exact_when_stopped_processes_go_on(tmp_path):
    run_chaos(60, "ps-stop,worker-returns,master-stop", tmp_path)

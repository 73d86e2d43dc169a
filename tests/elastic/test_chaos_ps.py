"""Ps replicas of real jobs are killed, with workers and masters, and every count stays exact.

`scripts/chaos` draws from the seed when each is killed, whom, and what there is to restore: no
checkpoint at all, one of the job's own each second, or one of the user's each 500 updates. It fails
where a fault did not happen, or a replica that was killed did not recover. These are long;
`test_chaos.py` has one job for every run of the tests.
"""

import pytest

from tests.elastic.chaos_run import run_chaos

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


def test_counts_stay_exact_when_a_ps_replica_is_killed(tmp_path):
    recoveries = run_chaos(100, "ps", tmp_path)["recoveries"]
    assert [recovery["is_replayed"] for recovery in recoveries] == [True]


def test_counts_stay_exact_when_its_successor_is_killed_as_well(tmp_path):
    run_chaos(110, "ps-again", tmp_path)


def test_counts_stay_exact_when_all_ps_replicas_are_killed_at_once(tmp_path):
    assert len(run_chaos(120, "ps-all", tmp_path)["recoveries"]) == 2


def test_counts_stay_exact_when_replicas_workers_and_the_master_are_killed(tmp_path):
    run_chaos(130, "ps,worker,ps,master,ps-again", tmp_path)


def test_latest_loses_exactly_what_it_says(tmp_path):
    summary = run_chaos(140, "ps,worker", tmp_path, ps_recovery="latest")
    lost = sum(line["lost"] for line in summary["ledger"])
    assert sum(recovery["records"] for recovery in summary["recoveries"]) == lost
    assert not any(recovery["is_replayed"] for recovery in summary["recoveries"])
    assert not lost or str(lost) in summary["message"]

"""Ps replicas of real jobs are killed, with workers and masters, and every count stays exact.

`scripts/chaos` draws from the seed when each is killed, whom, and what there is to restore: no
checkpoint at all, one of the job's own each second, or one of the user's each 500 updates. It fails
where a fault did not happen, or a replica that was killed did not recover. These are long;
`test_chaos.py` has one job for every run of the tests.
"""

import pytest

from tests.elastic.chaos_run import run_chaos

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


def test_counts_stay_exact_when_replicas_workers_and_the_master_are_killed(tmp_path):
    run_chaos(130, "ps,worker,ps,master,ps-again", tmp_path)


def test_latest_loses_exactly_what_it_says(tmp_path):
    summary = run_chaos(140, "ps,worker", tmp_path, ps_recovery="latest")
    lost = sum(line["lost"] for line in summary["ledger"])
    assert sum(recovery["records"] for recovery in summary["recoveries"]) == lost
    assert not any(recovery["is_replayed"] for recovery in summary["recoveries"])
    assert not lost or str(lost) in summary["message"]

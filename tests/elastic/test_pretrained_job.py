"""A job whose table begins with pretrained rows; a ps replica dies, and they are not lost."""

import os
import signal
import time

import numpy as np
import pytest

from elasticdl.checkpoints.versions import versions

POLL_SECONDS = 0.05
NUM_RECORDS, NUM_IDS, PAUSE_AT = 640, 300, 20


def write_rows(file):
    """Of the counting model's table: a count, and a sum that is not looked at."""
    rows = np.zeros((NUM_IDS, 2), np.float32)
    rows[:, 0] = np.arange(NUM_IDS) * 1000
    np.savez(file, keys=np.arange(NUM_IDS), rows=rows)


@pytest.mark.timeout(300)
def test_a_killed_replica_has_its_pretrained_rows_again(chaos, paused_job, tmp_path):
    """From a checkpoint; from the files: `test_hybrid_job.py`."""
    ids = np.random.default_rng(0).integers(NUM_IDS, size=NUM_RECORDS)
    write_rows(tmp_path / "rows.npz")
    flags = {"pretrained_rows": f"count={tmp_path / 'rows.npz'}", "recovery_seconds": 0}
    checkpoints = tmp_path / "checkpoints"
    flags |= {"checkpoint_dir": checkpoints, "checkpoint_steps": 10}
    with paused_job(ids, mode="TRAINING", call=2 + PAUSE_AT, **flags) as job:
        job.wait_for_pause()
        while not versions(checkpoints):
            assert job.is_running(), job.log()
            time.sleep(POLL_SECONDS)  # a folder tells nobody that it is complete
        (tmp_path / "rows.npz").unlink()
        os.kill(chaos.processes(job.job_dir, "ps")[0].pid, signal.SIGKILL)
        summary = job.go_on()

    assert len(summary["recoveries"]) == 1
    counts = np.bincount(ids, minlength=NUM_IDS)
    expected = np.arange(NUM_IDS) * 1000 + counts
    np.testing.assert_array_equal(chaos.counts_of(job.export, NUM_IDS), expected)


@pytest.mark.timeout(300)
def test_a_job_in_one_process_begins_with_its_rows(chaos, paused_job, tmp_path):
    flags = {
        "distribution_strategy": "Local",
        "num_workers": None,
        "num_ps_pods": None,
        "pretrained_rows": f"count={tmp_path / 'rows.npz'}",
    }
    write_rows(tmp_path / "rows.npz")
    with paused_job(range(NUM_IDS), mode="TRAINING", call=2, **flags) as job:
        job.wait_for_pause()
        job.go_on()
    expected = np.arange(NUM_IDS) * 1000 + 1
    np.testing.assert_array_equal(chaos.counts_of(job.export, NUM_IDS), expected)

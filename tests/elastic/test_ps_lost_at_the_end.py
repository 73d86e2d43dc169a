"""Ps replicas die when all is trained and the last evaluation runs: it waits for what they lost."""

import os
import signal

import numpy as np
import pytest

NUM_RECORDS, NUM_EPOCHS, NUM_IDS = 2_000, 2, 300


@pytest.mark.timeout(300)
@pytest.mark.long
def test_last_evaluation_sees_every_update(chaos, paused_job, tmp_path):
    ids = np.random.default_rng(2).integers(NUM_IDS, size=NUM_RECORDS)
    flags = {
        "validation_data": tmp_path / "data.recordio",
        "num_epochs": NUM_EPOCHS,
        "evaluation_steps": 0,  # none but the last
        "recovery_seconds": 0,  # nothing to restore: all is replayed
    }
    # The first call is before training: the metrics are tried on a sample.
    with paused_job(ids, mode="EVALUATION", call=2, **flags) as job:
        job.wait_for_pause()
        for victim in chaos.processes(job.job_dir, "ps"):
            os.kill(victim.pid, signal.SIGKILL)
        summary = job.go_on()

    counts = NUM_EPOCHS * np.bincount(ids, minlength=NUM_IDS)
    assert len(summary["recoveries"]) == 2
    assert summary["recoveries"][0]["records"] == NUM_EPOCHS * NUM_RECORDS
    assert [(line["trained_once"], line["lost"]) for line in summary["ledger"]] == [
        (NUM_RECORDS, 0)
    ] * NUM_EPOCHS
    assert summary["metrics"]["mean_count"] == pytest.approx(counts[ids].mean())
    np.testing.assert_array_equal(chaos.counts_of(job.export, NUM_IDS), counts)
    texts = [event["text"] for event in summary["events"]]
    assert sum(text.startswith("evaluation: ") for text in texts) == 1

"""The newest checkpoint is corrupt when a ps replica is lost: an older one serves, exactly."""

import os
import signal
import time

import numpy as np
import pytest

from elasticdl.checkpoints.versions import version_folder, versions

NUM_RECORDS, NUM_IDS = 2_000, 300
PAUSE_AT = 100  # minibatches, of 125
NUM_KEPT = 3  # --keep_checkpoint_max
POLL_SECONDS = 0.05


def corrupt(folder):
    """Change one byte in the middle of each replica's rows."""
    for path in folder.glob("replica-*-rows-00.safetensors"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)


def wait_for_version(job, checkpoints, version):
    """Return the versions that are kept when the newest is the given one."""
    while (there := versions(checkpoints))[-1:] != [version] or len(there) > NUM_KEPT:
        assert job.is_running(), job.log()
        time.sleep(POLL_SECONDS)  # a folder tells nobody that it is complete
    return there


@pytest.mark.timeout(300)
def test_older_checkpoint_is_restored_and_counts_stay_exact(chaos, paused_job, tmp_path):
    ids = np.random.default_rng(0).integers(NUM_IDS, size=NUM_RECORDS)
    checkpoints = tmp_path / "checkpoints"
    flags = {"checkpoint_dir": checkpoints, "checkpoint_steps": 10, "recovery_seconds": 0}
    # The first call is for the sample that the model is built with.
    with paused_job(ids, mode="TRAINING", call=2 + PAUSE_AT, **flags) as job:
        job.wait_for_pause()
        there = wait_for_version(job, checkpoints, PAUSE_AT)
        *sound, newest = there
        corrupt(version_folder(checkpoints, newest))
        os.kill(chaos.processes(job.job_dir, "ps")[0].pid, signal.SIGKILL)
        summary = job.go_on()

    assert [recovery["version"] for recovery in summary["recoveries"]] == [max(sound)]
    assert [(line["trained_once"], line["lost"]) for line in summary["ledger"]] == [
        (NUM_RECORDS, 0)
    ]
    counts = np.bincount(ids, minlength=NUM_IDS)
    np.testing.assert_array_equal(chaos.counts_of(job.export, NUM_IDS), counts)
    (found,) = [event["text"] for event in summary["events"] if "goes back to" in event["text"]]
    assert "rows-00.safetensors" in found
    assert "is corrupt" in found

"""A table of which the ps replicas hold a part in memory, and the rest on `--ps_disk`."""

import contextlib
import json
import os
import signal
import subprocess

import pytest

from elasticdl.observe.events import read_events
from scripts.chaos import job as counting
from tests.elastic.counting_job import CountingJob

NUM_KILLS = 3
LIMIT = "400KiB"
"""Of the 2,500 rows of 256 bytes that each of two replicas has, less than a half fit beside what
tells where they are."""

WIDE = (
    ("dim=2", "dim=64"),
    ("np.broadcast_to(-counted, rows[0].shape)", "np.tile(-counted, rows[0].shape[:-1] + (32,))"),
)
"""What makes rows of the counting model so wide that they are brought to disk: each has its count
and its sum 32 times."""


def wide_model(folder):
    """Write the model file; return the flags that name it and have rows brought to disk."""
    folder.mkdir()
    text = (counting.ROOT / "model_zoo" / "counting" / "model.py").read_text()
    for narrow, wide in WIDE:
        assert narrow in text
        text = text.replace(narrow, wide)
    (folder / "model.py").write_text(text)
    return {"model_zoo": folder, "model_def": "model.forward", "ps_memory_limit": LIMIT}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_rows_on_disk_are_trained_once_though_ps_replicas_are_killed(tmp_path):
    rows, killed = tmp_path / "rows", 0
    flags = {**wide_model(tmp_path / "zoo"), "ps_disk": rows, "max_relaunches": NUM_KILLS}
    with CountingJob(tmp_path, seed=5, **flags) as job:
        for status in job.statuses():
            share = status.records_done / max(status.records_total, 1)
            is_back = len(job.events("ps recovered")) == killed
            if killed < NUM_KILLS and is_back and share > 0.2 * (killed + 1):
                job.send("ps", killed % 2, signal.SIGKILL)
                killed += 1
        summary = job.finish()

    assert killed == NUM_KILLS
    job.check_counts(summary)
    last = [event for event in read_events(job.job_dir) if event["event"] == "tables"][-1]
    assert last["rows_on_disk"][0] > 1_000
    assert last["disk_reads"][0] > 1_000
    assert list(rows.iterdir()) == []  # a file of cold rows has no name, and goes with its process
    assert rows.stat().st_mode & 0o777 == 0o700


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_replica_whose_rows_cannot_be_read_again_ends_and_is_restored(tmp_path):
    rows, is_lost = tmp_path / "rows", False
    # Workers that ask it before it has ended end as well, and are replaced.
    flags = {**wide_model(tmp_path / "zoo"), "ps_disk": rows, "max_relaunches": 20}
    with CountingJob(tmp_path, seed=7, **flags) as job:
        for status in job.statuses():
            if not is_lost and status.records_done > 0.3 * max(status.records_total, 1):
                empty_files(job.processes("ps")[0].pid, rows)
                is_lost = True
        summary = job.finish()

    job.check_counts(summary)
    assert len(summary["recoveries"]) == 1
    logs = "".join(path.read_text() for path in (job.job_dir / "logs").glob("ps-*"))
    assert "cannot be read again" in logs


def empty_files(pid, folder):
    """Take away what a process has written to files without a name in a folder."""
    files = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{number}"
        with contextlib.suppress(FileNotFoundError):  # a connection that is closed meanwhile
            if os.readlink(path).startswith(str(folder)):
                files.append(path)
    assert files
    for path in files:
        os.truncate(path, 0)


@pytest.fixture
def small_disk(tmp_path):
    """A disk for a few hundred rows."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("a small disk can be mounted by root alone")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_disk_that_is_full_ends_the_job_in_words_and_what_was_trained_is_kept(
    tmp_path, small_disk
):
    kept = tmp_path / "kept"
    places = {"ps_disk": small_disk / "rows", "checkpoint_dir": kept}
    with CountingJob(tmp_path, seed=6, **wide_model(tmp_path / "zoo"), **places) as job:
        assert job.process.wait() == 1
    said = job.printed()
    assert "the disk of --ps_disk takes no more rows" in said
    assert "No space left on device" in said
    (version,) = kept.iterdir()
    assert json.loads((version / "manifest.json").read_text())["replicas"][0]["version"] > 0

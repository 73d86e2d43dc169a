"""Disks that are full for a while cost a job time, and nothing that it has trained."""

import contextlib
import os
import subprocess
import threading
from pathlib import Path

import pytest

from elasticdl._core import RecordWriter
from tests.elastic.running_job import LOOK_SECONDS, RunningJob, elasticdl

pytestmark = pytest.mark.timeout(300)

COUNTING = Path(__file__).resolve().parents[2] / "model_zoo" / "counting" / "model.py"
NUM_RECORDS, POISON = 200, 105
DISK_BYTES = 8 << 20

POISONED_FEED = """

import time
from pathlib import Path
_counting_feed = feed


def feed(records, mode, metadata):
    if Path({marker!r}).exists() and b"{poison}" in [bytes(record) for record in records]:
        raise ValueError("a record that does not parse")
    while Path({gate!r}).exists():
        print("words " * 2000)
        time.sleep(0.02)
    return _counting_feed(records, mode, metadata)
"""


@pytest.fixture
def disk(tmp_path):
    """A disk of a few megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("a small disk can be mounted by root alone")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder):
    """Take all room on a disk; return the file that has it."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"\0" * 65536):
            pass
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"\0"):
            pass
    return filler


def job(folder, **flags):
    """One worker, one ps replica, and records that are ids."""
    (folder / "zoo").mkdir()
    places = {"marker": str(folder / "poison"), "gate": str(folder / "gate")}
    feed = POISONED_FEED.format(poison=POISON, **places)
    (folder / "zoo" / "model.py").write_text(COUNTING.read_text() + feed)
    with RecordWriter(str(folder / "ids.recordio")) as writer:
        writer.write_many(str(id).encode() for id in range(NUM_RECORDS))
    given = {
        "model_zoo": folder / "zoo",
        "model_def": "model.forward",
        "training_data": folder / "ids.recordio",
        "distribution_strategy": "ParameterServerStrategy",
        "num_workers": 1,
        "num_ps_pods": 1,
        "minibatch_size": 10,
        "num_minibatches_per_task": 2,
        "max_task_retries": 1,
        "shuffle_tasks": "false",
        "output": folder / "out" / "model",
        "summary": folder / "summary.json",
        "job_dir": folder / "job",
    }
    return RunningJob(
        folder, elasticdl("train", **(given | flags)), env={**os.environ, "COLUMNS": "300"}
    )


def until_printed(running, words):
    while words not in running.printed():
        assert running.is_running(), running.log()
        threading.Event().wait(LOOK_SECONDS)


def is_exact(summary):
    ledger = [(e["trained_once"], e["repeated"], e["lost"]) for e in summary["ledger"]]
    return summary["status"] == "finished" and ledger == [(NUM_RECORDS, 0, 0)]


def test_export_waits_for_room(tmp_path, disk):
    gate = tmp_path / "gate"
    gate.touch()
    flags = {"output": disk / "model", "distribution_strategy": "Local"}
    flags |= {"job_dir": None, "num_workers": None, "num_ps_pods": None}
    with job(tmp_path, **flags) as running:
        until_printed(running, "running")
        filler = fill(disk)
        gate.unlink()
        until_printed(running, "No space left on device")
        filler.unlink()
        assert is_exact(running.finish()), running.log()
    assert "the export is tried again in 1 s, for 10 minutes" in running.printed()
    assert (disk / "model" / "model.npz").is_file()


@pytest.mark.long
def test_same_command_goes_on_after_a_record_that_did_not_parse(tmp_path):
    (tmp_path / "poison").touch()
    running = job(tmp_path)
    with running:
        assert running.process.wait() == 1, running.log()
    assert "the same command with --job_dir=" in running.printed()
    assert not (tmp_path / "out").exists()
    assert running.has_checkpoint()
    (tmp_path / "poison").unlink()
    with running:
        assert is_exact(running.finish()), running.log()
    assert (tmp_path / "out" / "model" / "model.npz").is_file()


@pytest.mark.long
def test_job_whose_own_disk_is_full_stands_still_and_says_so(tmp_path, disk):
    gate = tmp_path / "gate"
    gate.touch()
    running = job(tmp_path, job_dir=disk / "job")
    running.job_dir = disk / "job"
    with running:
        running.until(lambda status: status.status == "running")
        filler = fill(disk)
        running.until(lambda status: "database or disk is full" in status.message)
        gate.unlink()  # what is in hand is worked off; no more is handed out
        until_printed(running, "the job waits, because its journal cannot be written")
        filler.unlink()
        assert is_exact(running.finish()), running.log()
    assert running.events("task failed") == []

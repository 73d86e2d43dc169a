"""All processes of a job end in the middle of it; the same command goes on, exactly."""

import contextlib
import json
import os
import signal
import subprocess

import numpy as np
import psutil
import pytest

from elasticdl.checkpoints.versions import versions
from tests.elastic.running_job import GIVE_UP_SECONDS


class Job:
    """The counting job in one folder, by as many commands as it takes."""

    def __init__(self, chaos, folder):
        self._chaos, self._folder = chaos, folder
        self.job_dir = folder / "job"
        files = chaos.make_ids(seed=1)
        chaos.write_data(folder / "data", files)
        ids = np.concatenate([file.ravel() for file in files])
        self.occurrences = np.bincount(ids, minlength=chaos.NUM_IDS)
        self.words = chaos.train_command(
            folder / "data",
            folder / "export",
            self.job_dir,
            folder / "summary.json",
            recovery_seconds=0.5,
        )

    @contextlib.contextmanager
    def command(self):
        """The command, which is gone when the context ends."""
        with (self._folder / "train.log").open("a") as log:
            command = subprocess.Popen(self.words, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield command
        finally:
            command.kill()
            command.wait()

    def until(self, share, end):
        """Run the command until a share of the records is trained; then end it; return its code.

        It has written a recovery checkpoint by then.
        """
        (self.job_dir / "master.json").unlink(missing_ok=True)
        with self.command() as command:
            self._wait_for(share, command)
            mine = psutil.Process(command.pid).children(recursive=True)
            end(self, command)
            code = command.wait()
        _, left = psutil.wait_procs(mine, timeout=120)
        assert left == []
        return code

    def _wait_for(self, share, command):
        master = self._chaos.connect(self.job_dir, command)
        assert master is not None, self.log()
        with contextlib.closing(master):
            for status in master.watch(give_up_seconds=GIVE_UP_SECONDS):
                is_there = versions(self.job_dir / "recovery")
                if is_there and status.records_done >= share * status.records_total:
                    return

    def finish(self):
        """Run the command to the end of the job; return its summary."""
        with self.command() as command:
            assert command.wait() == 0, self.log()
        return json.loads((self._folder / "summary.json").read_text())

    def log(self):
        return (self._folder / "train.log").read_text()

    def counts(self):
        return self._chaos.counts_of(self._folder / "export", len(self.occurrences))


def kill_everything(job, command):
    """As when the machine loses its power: the command learns of no other end before its own."""
    command.send_signal(signal.SIGSTOP)
    for child in psutil.Process(command.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    command.kill()


def ask_the_master(job, command):
    pid = json.loads((job.job_dir / "master.json").read_text())["pid"]
    os.kill(pid, signal.SIGTERM)


def press_ctrl_c(job, command):
    command.send_signal(signal.SIGINT)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_same_command_goes_on_where_the_job_was(chaos, tmp_path):
    job, ends = Job(chaos, tmp_path), [kill_everything, ask_the_master, press_ctrl_c]
    for number, end in enumerate(ends, 1):
        code = job.until(0.25 * number, end)
        assert code == (-signal.SIGKILL if end is kill_everything else 130)
    summary = job.finish()
    records = job.occurrences.sum() // 4
    assert [
        (line["trained_once"], line["repeated"], line["lost"]) for line in summary["ledger"]
    ] == [(records, 0, 0)] * 3
    np.testing.assert_array_equal(job.counts(), 3 * job.occurrences)
    assert len(summary["recoveries"]) == 2 * len(ends)
    assert any(r["version"] for r in summary["recoveries"])

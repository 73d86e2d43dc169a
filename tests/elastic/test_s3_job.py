"""Checkpoints and exports on S3: a job is killed whole and goes on, and another begins there."""

import contextlib
import json
import subprocess

import numpy as np
import psutil
import pytest

from elasticdl.checkpoints.exports import SUCCESS
from elasticdl.checkpoints.versions import versions
from elasticdl.locations import parse
from elasticdl.packages.serving.versions import Versions
from tests.elastic.running_job import GIVE_UP_SECONDS

pytestmark = [pytest.mark.timeout(900), pytest.mark.s3, pytest.mark.long]

STEPS, NUM_KEPT, NUM_EPOCHS = 500, 2, 2


class Job:
    """The counting job, whose results go to S3."""

    def __init__(self, chaos, folder, s3):
        self._chaos, self._folder = chaos, folder
        files = chaos.make_ids(seed=6)
        chaos.write_data(folder / "data", files)
        ids = np.concatenate([file.ravel() for file in files])
        self.occurrences = np.bincount(ids, minlength=chaos.NUM_IDS)
        self.records = len(ids) // chaos.IDS_PER_RECORD
        self.checkpoints = parse(f"{s3}/checkpoints")

    @contextlib.contextmanager
    def command(self, name, output, **flags):
        """A command, which is gone when the context ends."""
        words = self._chaos.train_command(
            self._folder / "data",
            output,
            self._folder / name,
            self._folder / f"{name}.json",
            recovery_seconds=0,  # what is restored comes from S3
            **flags,
        )
        with (self._folder / f"{name}.log").open("a") as log:
            command = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield command
        finally:
            command.kill()
            command.wait()

    def finish(self, name, output, **flags):
        """Run a command to its end; return its summary."""
        with self.command(name, output, **flags) as command:
            return self._summary(name, command)

    def _summary(self, name, command):
        assert command.wait() == 0, (self._folder / f"{name}.log").read_text()
        return json.loads((self._folder / f"{name}.json").read_text())

    def run_until_killed(self, name, output, **flags):
        """End all processes at once, when half is trained and a checkpoint is there."""
        job_dir = self._folder / name
        with self.command(name, output, **flags) as command:
            self._watch_until(
                job_dir,
                command,
                lambda status: (
                    status.records_done > status.records_total / 2 and versions(self.checkpoints)
                ),
            )
            processes = psutil.Process(command.pid)
            mine = [*processes.children(recursive=True), processes]
            for process in mine:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        _, left = psutil.wait_procs(mine, timeout=120)
        assert left == []
        (job_dir / "master.json").unlink()

    def finish_slowly(self, name, output, until, **flags):
        """Run a command to its end, which is not near until something is there."""
        hurry = self._folder / "hurry"
        slow = {
            "model_def": "counting.staged.forward",
            "model_params": f"seconds=0.1;hurry={hurry}",
        }
        with self.command(name, output, **slow, **flags) as command:
            self._watch_until(self._folder / name, command, lambda status: until())
            hurry.touch()
            return self._summary(name, command)

    def _watch_until(self, job_dir, command, is_there):
        master = self._chaos.connect(job_dir, command)
        assert master is not None, (self._folder / f"{job_dir.name}.log").read_text()
        with contextlib.closing(master):
            for status in master.watch(give_up_seconds=GIVE_UP_SECONDS):
                if is_there(status):
                    return

    def counts(self, output):
        """Read how often each id was trained from an export."""
        where = self._folder / "fetched"
        where.mkdir(exist_ok=True)
        (where / "model.npz").write_bytes((parse(output) / "model.npz").read_bytes())
        return self._chaos.counts_of(where, len(self.occurrences))


def ledger(summary):
    return [(line["trained_once"], line["repeated"], line["lost"]) for line in summary["ledger"]]


def test_job_that_is_killed_goes_on_from_s3_and_another_begins_there(chaos, s3, tmp_path):
    job = Job(chaos, tmp_path, s3)
    first = {
        "checkpoint_dir": job.checkpoints,
        "checkpoint_steps": STEPS,
        "checkpoint_full_every": 2,
        "keep_checkpoint_max": NUM_KEPT,
        "num_epochs": NUM_EPOCHS,
    }
    job.run_until_killed("first", f"{s3}/export", **first)
    summary = job.finish("first", f"{s3}/export", **first)

    assert ledger(summary) == [(job.records, 0, 0)] * NUM_EPOCHS
    assert len(summary["recoveries"]) == chaos.NUM_PS
    assert all(recovery["version"] > 0 for recovery in summary["recoveries"])
    counts = job.counts(f"{s3}/export")
    np.testing.assert_array_equal(counts, NUM_EPOCHS * job.occurrences)
    assert (parse(f"{s3}/export") / SUCCESS).exists()
    # One more than are kept may be the base of another.
    assert NUM_KEPT <= len(versions(job.checkpoints)) <= NUM_KEPT + 1
    unfinished = [*job.checkpoints.glob("version-*/unfinished.json")]
    assert unfinished == []
    assert list((tmp_path / "first" / "scratch").rglob("*.safetensors")) == []

    summary = job.finish(
        "second",
        f"{s3}/second",
        checkpoint_dir_for_init=job.checkpoints,
        num_ps_pods=chaos.NUM_PS + 1,
        num_epochs=1,
    )

    assert ledger(summary) == [(job.records, 0, 0)]
    np.testing.assert_array_equal(job.counts(f"{s3}/second"), (NUM_EPOCHS + 1) * job.occurrences)


def test_base_and_deltas_lie_in_a_bucket_and_are_followed_from_there(chaos, s3, tmp_path):
    job = Job(chaos, tmp_path, s3)
    flags = {"export_dir": f"{s3}/exports", "export_every": 50, "export_full_every": 100}
    exports = parse(f"{s3}/exports")
    has_base = (exports / "CURRENT").exists
    summary = job.finish_slowly("exporting", f"{s3}/whole", has_base, num_epochs=1, **flags)

    assert ledger(summary) == [(job.records, 0, 0)]
    served = Versions(exports, tmp_path).next(None)
    rows = np.zeros((chaos.NUM_IDS, 2), np.float32)
    served.tables.look_up(0, np.arange(chaos.NUM_IDS), 0.0, rows)
    np.testing.assert_array_equal(rows[: len(job.occurrences), 0], job.occurrences)
    assert served.manifest.number > 1  # so there are deltas
    assert not served.manifest.is_base

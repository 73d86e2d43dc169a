"""Jobs of all-reduce lose workers at every point of a step, and gain some; nothing counts twice."""

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from elasticdl._core import RecordWriter
from elasticdl.observe.events import read_events

MODEL = Path(__file__).with_name("visits_model.py")
MINIBATCH_SIZE = 16


class VisitsJob:
    """`elasticdl train` of the model that counts visits; all files go to a folder."""

    def __init__(
        self, folder, num_records=6_000, faults=(), seconds=0.004, tables="tables=[]", **flags
    ):
        self.folder, self.num_records = folder, num_records
        self.zoo = folder / "zoo"
        (self.zoo / "hashes").mkdir(parents=True)
        model = MODEL.read_text().replace("import ArrayModel,", "import ArrayModel, ArrayTable,")
        (self.zoo / "model.py").write_text(model.replace("tables=[]", tables))
        settings = {
            "num_records": num_records,
            "faults": list(faults),
            "seconds": seconds,
            "hash_every": 10,
        }
        (self.zoo / "settings.json").write_text(json.dumps(settings))
        data = folder / "data.recordio"
        with RecordWriter(str(data)) as writer:
            writer.write_many(str(number).encode() for number in range(num_records))
        self.job_dir = folder / "job"
        self.flags = {
            "model_zoo": self.zoo,
            "model_def": "model.forward",
            "training_data": data,
            "distribution_strategy": "AllreduceStrategy",
            "num_workers": 3,
            "minibatch_size": MINIBATCH_SIZE,
            "num_minibatches_per_task": 10,
            "heartbeat_seconds": 0.2,
            "output": folder / "export",
            "job_dir": self.job_dir,
            "summary": folder / "summary.json",
            **flags,
        }

    def __enter__(self):
        words = [f"--{name}={value}" for name, value in self.flags.items()]
        with (self.folder / "train.log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "elasticdl.cli.main", "train", *words],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.wait()

    def finish(self):
        """Wait for the end of the job; return its summary."""
        assert self.process.wait() == 0, self.log()
        return json.loads((self.folder / "summary.json").read_text())

    def log(self):
        logs = sorted((self.job_dir / "logs").glob("*"))
        return "\n".join(file.read_text() for file in [self.folder / "train.log", *logs])

    def model(self):
        with np.load(self.folder / "export" / "model.npz") as arrays:
            return dict(arrays)

    def num_claimed(self):
        return len(list(self.zoo.glob("claimed-*")))

    def has_world_of(self, size):
        worlds, losses = self.events("world"), self.events("lost")
        is_whole = bool(worlds) and len(worlds[-1]["workers"]) == size
        return is_whole and (not losses or losses[-1]["time"] < worlds[-1]["time"])

    def events(self, kind):
        return [event for event in read_events(self.job_dir) if event["event"] == kind]


def check_counts(job, summary, batch_size=None):
    """Each record counts once: by the model itself, and by the proof of the ledger."""
    (line,) = summary["ledger"]
    records = job.num_records
    assert (line["trained_once"], line["repeated"], line["lost"]) == (records, 0, 0)
    model = job.model()
    np.testing.assert_array_equal(model["dense/visits"], np.ones(records))
    assert len(model["state/updates"]) == 1
    if batch_size is None:
        most = -(-records // MINIBATCH_SIZE)
        assert records / MINIBATCH_SIZE / 3 <= model["state/updates"] <= most
    else:
        assert model["state/updates"] == records / batch_size
    assert summary["staleness"]["max"] == 0


def check_hashes(job):
    """All ranks that came to an update had the same weights, slots and watermarks."""
    hashes = defaultdict(list)
    for file in (job.zoo / "hashes").iterdir():
        hashes[int(file.name.split("-")[0])].append(file.read_text())
    shared = {version for version, found in hashes.items() if len(found) > 1}
    assert len(shared) >= 3
    assert [version for version in shared if len(set(hashes[version])) > 1] == []


@pytest.mark.timeout(120)
def test_an_undisturbed_job_trains_each_record_once(tmp_path):
    # One minibatch more than three workers share evenly, and the last one is short.
    with VisitsJob(tmp_path, num_records=1_605, seconds=0.0) as job:
        summary = job.finish()
    check_counts(job, summary)
    check_hashes(job)


FAULTS = [
    ("compute", 5),
    ("before reduction", 5),
    ("during reduction", 5),
    ("abort after reduction", 5),
    ("after reduction", 5),
    ("after update", 5),
    ("giving parameters", 1),
    ("rendezvous", 1),
]


@pytest.mark.timeout(240)
def test_workers_killed_at_every_point_of_a_step_cost_no_record(tmp_path, chaos):
    with VisitsJob(
        tmp_path, num_records=48_000, seconds=0.012, faults=FAULTS, max_relaunches=20
    ) as job:
        master = chaos.connect(job.job_dir, job.process)
        for _ in master.watch(give_up_seconds=60):
            due = job.num_claimed()
            # A worker joins only if somebody was lost: the faults at the end follow at once.
            is_at_end = due < len(FAULTS) and FAULTS[due][1] == 1
            if is_at_end or job.has_world_of(3):
                (job.zoo / f"due-{due}").touch()
        summary = job.finish()
        master.close()
    assert job.num_claimed() == len(FAULTS), job.log()
    check_counts(job, summary)
    assert not job.events("world restored")
    check_hashes(job)


@pytest.mark.timeout(240)
def test_each_update_has_as_many_records_whoever_is_lost(tmp_path, chaos):
    faults = [(place, 5) for place in ("during reduction", "abort after reduction", "after update")]
    with VisitsJob(
        tmp_path, num_records=16_000, seconds=0.012, faults=faults, global_batch_size=80
    ) as job:
        master = chaos.connect(job.job_dir, job.process)
        for _ in master.watch(give_up_seconds=60):
            if job.has_world_of(3):
                (job.zoo / f"due-{job.num_claimed()}").touch()
        summary = job.finish()
        master.close()
    assert job.num_claimed() == len(faults), job.log()
    check_counts(job, summary, batch_size=80)
    check_hashes(job)


@pytest.mark.timeout(120)
def test_all_workers_dead_at_once_roll_back_together_with_the_ledger(tmp_path, chaos):
    with VisitsJob(tmp_path, num_records=12_000, recovery_seconds=0.3) as job:
        master = chaos.connect(job.job_dir, job.process)
        for status in master.watch(give_up_seconds=60):
            if status.records_done > 6_000 and (job.job_dir / "recovery").is_dir():
                break
        for worker in chaos.processes(job.job_dir, "worker"):
            worker.send_signal(signal.SIGKILL)
        summary = job.finish()
        master.close()
    check_counts(job, summary)
    (restored,) = job.events("world restored")
    assert restored["version"] > 0


@pytest.mark.timeout(120)
def test_workers_come_and_go_by_request(tmp_path, chaos):
    with VisitsJob(tmp_path, num_records=24_000, seconds=0.02, num_workers=1) as job:
        master = chaos.connect(job.job_dir, job.process)
        wanted = [(1, 3), (3, 2)]  # once there is a world of so many, go on with so many
        for status in master.watch(give_up_seconds=60):
            has_begun = status.records_done > 500
            if wanted and has_begun and job.has_world_of(wanted[0][0]):
                master.set_num_workers(wanted.pop(0)[1])
        summary = job.finish()
        master.close()
    check_counts(job, summary)
    check_hashes(job)
    sizes = [len(event["workers"]) for event in job.events("world")]
    assert sizes[0] == 1
    assert max(sizes) == 3
    assert not job.events("lost")


@pytest.mark.timeout(120)
def test_a_worker_that_is_asked_to_end_hands_over(tmp_path, chaos):
    with VisitsJob(tmp_path, num_records=12_000) as job:
        master = chaos.connect(job.job_dir, job.process)
        for status in master.watch(give_up_seconds=60):
            if status.records_done > 3_000:
                break
        os.kill(chaos.processes(job.job_dir, "worker")[0].pid, signal.SIGTERM)
        summary = job.finish()
        master.close()
    check_counts(job, summary)
    check_hashes(job)
    assert not job.events("lost")


@pytest.mark.timeout(120)
def test_the_master_is_killed_and_then_a_worker(tmp_path, chaos):
    with VisitsJob(tmp_path, num_records=12_000, seconds=0.012) as job:
        master = chaos.connect(job.job_dir, job.process)
        for status in master.watch(give_up_seconds=60):
            if status.records_done > 2_000:
                break
        master.close()
        (before,) = chaos.processes(job.job_dir, "master")
        before.send_signal(signal.SIGKILL)
        chaos.processes(job.job_dir, "worker")[0].send_signal(signal.SIGKILL)
        summary = job.finish()
    check_counts(job, summary)
    check_hashes(job)
    assert summary["counters"]["resumed_masters"] == 1
    assert not job.events("world restored")


@pytest.mark.timeout(60)
def test_more_workers_than_minibatches_come_to_an_end(tmp_path):
    with VisitsJob(tmp_path, num_records=20) as job:
        summary = job.finish()
    check_counts(job, summary)


@pytest.mark.timeout(60)
def test_a_model_with_tables_is_refused_by_name(tmp_path):
    with VisitsJob(tmp_path, tables='tables=[ArrayTable("users", dim=2)]') as job:
        assert job.process.wait() == 1
    said = (tmp_path / "train.log").read_text()
    assert "'users'" in said
    assert "ParameterServerStrategy" in said

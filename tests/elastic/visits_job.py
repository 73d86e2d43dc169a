"""A job of the model in `visits_model.py`, and what its counts must be."""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from elasticdl._core import RecordWriter
from elasticdl.observe.events import read_events

MODEL = Path(__file__).with_name("visits_model.py")
MINIBATCH_SIZE = 16


class VisitsJob:
    """`elasticdl train` of the model that counts visits; all files go to a folder."""

    def __init__(
        self,
        folder,
        num_records=6_000,
        faults=(),
        seconds=0.004,
        has_rows=False,
        **flags,
    ):
        self.folder, self.num_records = folder, num_records
        self.zoo = folder / "zoo"
        (self.zoo / "hashes").mkdir(parents=True)
        (self.zoo / "model.py").write_text(MODEL.read_text())
        settings = {
            "num_records": num_records,
            "faults": list(faults),
            "seconds": seconds,
            "hash_every": 10,
            "has_rows": has_rows,
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

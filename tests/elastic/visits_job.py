"""A job of the model in `visits_model.py`, and what its counts must be."""

import json
from collections import defaultdict
from pathlib import Path

import numpy as np

from elasticdl._core import RecordWriter
from tests.elastic.running_job import RunningJob, elasticdl

MODEL = Path(__file__).with_name("visits_model.py")
MINIBATCH_SIZE = 16


class VisitsJob(RunningJob):
    """`elasticdl train` of the model that counts visits; all files go to a folder."""

    def __init__(
        self,
        folder,
        num_records=6_000,
        faults=(),
        seconds=0.004,
        has_rows=False,
        piece_bytes=0,
        model=MODEL,
        **flags,
    ):
        self.num_records, self.num_faults = num_records, len(faults)
        self._faults = faults
        self.is_staged = piece_bytes > 0  # then steps are to go on while a joiner is given all
        self.zoo = folder / "zoo"
        (self.zoo / "hashes").mkdir(parents=True)
        (self.zoo / "stages").mkdir()
        (self.zoo / "model.py").write_text(model.read_text())
        settings = {
            "num_records": num_records,
            "faults": list(faults),
            "seconds": seconds,
            "hash_every": 10,
            "has_rows": has_rows,
            "piece_bytes": piece_bytes,
        }
        (self.zoo / "settings.json").write_text(json.dumps(settings))
        data = folder / "data.recordio"
        with RecordWriter(str(data)) as writer:
            writer.write_many(str(number).encode() for number in range(num_records))
        wanted = {
            "model_zoo": self.zoo,
            "model_def": "model.forward",
            "training_data": data,
            "distribution_strategy": "AllreduceStrategy",
            "num_workers": 3,
            "minibatch_size": MINIBATCH_SIZE,
            "num_minibatches_per_task": 10,
            "heartbeat_seconds": 0.2,
            "output": folder / "export",
            "job_dir": folder / "job",
            "summary": folder / "summary.json",
            **flags,
        }
        super().__init__(folder, elasticdl("train", **wanted))

    def model(self):
        with np.load(self.folder / "export" / "model.npz") as arrays:
            return dict(arrays)

    def hurry(self):
        """Let the job go to its end as fast as it can."""
        (self.zoo / "hurry").touch()

    def finish(self):
        """Wait for the end of the job, which may hurry now; return its summary."""
        self.hurry()
        return super().finish()

    def strike_at_each_place(self, is_due=None):
        """Let one fault after the other come, each when the world is whole or as `is_due` says.

        Args:
            is_due: Given the number of a fault, whether it may come already.
        """
        for _ in self.statuses():
            number = self._num_claimed()
            if number == self.num_faults and (not self.is_staged or self._is_whole_after(number)):
                self.hurry()
            if self._is_whole_after(number) or (is_due and is_due(number)):
                (self.zoo / f"due-{number}").touch()
        assert self._num_claimed() == self.num_faults, self.log()

    def _is_whole_after(self, number):
        """Return whether the world is whole, and all that died by so many faults are known lost."""
        deaths = [place for place, _ in self._faults[:number] if place != "abort after reduction"]
        return len(self.events("lost")) >= len(deaths) and self.has_world_of(3)

    def _num_claimed(self):
        return len(list(self.zoo.glob("claimed-*")))

    def stages(self):
        """Return during how many steps each joiner was given the parameters, with its pid."""
        names = [file.name.split("-") for file in (self.zoo / "stages").iterdir()]
        return [(int(end) - int(begin), pid) for begin, end, pid in names]


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
        # Of each update all minibatches count, whoever has made them.
        assert model["state/updates"] >= records / batch_size, model["state/updates"]
        assert model["state/updates"] == records / MINIBATCH_SIZE, model["state/updates"]
    assert summary["staleness"]["max"] == 0


def check_hashes(job):
    """All ranks that came to an update had the same weights, slots and watermarks."""
    hashes = defaultdict(list)
    for file in (job.zoo / "hashes").iterdir():
        hashes[int(file.name.split("-")[0])].append(file.read_text())
    shared = {version for version, found in hashes.items() if len(found) > 1}
    assert len(shared) >= 3
    assert [version for version in shared if len(set(hashes[version])) > 1] == []


def check_stages(job):
    """Steps went on while workers were given the parameters, and they had the same bits then."""
    stages = job.stages()
    assert stages
    assert min(num_steps for num_steps, _ in stages) > 0
    hashes = defaultdict(dict)
    for file in (job.zoo / "hashes").iterdir():
        position, pid = file.name.split("-")
        hashes[position][pid] = file.read_text()
    compared = {pid for found in hashes.values() if len(found) > 1 for pid in found}
    assert compared & {pid for _, pid in stages}

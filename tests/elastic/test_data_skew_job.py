"""Real jobs of files of which one differs: the master tells which, of what workers report."""

import threading

import pytest

from elasticdl._core import RecordWriter
from tests.elastic.running_job import RunningJob, elasticdl
from tests.elastic.seen_job import COUNTING

NUM_FILES, RECORDS = 8, 320
ODD = 5
FIRST_ODD_ID = 1_000_000

# Records with large ids are those of the odd file: to feed them takes long, and their loss is high.
MODEL = """

import time

_feed_at_once, _gradients_at_once = feed, _gradients


def feed(records, mode, metadata):
    if any(int(record) >= {first_odd_id} for record in records):
        time.sleep(1.0)
    return _feed_at_once(records, mode, metadata)


def _gradients(dense, rows, features, labels):
    time.sleep(0.01)
    loss = 7.0 if features.max() >= {first_odd_id} else 1.0
    return loss, *_gradients_at_once(dense, rows, features, labels)[1:]
"""


class SkewedJob(RunningJob):
    """`elasticdl train` over files of which one is read slowly, and has another loss."""

    def __init__(self, folder):
        """Write its files and its model."""
        zoo, data = folder / "zoo", folder / "data"
        for path in (zoo, data):
            path.mkdir()
        model = COUNTING.read_text() + MODEL.format(first_odd_id=FIRST_ODD_ID)
        (zoo / "model.py").write_text(model)
        self.odd = data / f"part-{ODD}.recordio"
        for number in range(NUM_FILES):
            first = FIRST_ODD_ID if number == ODD else 0
            with RecordWriter(str(data / f"part-{number}.recordio")) as writer:
                writer.write_many(str(first + id).encode() for id in range(RECORDS))
        flags = {
            "model_zoo": zoo,
            "model_def": "model.forward",
            "training_data": data,
            "distribution_strategy": "ParameterServerStrategy",
            "num_workers": 2,
            "num_ps_pods": 1,
            "minibatch_size": 16,
            "num_minibatches_per_task": 1,
            "num_epochs": 1_000,  # it is ended when something was told
            "heartbeat_seconds": 0.2,
            "job_dir": folder / "job",
        }
        super().__init__(folder, elasticdl("train", **flags))

    def told(self):
        """Return what was told of the data so far: the file, by what it is told of."""
        files = {e["what"]: e["source"] for e in self.events("anomaly") if e["source"]}
        assert self.is_running(), self.log()
        return files


@pytest.mark.long
@pytest.mark.timeout(300)
def test_file_of_a_real_job_that_is_slow_and_of_another_loss_is_told(tmp_path):
    with SkewedJob(tmp_path) as job:
        while len(job.told()) < 2:
            threading.Event().wait(0.2)
        told = job.told()
    assert told == {"slow file": str(job.odd), "file of other loss": str(job.odd)}

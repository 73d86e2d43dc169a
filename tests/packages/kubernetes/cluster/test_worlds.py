"""Workers of a ring are pods: each is found at its pod's address, and any pod may be lost."""

import re
from pathlib import Path

import numpy as np
import pytest

from elasticdl._core import RecordWriter
from tests.clusters.kubernetes.namespace import Namespace
from tests.packages.kubernetes.cluster.job import ClusterJob

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(400)]

ZOO = Path(__file__).with_name("visits")
NUM_RECORDS = 24_000


class VisitsJob(ClusterJob):
    """A job whose model says how often each record was trained, in each holder."""

    def __init__(self, namespace: Namespace, folder: Path, num_ps: int = 0) -> None:
        super().__init__(namespace, folder, name="visits")
        self.epochs = 1
        self._num_ps = num_ps
        with RecordWriter(str(folder / "visits.recordio")) as writer:
            writer.write_many(str(number).encode() for number in range(NUM_RECORDS))

    def train(self, **others: object) -> None:
        has_rows = self._num_ps > 0
        self.start(
            model_zoo=ZOO,
            model_def="model.forward",
            model_params=f"num_records={NUM_RECORDS};seconds=0.02;has_rows={has_rows}",
            training_data="/data/visits.recordio",
            distribution_strategy="HybridStrategy" if has_rows else "AllreduceStrategy",
            num_ps_pods=self._num_ps or "",
            minibatch_size=16,
            num_minibatches_per_task=10,
            **others,
        )

    def check(self) -> None:
        """Each record was trained once: the model itself says so, and the job."""
        assert self.end() == 0, "".join(self.lines)
        assert self.has_exact_ledger()
        with np.load(self.folder / "model" / "model.npz") as arrays:
            model = dict(arrays)
        np.testing.assert_array_equal(model["dense/visits"], np.ones(NUM_RECORDS))
        if self._num_ps:
            np.testing.assert_array_equal(model["table/rows/keys"], np.arange(NUM_RECORDS))
            np.testing.assert_array_equal(model["table/rows/rows"], np.ones((NUM_RECORDS, 1)))


@pytest.fixture
def start(namespace: Namespace, tmp_path):
    """Return what makes a job in the namespace of the test."""
    jobs = []

    def make(**settings):
        jobs.append(VisitsJob(namespace, tmp_path, **settings))
        return jobs[0]

    yield make
    for job in jobs:
        job.close()


def test_a_worker_and_the_master_of_a_ring_are_lost(start):
    job = start()
    job.train()
    job.until_records(4_000)
    workers, masters = job.running("worker"), job.running("master")
    assert len(workers) == 3
    job.namespace.delete(sorted(workers)[0], grace_seconds=0)
    job.read_until("world 2: ")
    job.namespace.delete(sorted(masters)[0])
    job.check()
    said = "".join(job.lines)
    assert re.search(r"world 1: workers 0, 1, 2", said)
    assert re.search("worker 0 was .*its pod was deleted", said)
    assert not {pod["metadata"]["name"] for pod in job.pods("master")} & set(masters)
    assert job.summary()["counters"]["resumed_masters"] == 1
    assert "all workers were lost" not in said


def test_a_ps_replica_and_a_worker_of_a_hybrid_job_are_lost(start):
    job = start(num_ps=2)
    job.train(recovery_seconds=1)
    job.until_records(4_000)
    job.namespace.delete(sorted(job.running("ps"))[0], grace_seconds=0)
    job.read_until("ps replica 0 is back")
    job.namespace.delete(sorted(job.running("worker"))[0], grace_seconds=0)
    job.check()

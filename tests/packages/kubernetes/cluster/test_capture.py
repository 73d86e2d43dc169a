"""What one on the network of a job's pods reads: with TLS nothing, without it everything."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from tests.clusters.kubernetes.capture import Capture
from tests.clusters.kubernetes.namespace import Namespace
from tests.packages.kubernetes.cluster.job import ClusterJob

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]

SENTINEL = np.float32(1234.5678)
ROW = np.full(4, SENTINEL, np.float32).tobytes()
NUM_IDS = 5_000

# Every row begins as the sentinel, and is pushed with gradients of it.
MODEL = f"""
import numpy as np
from elasticdl import ArrayModel, ArrayOptimizer, ArrayTable, Initializer


def forward():
    value = {{"value": {float(SENTINEL)!r}}}
    return ArrayModel(
        tables=[ArrayTable("t", dim=4, initializer=Initializer("constant", value))],
        ids=lambda features: [features],
        predict=lambda dense, rows, features: rows[0][..., 0],
        gradients=lambda dense, rows, features, labels: (
            0.0, [np.full_like(rows[0], {float(SENTINEL)!r})], {{}}
        ),
    )


def optimizer():
    return ArrayOptimizer(learning_rate=1e-6)


def feed(records, mode, metadata):
    ids = np.array([[int(word) for word in record.split()] for record in records])
    return ids, np.zeros(len(records), np.float32)
"""


def train(namespace: Namespace, folder, **flags: object) -> tuple[bytes, bytes]:
    """Run a job to its end; return what was heard on its network, and its token."""
    for name in ("shared", "zoo"):
        (folder / name).mkdir()
    (folder / "zoo" / "model.py").write_text(MODEL)
    job = ClusterJob(namespace, folder / "shared", name="secretive")
    job.epochs = 1
    words = {"model_zoo": folder / "zoo", "model_def": "model.forward", **flags}
    with Capture(namespace.cluster.network, folder / "packets") as capture:
        try:
            job.start(**words)
            job.read_until("the job is training")
            found = namespace.cluster.api.get(namespace.path("secrets", job.name))
            code = job.end()
        finally:
            job.close()
    assert code == 0, "".join(job.lines)
    return capture.heard(), bytes.fromhex(base64.b64decode(found["data"]["token"]).decode())


def test_with_tls_a_capture_shows_no_row_and_no_token(namespace, tmp_path):
    heard, token = train(namespace, tmp_path)
    assert len(heard) > 100_000
    assert ROW not in heard
    assert b"EDLW" not in heard  # the greeting of the tensor plane
    assert token not in heard
    assert b"elasticdl.v1" not in heard  # the name of the master's service


def test_without_tls_the_same_capture_shows_them(namespace, tmp_path):
    heard, token = train(namespace, tmp_path, tls="off", insecure="true")
    assert heard.count(ROW) > 100  # so the other test can fail
    assert b"EDLW" in heard
    assert b"elasticdl.v1" in heard
    assert token in heard

"""A whole job on a table of MaxCompute, by a stand-in for its servers."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("pyarrow")
import pyarrow as arrow

from tests.packages.readers.maxcompute_server import MaxComputeServer

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        importlib.util.find_spec("odps") is None,
        reason="odps is not installed; make lock installs it",
    ),
]

KEY = "swordfish-4711"

MODEL = """
import numpy as np
from elasticdl import ArrayModel, ArrayOptimizer, ArrayTable


def forward():
    return ArrayModel(
        tables=[ArrayTable("t", 1)],
        ids=lambda features: [features],
        predict=lambda dense, rows, features: rows[0][..., 0],
        gradients=lambda dense, rows, features, labels: (0.0, [np.zeros_like(rows[0])], {}),
    )


def feed(records, mode, metadata):
    assert metadata.column_names == ("n", "site")
    assert all(record["site"].startswith("größe") for record in records)
    return np.array([record["n"] for record in records]), np.zeros(len(records), np.float32)


def optimizer():
    return ArrayOptimizer(learning_rate=0.1)
"""


@pytest.fixture
def server():
    server = MaxComputeServer(access_key=KEY)
    yield server
    server.close()


def test_a_job_trains_each_row_once_and_shows_no_credentials(server, tmp_path):
    sites = [f"größe {n % 5}" for n in range(400)]
    server.tables["clicks"] = arrow.table({"n": list(range(400)), "site": sites})
    server.faults.extend([("break", 100), ("garble", 200)])
    (tmp_path / "model.py").write_text(MODEL)
    flags = {
        "model_zoo": tmp_path,
        "model_def": "model.forward",
        "training_data": "odps://project/tables/clicks",
        "distribution_strategy": "ParameterServerStrategy",
        "num_workers": 2,
        "num_ps_pods": 1,
        "minibatch_size": 20,
        "num_minibatches_per_task": 2,
        "job_dir": tmp_path / "job",
        "summary": tmp_path / "summary.json",
        "log_level": "DEBUG",
    }
    environment = {"AK": "reader", "SK": KEY, "ENDPOINT": server.endpoint}
    done = subprocess.run(
        [sys.executable, "-m", "elasticdl.cli.main", "train"]
        + [f"--{name}={value}" for name, value in flags.items()],
        env=os.environ | {f"MAXCOMPUTE_{name}": word for name, word in environment.items()},
        capture_output=True,
        text=True,
        timeout=280,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    (epoch,) = json.loads((tmp_path / "summary.json").read_text())["ledger"]
    assert (epoch["trained_once"], epoch["repeated"], epoch["lost"]) == (400, 0, 0)
    assert server.met == ["break", "garble"]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.name for path in files if KEY.encode() in path.read_bytes()] == []
    assert KEY not in done.stdout + done.stderr
    assert "ODPS reader:" not in done.stdout + done.stderr  # no signature

"""Whole jobs with a life cycle: what is admitted, what expires, and what is exported."""

import json

import numpy as np
import pyarrow.dataset
import pytest

from elasticdl._core import RecordWriter
from elasticdl.backends.backend import Backend
from tests.elastic.running_job import in_process

pytestmark = pytest.mark.timeout(600)

MODEL = """
import numpy as np
from elasticdl import (
    ArrayModel, ArrayOptimizer, ArrayTable, CountAdmission, Expiry, Initializer, Mode,
)

ZERO = Initializer("constant", {"value": 0.0})


def forward():
    return ArrayModel(
        tables=[
            ArrayTable("often", 1, ZERO, admission=CountAdmission(3)),
            ArrayTable("recent", 1, ZERO, expiry=Expiry(steps=4)),
            ArrayTable("all", 1, ZERO),
        ],
        ids=lambda features: [features] * 3,
        predict=lambda dense, rows, features: rows[0][..., 0],
        gradients=lambda dense, rows, features, labels: (
            0.0, [np.full_like(r, -1.0) for r in rows], {}
        ),
    )


def optimizer():
    return ArrayOptimizer(learning_rate=1.0)


def feed(records, mode, metadata):
    return np.array([[int(r)] for r in records], np.int64), np.zeros(len(records), np.float32)
"""
FIRST, SECOND = list(range(10)), list(range(10, 20))


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Five minibatches of ids 0 to 9, then five of 10 to 19; id 99 is in two of them."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(Backend, "is_imported", lambda backend: False)  # by other tests
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "life.py").write_text(MODEL)
    minibatches = [FIRST] * 5 + [SECOND] * 5
    with RecordWriter(str(tmp_path / "data.recordio")) as writer:
        for number, ids in enumerate(minibatches):
            for i in ids if number not in (0, 9) else [*ids[:9], 99]:
                writer.write(b"%d" % i)

    def run(command, *words, check=True):
        done = in_process(command, *words, cwd=tmp_path)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    return run


TRAIN = (
    "--model_zoo=zoo",
    "--model_def=life.forward",
    "--training_data=data.recordio",
    "--minibatch_size=10",
    "--num_minibatches_per_task=10",
    "--shuffle_tasks=false",
    "--max_staleness=0",
    "--checkpoint_dir=checkpoints",
    "--export_tables=tables",
)
PS = ("--distribution_strategy=ParameterServerStrategy", "--num_workers=1")


def read(folder):
    found = pyarrow.dataset.dataset(folder, format="parquet").to_table()
    return dict(
        zip(found["key"].to_pylist(), [w for [w] in found["weights"].to_pylist()], strict=True)
    )


def test_a_job_exports_what_was_admitted_and_has_not_expired(job, tmp_path):
    job("train", *TRAIN, "--distribution_strategy=Local")

    # Shuffled within the task: who was when is not known, but how often is.
    counts = {**{i: 5.0 for i in range(20)}, 9: 4.0, 19: 4.0, 99: 2.0}
    assert read(tmp_path / "tables" / "all") == counts
    often = read(tmp_path / "tables" / "often")
    assert 99 not in often
    recent = read(tmp_path / "tables" / "recent")
    assert set(recent) <= set(counts)
    assert (tmp_path / "tables" / "_SUCCESS").exists()


def test_the_tables_of_a_checkpoint_are_exported_by_a_command(job, tmp_path):
    job("train", *TRAIN, *PS, "--num_ps_pods=2")

    done = job(
        "export", "--checkpoint_dir_for_init=checkpoints", "--export_tables=again",
        "--export_threshold=0",
    )  # fmt: skip
    manifest = json.loads((tmp_path / "again" / "manifest.json").read_text())
    assert manifest["version"] == 10
    assert [table["name"] for table in manifest["tables"]] == ["often", "recent", "all"]
    assert f"{sum(f['rows'] for t in manifest['tables'] for f in t['files'])} rows" in done.stdout
    for name in ("often", "recent", "all"):
        assert read(tmp_path / "again" / name) == read(tmp_path / "tables" / name)

    refused = job(
        "export", "--checkpoint_dir_for_init=checkpoints", "--export_tables=again", check=False
    )
    assert refused.returncode == 1
    assert "expected a folder that is new or empty" in refused.stderr
    words = job("train", *TRAIN[:-1], "--export_threshold=0", check=False)
    assert "need --export_tables" in words.stderr
    assert np.all(list(read(tmp_path / "again" / "all").values()))

"""Whole jobs that keep the strings of their ids: an export is read by a person."""

import json
import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pyarrow.dataset
import pytest

from elasticdl._core import RecordWriter, keys_of_strings

pytestmark = pytest.mark.timeout(600)

MODEL = """
import os
import signal

import numpy as np
import psutil
from elasticdl import ArrayModel, ArrayOptimizer, ArrayTable, CountAdmission, Initializer

ZERO = Initializer("constant", {"value": 0.0})


def forward():
    return ArrayModel(
        tables=[
            ArrayTable("word", 1, ZERO, keep_names=True),
            ArrayTable("often", 1, ZERO, keep_names=True, admission=CountAdmission(3)),
            ArrayTable("plain", 1, ZERO),
        ],
        ids=lambda features: [features] * 3,
        predict=lambda dense, rows, features: rows[0][..., 0],
        gradients=gradients,
    )


def gradients(dense, rows, features, labels):
    if KILL and "word-500" in features and not os.path.exists("killed"):
        open("killed", "w").close()
        alive = psutil.process_iter(["cmdline"])
        victims = [p for p in alive if is_victim(p.info["cmdline"] or [])]
        os.kill(os.getpid() if KILL == "worker" else victims[0].pid, signal.SIGKILL)
    return 0.0, [np.full_like(r, -1.0) for r in rows], {}


def is_victim(command):
    # A ps replica of this job.
    return "elasticdl.ps" in command and any(os.getcwd() in word for word in command)


KILL = os.environ.get("TEST_KILL")


def optimizer():
    return ArrayOptimizer(learning_rate=1.0)


def feed(records, mode, metadata):
    return np.array([[r.decode()] for r in records]), np.zeros(len(records), np.float32)
"""


def words():
    """Some words once, some often; one is not ASCII, one is longer than what is kept."""
    drawn = np.random.default_rng(3).zipf(1.3, 4000) % 1000
    return [f"word-{i}" for i in drawn] + ["größe", "x" * 2000, "word-500"]


def run(tmp_path, *flags, **env):
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "names.py").write_text(MODEL)
    with RecordWriter(str(tmp_path / "data.recordio")) as writer:
        for word in words():
            writer.write(word.encode())
    done = subprocess.run(
        [
            sys.executable, "-m", "elasticdl.cli.main", "train", "--model_zoo=zoo",
            "--model_def=names.forward", "--training_data=data.recordio",
            "--minibatch_size=50", "--num_minibatches_per_task=4", "--export_tables=tables",
            "--checkpoint_dir=checkpoints", "--checkpoint_steps=30", *flags,
        ],
        capture_output=True, text=True, timeout=280, cwd=tmp_path,
        env={**os.environ, "COLUMNS": "200", **env},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def read(folder):
    table = pyarrow.dataset.dataset(folder, format="parquet").to_table()
    weights = [w for [w] in table["weights"].to_pylist()]
    names = table["name"].to_pylist() if "name" in table.column_names else [None] * len(weights)
    return dict(zip(table["key"].to_pylist(), zip(names, weights, strict=True), strict=True))


def assert_names(tables):
    counts = Counter(words())
    keys = dict(zip(counts, keys_of_strings(list(counts)).tolist(), strict=True))
    kept = {word: word if len(word) < 1024 else "x" * 1021 + "…" for word in counts}
    expected = {keys[word]: (kept[word], float(count)) for word, count in counts.items()}
    assert read(tables / "word") == expected
    plain = read(tables / "plain")
    assert {key: weight for key, (_, weight) in plain.items()} == {
        key: weight for key, (_, weight) in expected.items()
    }
    often = read(tables / "often")
    assert often
    assert {key: name for key, (name, _) in often.items()} == {
        key: expected[key][0] for key in often
    }
    manifest = json.loads((tables / "manifest.json").read_text())
    assert [table["has_names"] for table in manifest["tables"]] == [True, True, False]
    assert [table["name_collisions"] for table in manifest["tables"]] == [0, 0, 0]


PS = ("--distribution_strategy=ParameterServerStrategy",)


def test_names_survive_the_death_of_a_ps_replica(tmp_path):
    job_dir = f"--job_dir={tmp_path / 'job'}"
    run(tmp_path, *PS, "--num_ps_pods=2", "--num_workers=2", job_dir, TEST_KILL="ps")

    assert (tmp_path / "killed").exists()
    assert_names(tmp_path / "tables")


@pytest.mark.long
def test_1_and_8_replicas_admit_alike_whatever_is_killed(tmp_path):
    admitted = []
    for flags, killed in [
        (("--num_ps_pods=1", "--num_workers=1"), ""),
        (("--num_ps_pods=8", "--num_workers=2"), "ps"),
        (("--num_ps_pods=1", "--num_workers=2"), "worker"),
    ]:
        folder = tmp_path / (killed or "nobody")
        folder.mkdir()
        run(folder, *PS, *flags, f"--job_dir={folder / 'job'}", TEST_KILL=killed)
        assert (folder / "killed").exists() == bool(killed)
        assert_names(folder / "tables")
        admitted.append(set(read(folder / "tables" / "often")))

    # Those of three minibatches and more; which these are follows from seed and task alone.
    assert admitted[0] == admitted[1] == admitted[2]
    assert 100 < len(admitted[0]) < len(set(words()))

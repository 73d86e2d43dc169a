"""A job whose worker compiles its steps gives the metrics of one that does not."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from elasticdl._core import RecordWriter
from elasticdl.data.example import encode_examples

pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.torch,
    pytest.mark.timeout(500),
    pytest.mark.skipif(
        shutil.which("g++") is None, reason="there is no g++, with which PyTorch compiles"
    ),
]


@pytest.fixture(scope="module")
def flights(tmp_path_factory, load_module):
    folder = tmp_path_factory.mktemp("torch-compile")
    fields = load_module(ROOT / "model_zoo" / "flights" / "fields.py")
    rng = np.random.default_rng(0)
    columns = {name: rng.integers(size, size=9_000) for name, size in fields.FIELDS.items()}
    columns[fields.LABEL] = (columns["carrier"] > 12).astype(np.int64)
    with RecordWriter(str(folder / "train.recordio")) as writer:
        writer.write_many(encode_examples(columns))
    return folder / "train.recordio"


def train(flights, folder, *flags):
    """Run a job of which two runs give the same; return its summary and its log."""
    words = [
        *("--model_def=flights.deepfm_torch.forward", f"--model_zoo={ROOT / 'model_zoo'}"),
        *(f"--training_data={flights}", f"--validation_data={flights}"),
        *("--distribution_strategy=ParameterServerStrategy", "--num_workers=1", "--num_ps_pods=1"),
        *("--max_staleness=0", "--minibatch_size=512", f"--job_dir={folder / 'job'}"),
        # A task ends with a short minibatch, which is compiled when it comes.
        *("--num_minibatches_per_task=100", f"--summary={folder / 'summary.json'}"),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "elasticdl.cli.main", "train", *words, *flags],
        env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(folder / "compiled")},
        capture_output=True,
        text=True,
        timeout=400,
    )
    logs = "".join(log.read_text() for log in (folder / "job" / "logs").glob("worker*"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    return json.loads((folder / "summary.json").read_text())


def test_a_job_of_compiled_steps_gives_the_metrics_of_one_that_is_not_compiled(flights, tmp_path):
    folders = [tmp_path / "plain", tmp_path / "compiled"]
    for folder in folders:
        folder.mkdir()
    plain = train(flights, folders[0])
    # Less than a compilation takes: that does not count, before the first task and in one.
    compiled = train(flights, folders[1], "--torch_compile", "--task_timeout_seconds=3")

    assert list((folders[1] / "compiled").rglob("*.so")), "something was compiled"
    assert compiled["metrics"] == pytest.approx(plain["metrics"], abs=1e-4)
    assert [row["trained_once"] for row in compiled["ledger"]] == [9_000]
    assert not compiled.get("relaunches")

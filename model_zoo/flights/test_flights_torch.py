import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from elasticdl import Mode
from elasticdl._core import RecordWriter
from elasticdl.config import ModelSection
from elasticdl.data.base import Metadata
from elasticdl.data.example import encode_examples
from elasticdl.model_spec import load_model_spec

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

ZOO = Path(__file__).parents[1]
NUM_FLIGHTS = 24_000

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def spec():
    return load_model_spec(ModelSection(model_zoo=ZOO, model_def="flights.deepfm_torch.forward"))


@pytest.fixture(scope="module")
def columns(spec):
    """Flights whose lateness depends on their carrier and hour alone."""
    from flights.fields import FIELDS, LABEL

    rng = np.random.default_rng(0)
    columns = {name: rng.integers(size, size=NUM_FLIGHTS) for name, size in FIELDS.items()}
    odds = 1 / (1 + np.exp(-(columns["carrier"] - 12) / 4.0 - (columns["hour"] - 12) / 4.0))
    columns[LABEL] = (rng.random(NUM_FLIGHTS) < odds).astype(np.int64)
    return columns


def examples(columns, count):
    from elasticdl.packages.torch.feed import TaskRecords

    return TaskRecords(encode_examples({n: values[:count] for n, values in columns.items()}), {})


def test_each_category_has_a_range_of_ids_of_its_own(spec, columns):
    module = sys.modules["flights.deepfm_torch"]

    ids, labels = spec.feed(examples(columns, 500), Mode.EVALUATION, Metadata())

    limits = [*module.OFFSETS[1:], module.NUM_IDS]
    for column, (low, high) in enumerate(zip(module.OFFSETS, limits, strict=True)):
        assert ids[:, column].min() >= low
        assert ids[:, column].max() < high
    np.testing.assert_array_equal(ids[:, 0], columns["date"][:500])
    np.testing.assert_array_equal(labels[:, 0], columns["late"][:500])


def test_learns_in_a_plain_loop_of_pytorch(spec, columns):
    torch.manual_seed(0)
    model = spec.model()
    optimizer = spec.optimizer(model.parameters())
    ids, labels = (
        torch.from_numpy(part)
        for part in spec.feed(examples(columns, 8000), Mode.TRAINING, Metadata())
    )

    losses = []
    for step in range(30):
        part = slice(step * 256, (step + 1) * 256)
        loss = spec.loss(labels[part], model(ids[part]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.05


def test_trains_in_a_job(strategy, columns, tmp_path):
    records = encode_examples(columns)
    for name, part in (("train", records[4000:]), ("validation", records[:4000])):
        with RecordWriter(str(tmp_path / f"{name}.recordio")) as writer:
            writer.write_many(part)
    command = [
        sys.executable,
        "-c",
        "from elasticdl.cli.main import main; main()",
        "train",
        f"--model_zoo={ZOO}",
        "--model_def=flights.deepfm_torch.forward",
        f"--training_data={tmp_path / 'train.recordio'}",
        f"--validation_data={tmp_path / 'validation.recordio'}",
        "--minibatch_size=256",
        "--num_epochs=2",
        f"--summary={tmp_path / 'summary.json'}",
        f"--job_dir={tmp_path / 'job'}",
        *strategy,
    ]

    done = subprocess.run(command, capture_output=True, text=True, timeout=550)

    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [epoch["trained_once"] for epoch in summary["ledger"]] == [20_000] * 2
    assert summary["metrics"]["accuracy"] > 0.75

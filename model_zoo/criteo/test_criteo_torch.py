import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from elasticdl._core import RecordWriter
from elasticdl.config import ModelSection
from elasticdl.data.example import encode_examples
from elasticdl.model_spec import load_model_spec

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

ZOO = Path(__file__).parents[1]

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def spec():
    return load_model_spec(ModelSection(model_zoo=ZOO, model_def="criteo.deepfm_torch.forward"))


def test_logits_are_those_of_the_formula(spec, monkeypatch):
    """Guo et al. 2017, equations 1 and 2, pair by pair."""
    monkeypatch.setattr(sys.modules["criteo.deepfm_torch"], "NUM_IDS", 100)
    model = spec.model().double()
    with torch.no_grad():
        model.weights.weight.normal_()
    rng = np.random.default_rng(0)
    numbers, ids = rng.random((5, 13)), rng.integers(100, size=(5, 26))

    logits = model({"numbers": torch.tensor(numbers), "ids": torch.tensor(ids)})

    scaled = numbers[:, :, None] * model.number_vectors.detach().numpy()
    vectors = np.concatenate([scaled, model.vectors.weight.detach().numpy()[ids]], 1)
    linear = model.weights.weight.detach().numpy()[ids].sum(1)
    linear = linear + numbers @ model.number_weights.weight.detach().numpy().T
    products = np.einsum("rid,rjd->rij", vectors, vectors)
    pairs = np.triu(products, 1).sum((1, 2))[:, None]
    deep = model.deep(torch.tensor(vectors.reshape(5, -1))).detach().numpy()
    np.testing.assert_allclose(logits.detach().numpy(), linear + pairs + deep, rtol=1e-9)


def test_trains_in_a_job_with_ps_replicas(spec, tmp_path):
    from criteo.prepare import make_columns

    records = encode_examples(make_columns(24_000, seed=(1, 2, 3)))
    for name, part in (("train", records[4000:]), ("validation", records[:4000])):
        with RecordWriter(str(tmp_path / f"{name}.recordio")) as writer:
            writer.write_many(part)
    command = [
        *(sys.executable, "-c", "from elasticdl.cli.main import main; main()", "train"),
        f"--model_zoo={ZOO}",
        "--model_def=criteo.deepfm_torch.forward",
        f"--training_data={tmp_path / 'train.recordio'}",
        f"--validation_data={tmp_path / 'validation.recordio'}",
        "--minibatch_size=256",
        "--distribution_strategy=ParameterServerStrategy",
        *("--num_workers=1", "--num_ps_pods=2"),
        f"--summary={tmp_path / 'summary.json'}",
        f"--job_dir={tmp_path / 'job'}",
    ]

    done = subprocess.run(command, capture_output=True, text=True, timeout=550)

    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [epoch["trained_once"] for epoch in summary["ledger"]] == [20_000]
    assert summary["metrics"]["accuracy"] > 0.52

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from elasticdl import Mode
from elasticdl.config import ModelSection
from elasticdl.data.base import Metadata
from elasticdl.data.example import encode_examples
from elasticdl.model_spec import load_model_spec

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

from torch.utils.data import TensorDataset  # noqa: E402  # after the skip

ZOO = Path(__file__).parents[1]
NUM_DIGITS = 640

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def spec():
    return load_model_spec(ModelSection(model_zoo=ZOO, model_def="mnist.model_torch.custom_model"))


@pytest.fixture(scope="module")
def digits():
    """Handwritten digits of 8 x 8 pixels, enlarged and framed to the 28 x 28 of MNIST."""
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8)[:NUM_DIGITS] * (255 / 16)
    enlarged = images.repeat(3, axis=1).repeat(3, axis=2)
    return np.pad(enlarged, ((0, 0), (2, 2), (2, 2))).astype(np.uint8), labels[:NUM_DIGITS]


@pytest.fixture(scope="module")
def examples(spec, digits):
    from elasticdl.packages.torch.feed import TaskRecords

    images, labels = digits
    records = encode_examples(
        {
            "image": images.reshape(len(images), -1).astype(np.float32),
            "label": labels.astype(np.int64),
        }
    )
    return TaskRecords(records, {})


def test_feed_gives_images_between_0_and_1_and_a_label(spec, digits, examples):
    images, labels = spec.feed(examples, Mode.EVALUATION, Metadata())

    np.testing.assert_allclose(images, digits[0] / 255.0, atol=1e-6)
    np.testing.assert_array_equal(labels, digits[1])


def test_learns_in_a_plain_loop_of_pytorch(spec, examples):
    torch.manual_seed(0)
    model = spec.model()
    optimizer = spec.optimizer(model.parameters())
    images, labels = spec.feed(examples, Mode.TRAINING, Metadata())
    dataset = TensorDataset(images, torch.from_numpy(labels))

    for _ in range(3):
        for x, y in torch.utils.data.DataLoader(dataset, batch_size=32, shuffle=True):
            optimizer.zero_grad()
            spec.loss(y, model(x)).backward()
            optimizer.step()
    accuracy = spec.eval_metrics_fn()["accuracy"](dataset.tensors[1], model(images))

    assert accuracy.float().mean() > 0.8


def test_trains_in_a_local_job(spec, digits, tmp_path):
    from mnist.prepare import write

    write(digits, tmp_path, validation_share=0.1)
    command = [
        sys.executable,
        "-c",
        "from elasticdl.cli.main import main; main()",
        "train",
        f"--model_zoo={ZOO}",
        "--model_def=mnist.model_torch.custom_model",
        f"--training_data={tmp_path / 'train'}",
        f"--validation_data={tmp_path / 'validation'}",
        "--minibatch_size=32",
        "--num_epochs=3",
        "--learning_rate=0.05",
        f"--output={tmp_path / 'export'}",
        f"--summary={tmp_path / 'summary.json'}",
    ]

    done = subprocess.run(command, capture_output=True, text=True, timeout=550)

    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [epoch["trained_once"] for epoch in summary["ledger"]] == [576] * 3
    assert summary["metrics"]["accuracy"] > 0.7
    assert (tmp_path / "export" / "model.safetensors").exists()

import json
import subprocess
import sys
from pathlib import Path

import pytest

from elasticdl import Mode
from elasticdl.config import ModelSection
from elasticdl.data.base import Metadata
from elasticdl.model_spec import load_model_spec

ZOO = Path(__file__).parents[1]

pytestmark = [pytest.mark.keras, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def spec():
    return load_model_spec(ModelSection(model_zoo=ZOO, model_def="clicks.model.forward"))


def test_feed_parses_a_line(spec):
    import tensorflow as tf

    lines = tf.data.Dataset.from_tensor_slices(["17,3,1"])

    features, label = next(iter(spec.feed(lines, Mode.EVALUATION, Metadata())))

    assert (int(features["user"]), int(features["item"])) == (17, 3)
    assert label.numpy().tolist() == [1.0]


def test_a_user_and_an_item_give_one_logit(spec):
    import tensorflow as tf

    features = {"user": tf.constant([1, 2, 3]), "item": tf.constant([4, 5, 6])}

    assert spec.model()(features).shape == (3, 1)


@pytest.mark.long
def test_a_local_job_learns_the_tastes(spec, tmp_path):
    from clicks.make_data import HEADER, make_clicks

    for seed, (name, num_records) in enumerate({"train": 40_000, "test": 4_000}.items()):
        lines = [HEADER, *make_clicks(num_records, seed)]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    command = [
        sys.executable,
        "-c",
        "from elasticdl.cli.main import main; main()",
        "train",
        f"--model_zoo={ZOO}",
        "--model_def=clicks.model.forward",
        f"--training_data={tmp_path / 'train.csv'}",
        f"--validation_data={tmp_path / 'test.csv'}",
        "--data_reader_params=skip_header=true",
        "--minibatch_size=256",
        "--num_epochs=4",
        f"--summary={tmp_path / 'summary.json'}",
    ]

    done = subprocess.run(command, capture_output=True, text=True, timeout=550)

    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["metrics"]["auc"] > 0.8
    assert [epoch["trained_once"] for epoch in summary["ledger"]] == [40_000] * 4

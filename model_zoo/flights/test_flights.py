import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from elasticdl import Mode
from elasticdl.config import ModelSection
from elasticdl.data.base import Metadata
from elasticdl.data.example import encode_examples
from elasticdl.model_spec import load_model_spec

ZOO = Path(__file__).parents[1]
NUM_FLIGHTS = 20_000

pytestmark = [pytest.mark.keras, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def spec():
    return load_model_spec(ModelSection(model_zoo=ZOO, model_def="flights.deepfm.forward"))


@pytest.fixture(scope="module")
def module(spec):
    return sys.modules["flights.deepfm"]


@pytest.fixture(scope="module")
def columns(spec):
    from flights.prepare import encode, find_package_file, read_flights, split

    everything = encode(read_flights(find_package_file()))
    chosen = split(len(everything["late"]))[0][:NUM_FLIGHTS]
    return {name: values[chosen] for name, values in everything.items()}


@pytest.fixture(scope="module")
def dataset(columns):
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(encode_examples(columns))


def test_every_flight_is_in_the_split_once(spec):
    from flights.prepare import split

    training, validation = split(1000)

    assert len(validation) == 200
    assert sorted([*training, *validation]) == list(range(1000))


def test_a_field_beyond_its_size_is_refused(spec):
    import pandas as pd

    from flights.fields import FIELDS, LABEL
    from flights.prepare import NAMES, encode

    table = pd.DataFrame(
        {name: ["x"] if name in NAMES else [0] for name in FIELDS} | {LABEL: [True]}
    )
    table["hour"] = 24

    with pytest.raises(SystemExit, match="'hour' has the value 24"):
        encode(table)


def test_each_category_has_a_range_of_ids_of_its_own(spec, module, dataset, columns):
    batch, labels = next(iter(spec.feed(dataset, Mode.EVALUATION, Metadata()).batch(NUM_FLIGHTS)))

    ids = batch["ids"].numpy()
    limits = [*module.OFFSETS[1:], module.NUM_IDS]
    for column, (low, high) in enumerate(zip(module.OFFSETS, limits, strict=True)):
        assert ids[:, column].min() >= low
        assert ids[:, column].max() < high
    np.testing.assert_array_equal(ids[:, 0], columns["date"])
    np.testing.assert_array_equal(labels.numpy()[:, 0], columns["late"])


def test_a_prediction_needs_no_label(spec, columns):
    import tensorflow as tf

    unlabelled = {name: values[:3] for name, values in columns.items() if name != "late"}
    records = tf.data.Dataset.from_tensor_slices(encode_examples(unlabelled))

    batch = next(iter(spec.feed(records, Mode.PREDICTION, Metadata()).batch(3)))

    assert spec.model()(batch).shape == (3, 1)


@pytest.mark.long
def test_learns_in_a_plain_python_session(spec, module, dataset):
    import keras

    keras.utils.set_random_seed(0)
    model = spec.model()
    model.compile(spec.optimizer(), spec.loss, metrics=list(spec.eval_metrics_fn().values()))
    training = spec.feed(dataset.skip(4000), Mode.TRAINING, Metadata()).batch(512)
    validation = spec.feed(dataset.take(4000), Mode.EVALUATION, Metadata()).batch(512)

    for _epoch in range(2):
        for batch, labels in training:
            model.train_on_batch(batch, labels)
    _loss, auc, accuracy = model.evaluate(validation, verbose=0)

    assert auc > 0.68
    assert accuracy > 0.7


def test_learns_in_a_local_job(columns, tmp_path):
    from elasticdl._core import RecordWriter

    for name, chosen in {"train": slice(4000, None), "validation": slice(4000)}.items():
        with RecordWriter(tmp_path / f"{name}.recordio") as writer:
            writer.write_many(encode_examples({n: v[chosen] for n, v in columns.items()}))
    command = [
        sys.executable,
        "-c",
        "from elasticdl.cli.main import main; main()",
        "train",
        f"--model_zoo={ZOO}",
        "--model_def=flights.deepfm.forward",
        f"--training_data={tmp_path / 'train.recordio'}",
        f"--validation_data={tmp_path / 'validation.recordio'}",
        "--minibatch_size=512",
        "--num_epochs=2",
        f"--summary={tmp_path / 'summary.json'}",
    ]

    done = subprocess.run(command, capture_output=True, text=True, timeout=550)

    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["metrics"]["auc"] > 0.68
    assert [epoch["trained_once"] for epoch in summary["ledger"]] == [16_000, 16_000]

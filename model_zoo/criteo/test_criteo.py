import sys
from pathlib import Path

import numpy as np
import pytest

from elasticdl import Mode
from elasticdl._core import RecordReader
from elasticdl.config import ModelSection
from elasticdl.data.base import Metadata
from elasticdl.data.example import decode_example
from elasticdl.model_spec import load_model_spec

ZOO = Path(__file__).parents[1]

pytestmark = [pytest.mark.keras, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def spec():
    return load_model_spec(ModelSection(model_zoo=ZOO, model_def="criteo.deepfm.forward"))


def test_the_fields_share_ten_million_ids(spec):
    from criteo.fields import NUM_IDS, OFFSETS, SIZES

    assert sum(SIZES) == NUM_IDS
    assert OFFSETS[-1] + SIZES[-1] == NUM_IDS
    assert len(SIZES) == 26


def test_ids_are_of_their_field_and_few_are_frequent(spec):
    from criteo.fields import NUM_IDS, OFFSETS
    from criteo.prepare import make_columns

    columns = make_columns(20_000, seed=(0, 0, 0))

    for field, (low, high) in enumerate(zip(OFFSETS, [*OFFSETS[1:], NUM_IDS], strict=True)):
        assert columns["ids"][:, field].min() >= low
        assert columns["ids"][:, field].max() < high
    _ids, counts = np.unique(columns["ids"][:, 2], return_counts=True)
    assert counts.max() > 500  # the most frequent of three million
    assert np.median(counts) == 1
    assert 0.3 < columns["label"].mean() < 0.7


def test_files_hold_what_was_asked_for_and_repeat(spec, tmp_path):
    from criteo.prepare import write

    for name in ("a", "b"):
        write(tmp_path / name, num_records=1001, num_files=2)
    files = sorted((tmp_path / "a").iterdir())

    assert [RecordReader(f).num_records for f in files] == [500, 501]
    for file in files:
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()
    record = decode_example(RecordReader(files[0]).read(0, 1)[0])
    assert {name: len(values) for name, values in record.items()} == {
        "ids": 26,
        "label": 1,
        "numbers": 13,
    }


@pytest.mark.long
def test_learns(spec, monkeypatch):
    import keras
    import tensorflow as tf

    from criteo.prepare import make_columns
    from elasticdl.data.example import encode_examples

    module = sys.modules["criteo.deepfm"]
    monkeypatch.setattr(module, "NUM_IDS", 1000)
    columns = make_columns(20_000, seed=(1, 2, 3))
    columns["ids"] %= 1000  # ten million rows are the store's business, not plain Keras'
    records = tf.data.Dataset.from_tensor_slices(encode_examples(columns))
    keras.utils.set_random_seed(0)
    model = spec.model()
    model.compile(module.adam(0.01), spec.loss, metrics=list(spec.eval_metrics_fn().values()))
    for batch, labels in spec.feed(records.skip(4000), Mode.TRAINING, Metadata()).batch(512):
        model.train_on_batch(batch, labels)
    validation = spec.feed(records.take(4000), Mode.EVALUATION, Metadata()).batch(512)

    _loss, auc = model.evaluate(validation, verbose=0)

    assert auc > 0.6

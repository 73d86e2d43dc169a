import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.keras, pytest.mark.timeout(600)]

MODELS = (
    pytest.param("wide_deep", marks=pytest.mark.long),
    "dcn_v2",
    pytest.param("deepfm", marks=pytest.mark.long),
    pytest.param("xdeepfm", marks=pytest.mark.long),
    pytest.param("dcn", marks=pytest.mark.long),
)
NUM_RECORDS = 8000


@pytest.fixture(scope="module")
def lines():
    """Lines of Criteo's format, as a table."""
    zoo = str(Path(__file__).parents[1])
    if zoo not in sys.path:
        sys.path.insert(0, zoo)
    from criteo.generate import make_table

    return make_table(NUM_RECORDS, seed=(0, 0))


def statistics_of(lines, path):
    """Write what an analysis of the columns would find, as far as the model asks."""
    columns = {}
    for name in lines.column_names:
        values = lines[name].drop_null().to_numpy()
        column = {"count": len(values), "missing": len(lines) - len(values)}
        column |= {"num_values": len(values), "distinct": {"count": len(set(values.tolist()))}}
        if name.startswith("C"):
            columns[name] = {**column, "kind": "text"}
        else:
            boundaries = np.unique(np.quantile(values, np.linspace(0.1, 0.9, 9)).astype(int))
            columns[name] = {**column, "kind": "int64", "boundaries": boundaries.tolist()}
    source = {"path": "train", "num_files": 1}
    path.write_text(json.dumps({"source": source, "num_records": len(lines), "columns": columns}))


def test_raw_lines_are_converted_trained_on_and_served(commands, strategy, lines):
    dac = commands("dac_ctr.elasticdl_train.forward")
    rows = zip(*(lines[name].to_pylist() for name in lines.column_names), strict=True)
    with (dac.folder / "train.txt").open("w") as file:
        for row in rows:
            file.write("\t".join("" if field is None else str(field) for field in row) + "\n")
    statistics_of(lines, dac.folder / "statistics.json")
    dac.call("data", "convert", "train.txt", "dac", "--from=criteo", "--validation=1/8")

    summary = dac.run(
        "train",
        "--model_params=model=xdeepfm; embedding_dim=4",
        "--statistics=statistics.json",
        "--training_data=dac/train",
        "--validation_data=dac/val",
        "--minibatch_size=128",
        "--num_epochs=2",
        "--learning_rate=0.005",
        "--output=export",
        *strategy,
    )

    trained = {epoch["trained_once"] for epoch in summary["ledger"]}
    assert len(trained) == 1
    assert 6500 < trained.pop() < 7500
    assert summary["metrics"]["auc"] > 0.6
    head = lines.slice(0, 50)
    features = {}
    for name in lines.column_names[1:]:
        values = head[name].to_pylist()
        if name.startswith("I"):
            filled = [-10.0 if value is None else float(value) for value in values]
            features[name] = np.array(filled, np.float32)[:, None]
        else:
            features[name] = np.array([value or "" for value in values])[:, None]
    logits = np.array(dac.score(features))[:, 0]
    clicked = head["label"].to_numpy() == 1
    assert logits[clicked].mean() > logits[~clicked].mean()


@pytest.mark.parametrize("model", MODELS)
def test_each_model_learns(model, lines, tmp_path, monkeypatch, load_zoo):
    import keras

    statistics_of(lines, tmp_path / "statistics.json")
    monkeypatch.setenv("ELASTICDL_STATISTICS", str(tmp_path / "statistics.json"))
    for name in ("columns", "models", "elasticdl_train"):  # read with these statistics
        monkeypatch.delitem(sys.modules, f"dac_ctr.{name}", raising=False)
    module = load_zoo("dac_ctr.elasticdl_train")
    monkeypatch.setattr(sys.modules["dac_ctr.models"], "HIDDEN", (32,))
    features, labels = batch_of(module, lines)
    keras.utils.set_random_seed(0)

    network = module.forward(model=model, embedding_dim=4)
    auc = keras.metrics.AUC(from_logits=True)
    network.compile(module.optimizer(0.005), module.loss, metrics=[auc])
    history = network.fit(features, labels, batch_size=128, epochs=1, verbose=0)

    auc.reset_state()
    auc.update_state(labels, network(features))
    assert float(auc.result()) > 0.65
    assert history.history["loss"][0] < 0.7


def batch_of(module, lines):
    """Return the features and labels of all lines, as rows of a Parquet file come."""
    import tensorflow as tf

    from elasticdl import Mode
    from elasticdl.data.base import Metadata

    columns = {}
    for name in lines.column_names:
        values = lines[name].to_pylist()
        if name.startswith("C"):
            columns[name] = [value or "" for value in values]
        else:
            columns[name] = np.array([np.nan if v is None else v for v in values], float)
    dataset = tf.data.Dataset.from_tensor_slices(columns)
    return next(iter(module.feed(dataset, Mode.EVALUATION, Metadata()).batch(len(lines))))


def test_a_model_that_there_is_not_is_named(load_zoo):
    module = load_zoo("dac_ctr.elasticdl_train")

    with pytest.raises(ValueError, match=r"model must be one of wide_deep, .*, not 'xdeep'"):
        module.forward(model="xdeep")

import numpy as np
import pytest

pytestmark = [pytest.mark.keras, pytest.mark.timeout(600)]


def test_trains_and_exports_seven_billion_buckets(commands, strategy, load_zoo):
    lr = commands("lr.model.forward")
    data, text_tables = load_zoo("lr.make_data"), load_zoo("text_tables")
    text_tables.write_csv(lr.folder / "train.csv", data.make(20_000, seed=1))
    test = data.make(2000, seed=2)
    text_tables.write_csv(lr.folder / "test.csv", test)

    summary = lr.run(
        "train",
        "--training_data=train.csv",
        "--validation_data=test.csv",
        "--data_reader_params=skip_header=true",
        "--minibatch_size=128",
        "--num_epochs=2",
        "--output=export",
        *strategy,
    )

    assert load_zoo("lr.model").TABLE.encode(load_zoo("lr.model").TABLE.inputs()).num_ids == 7e9
    assert summary["metrics"]["auc"] > 0.75  # users and items alone give about 0.6
    files = [path for path in (lr.folder / "export").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 20_000_000
    words = {name: np.array(test[name])[:, None] for name in ("user", "item", "site", "hour")}
    logits = np.array(lr.score(words))
    clicked = np.array(test["clicked"], int)
    assert _auc(clicked, logits[:, 0]) == pytest.approx(summary["metrics"]["auc"], abs=5e-3)
    stranger = {name: np.array([["never seen"]]) for name in words}
    bias = lr.score(stranger)[0][0]
    assert abs(bias) < 1.0  # no weight but the bias


def _auc(labels, scores):
    ranks = np.argsort(np.argsort(scores)) + 1
    positive = labels.sum()
    return (ranks[labels == 1].sum() - positive * (positive + 1) / 2) / (
        positive * (len(labels) - positive)
    )

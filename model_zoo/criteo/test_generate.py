from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow")


@pytest.fixture
def generate(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1])
    from criteo import generate

    return generate


def test_values_are_missing_as_often_as_in_the_real_data(generate):
    table = generate.make_table(20_000, seed=(0, 0))
    for field, share in enumerate(generate.NUMBERS_MISSING):
        assert table.column(f"I{field + 1}").null_count / 20_000 == pytest.approx(share, abs=0.02)
    for field in range(26):
        share = generate.CATEGORIES_MISSING.get(field, 0)
        assert table.column(f"C{field + 1}").null_count / 20_000 == pytest.approx(share, abs=0.02)


def test_numbers_are_skewed_one_is_negative_and_categories_are_as_many_as_said(generate):
    table = generate.make_table(20_000, seed=(0, 0))
    spend = table.column("I5").drop_null().to_numpy()
    assert spend.mean() > 1.5 * np.median(spend)
    assert table.column("I2").to_numpy().min() < 0
    for field, size in enumerate(generate.CRITEO_SIZES):
        values = table.column(f"C{field + 1}").drop_null().unique()
        assert len(values) <= size
        assert all(len(value.as_py()) == 8 for value in values[:100])
    counts = np.sort(table.column("C3").value_counts().field("counts").to_numpy())
    assert counts[-1] > 200
    assert np.median(counts) == 1


def test_the_label_can_be_learnt_but_not_known(generate):
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    table = generate.make_table(40_000, seed=(0, 0))
    labels = table.column("label").to_numpy()
    columns = [table.column(f"I{n}").to_numpy(zero_copy_only=False) for n in range(1, 14)]
    features = np.log1p(np.maximum(np.nan_to_num(np.stack(columns, axis=1)), 0))
    model = LogisticRegression(max_iter=200).fit(features[:30_000], labels[:30_000])

    auc = roc_auc_score(labels[30_000:], model.predict_proba(features[30_000:])[:, 1])

    assert 0.6 < auc < 0.9
    assert 0.15 < labels.mean() < 0.4


def test_the_same_seed_gives_the_same_lines_plain_and_compressed(generate, tmp_path):
    import gzip

    for name, seed in (("a.txt", 1), ("b.txt.gz", 1), ("c.txt", 2)):
        generate.write(tmp_path / name, num_records=300, seed=seed)
    plain = (tmp_path / "a.txt").read_bytes()
    assert gzip.decompress((tmp_path / "b.txt.gz").read_bytes()) == plain
    assert (tmp_path / "c.txt").read_bytes() != plain
    lines = plain.decode().splitlines()
    assert len(lines) == 300
    assert {line.count("\t") for line in lines} == {39}

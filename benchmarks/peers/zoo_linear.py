"""A linear model: scikit-learn's logistic regression; prints its metric on the test data.

    python benchmarks/peers/zoo_linear.py --train=train.csv --test=test.csv --label=income \
        --data_reader_params=skip_header=true --positive=">50K"

Columns of words become one-hot categories, and numbers are standardised. Categories that only the
test data has are left out. Records are lines with a header, `tf.train.Example`, or images in
folders.
"""

from __future__ import annotations

import argparse
import io
import json
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from elasticdl.data.example import decode_example
from elasticdl.data.open import open_reader

MISSING = -1.0


def main() -> None:
    """Train, and print `{"accuracy": 0.9}`, with `--positive` also the `auc`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--train", required=True, help="data, as --training_data takes it")
    parser.add_argument("--test", required=True)
    parser.add_argument("--data_reader_params", default="")
    parser.add_argument("--label", required=True)
    parser.add_argument("--positive", default="", help="which label is positive; else all classes")
    parser.add_argument("--categories", default="", help="columns of numbers that are names, or *")
    parser.add_argument("--leave_out", default="", help="columns that are no facts")
    parser.add_argument("--log", action="store_true", help="of numbers, which are skewed")
    parser.add_argument("--pixels", default="", help="the one column that counts: an image")
    args = parser.parse_args()
    tables = [read(place, args) for place in (args.train, args.test)]
    labels = [table.pop(args.label).astype(str).str.strip() for table in tables]
    if args.positive:
        labels = [label == args.positive for label in labels]
    if args.pixels:
        tables = [np.stack(table[args.pixels].map(pixels).tolist()) for table in tables]
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=50, tol=1e-3))
    else:
        columns = make_column_transformer(*transformers(tables[0]))
        model = make_pipeline(columns, LogisticRegression(max_iter=1000))
    model.fit(tables[0], labels[0])
    metrics = {"accuracy": float(accuracy_score(labels[1], model.predict(tables[1])))}
    if args.positive:
        metrics["auc"] = float(roc_auc_score(labels[1], model.predict_proba(tables[1])[:, 1]))
    print(json.dumps(metrics))


def read(place: str, args: argparse.Namespace) -> pd.DataFrame:
    """Return the records of some data as a table."""
    reader = open_reader(place, args.data_reader_params)
    chunks = [chunk for shard in reader.shards() for chunk in reader.read(shard)]
    left_out = [name for name in args.leave_out.split(",") if name]
    if chunks[0].columns:
        return pd.concat(pd.DataFrame({n: list(c) for n, c in x.columns.items()}) for x in chunks)
    values = [value for chunk in chunks for value in chunk.values]
    names = list(reader.metadata.column_names)
    named = [name for name in args.categories.split(",") if name]
    if names:
        kinds: Any = str if named == ["*"] else dict.fromkeys(named, str)
        lines = io.BytesIO(b"\n".join(values))
        table = pd.read_csv(lines, names=names, keep_default_na=False, dtype=kinds)
        return table.drop(columns=left_out)
    examples = [decode_example(value) or {} for value in values]
    table = pd.DataFrame([{n: _value(v) for n, v in example.items()} for example in examples])
    for name in table:
        if table[name].dtype == object or table[name].dtype.kind not in "iuf":
            if name != args.pixels:
                table[name] = table[name].fillna(b"").map(str)
        elif named == ["*"] and name != args.label:
            table[name] = table[name].map(str)
        elif name != args.label:
            numbers = table[name].fillna(MISSING).astype(float)
            table[name] = np.sign(numbers) * np.log1p(numbers.abs()) if args.log else numbers
    return table.drop(columns=left_out)


def transformers(table: pd.DataFrame) -> list[Any]:
    """Return what becomes of each column."""
    numbers = [name for name in table if pd.api.types.is_numeric_dtype(table[name])]
    words = [name for name in table if name not in numbers]
    parts = [(StandardScaler(), numbers), (OneHotEncoder(handle_unknown="ignore"), words)]
    return [(what, names) for what, names in parts if names]


def pixels(value: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the pixels of an image, which is a file's bytes or numbers."""
    if isinstance(value, bytes):
        from PIL import Image

        value = np.asarray(Image.open(io.BytesIO(value)).convert("RGB")).ravel()
    return np.asarray(value, dtype=np.float32)


def _value(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values


if __name__ == "__main__":
    main()

"""A linear model of a table: scikit-learn's logistic regression on one-hot categories; prints AUC.

    python benchmarks/peers/zoo_linear.py --train=train.csv --test=test.csv --label=income \
        --positive=">50K"

Columns of numbers are standardised. Categories of the test file that the training file has not are
left out.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler


def main() -> None:
    """Train, and print `{"auc": 0.9}`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--train", type=Path, required=True, help="CSV file with a header")
    parser.add_argument("--test", type=Path, required=True, help="CSV file with a header")
    parser.add_argument("--label", required=True)
    parser.add_argument("--positive", required=True)
    parser.add_argument("--categories", default="", help="columns of numbers that are names")
    args = parser.parse_args()
    names = [name for name in args.categories.split(",") if name]
    tables = [
        pd.read_csv(path, keep_default_na=False, dtype=dict.fromkeys(names, str))
        for path in (args.train, args.test)
    ]
    labels = [table.pop(args.label).astype(str).str.strip() == args.positive for table in tables]
    numbers = [name for name in tables[0] if pd.api.types.is_numeric_dtype(tables[0][name])]
    words = [name for name in tables[0] if name not in numbers]
    columns = make_column_transformer(
        (StandardScaler(), numbers), (OneHotEncoder(handle_unknown="ignore"), words)
    )
    model = make_pipeline(columns, LogisticRegression(max_iter=1000))
    model.fit(tables[0], labels[0])
    found = model.predict_proba(tables[1])[:, 1]
    print(json.dumps({"auc": float(roc_auc_score(labels[1], found))}))


if __name__ == "__main__":
    main()

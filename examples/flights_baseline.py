"""The number to beat on flights: a one-hot logistic regression on the same random split.

    PYTHONPATH=model_zoo python examples/flights_baseline.py

prints its validation AUC, with and without the date among the fields, for several strengths of
regularisation. `make demo` requires 0.769 of the DeepFM of `model_zoo/flights`. This is the best
AUC of such a baseline on any random split.
Needs scikit-learn, which the development environment has.
"""

from __future__ import annotations

import time

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import OneHotEncoder

from flights.fields import FIELDS, LABEL
from flights.prepare import Columns, encode, find_package_file, read_flights, split

STRENGTHS = (0.3, 0.1, 0.03)  # inverse of the L2 penalty
DATE_FIELDS = ("date", "weekday")


def auc_of(columns: Columns, fields: list[str], strength: float) -> float:
    """Return the validation AUC of a logistic regression on the one-hot encoded fields."""
    values = np.stack([columns[name] for name in fields], axis=1)
    training, validation = split(len(values))
    encoder = OneHotEncoder(handle_unknown="ignore").fit(values[training])
    model = LogisticRegression(C=strength, max_iter=500)
    model.fit(encoder.transform(values[training]), columns[LABEL][training])
    scores = model.decision_function(encoder.transform(values[validation]))
    return float(roc_auc_score(columns[LABEL][validation], scores))


def main() -> None:
    """Print the AUC of each variant."""
    columns = encode(read_flights(find_package_file()))
    without_date = [name for name in FIELDS if name not in DATE_FIELDS]
    for what, fields in (("without the date", without_date), ("with the date", list(FIELDS))):
        for strength in STRENGTHS:
            started = time.perf_counter()
            auc = auc_of(columns, fields, strength)
            seconds = time.perf_counter() - started
            print(f"{what}, C={strength}: AUC {auc:.4f} ({seconds:.1f} s)", flush=True)


if __name__ == "__main__":
    main()

"""Made-up flights, whose lateness depends on their carrier and hour alone."""

import numpy as np

from elasticdl._core import RecordWriter
from elasticdl.data.example import encode_examples
from model_zoo.flights.fields import FIELDS, LABEL


def write_flights(folder, num_training, num_validation):
    """Write `train.recordio` and `validation.recordio`."""
    rng = np.random.default_rng(0)
    num_records = num_training + num_validation
    columns = {name: rng.integers(size, size=num_records) for name, size in FIELDS.items()}
    odds = 1 / (1 + np.exp(-(columns["carrier"] - 12) / 4.0 - (columns["hour"] - 12) / 4.0))
    columns[LABEL] = (rng.random(num_records) < odds).astype(np.int64)
    write_parts(folder, encode_examples(columns), num_training)


def write_parts(folder, records, num_training):
    """Write the first records for training, and the others for validation."""
    parts = {"train": records[:num_training], "validation": records[num_training:]}
    for name, part in parts.items():
        with RecordWriter(str(folder / f"{name}.recordio")) as writer:
            writer.write_many(part)

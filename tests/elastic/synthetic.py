"""Made-up records from which a model can learn: flights, and images of digits."""

import numpy as np

from elasticdl._core import RecordWriter
from elasticdl.data.example import encode_examples
from model_zoo.flights.fields import FIELDS, LABEL


def write_flights(folder, num_training, num_validation):
    """Write flights whose lateness depends on their carrier and hour alone."""
    rng = np.random.default_rng(0)
    num_records = num_training + num_validation
    columns = {name: rng.integers(size, size=num_records) for name, size in FIELDS.items()}
    odds = 1 / (1 + np.exp(-(columns["carrier"] - 12) / 4.0 - (columns["hour"] - 12) / 4.0))
    columns[LABEL] = (rng.random(num_records) < odds).astype(np.int64)
    write_parts(folder, encode_examples(columns), num_training)


def write_stripes(folder, num_training, num_validation):
    """Write images in which the label is a bright stripe, on noise."""
    rng = np.random.default_rng(0)
    num_records = num_training + num_validation
    labels = rng.integers(10, size=num_records)
    images = rng.uniform(0, 120, size=(num_records, 28, 28)).astype(np.float32)
    for image, label in zip(images, labels, strict=True):
        image[2 * label + 4 : 2 * label + 6] += 120
    records = encode_examples({"image": images.reshape(num_records, -1), "label": labels})
    write_parts(folder, records, num_training)


def write_parts(folder, records, num_training):
    """Write `train.recordio`, of the first records, and `validation.recordio` of the others."""
    parts = {"train": records[:num_training], "validation": records[num_training:]}
    for name, part in parts.items():
        with RecordWriter(str(folder / f"{name}.recordio")) as writer:
            writer.write_many(part)

"""A model that trains nothing by heart: its statistics are what is looked at."""

import numpy as np

from elasticdl import (
    ArrayModel,
    ArrayOptimizer,
    ArrayTable,
    Expiry,
    Initializer,
    RowStatistics,
    StatisticAdmission,
)

ZERO = Initializer("constant", {"value": 0.0})
KEPT = RowStatistics(("show", "click", "price"), decay=0.5, decay_steps=768)
ADMITTED_AT, EXPIRED_BELOW = 4.0, 2.0**-4


def forward():
    """Two tables of the same ids: one has all rows, one has those that statistics let in."""
    limited = {
        "admission": StatisticAdmission("show", ADMITTED_AT),
        "expiry": Expiry(statistic="show", below=EXPIRED_BELOW),
    }
    return ArrayModel(
        tables=[
            ArrayTable("item", 2, ZERO, statistics=KEPT),
            ArrayTable("shown", 2, ZERO, statistics=KEPT, **limited),
        ],
        ids=lambda features: [features["ids"]] * 2,
        predict=lambda dense, rows, features: rows[0][..., 0],
        gradients=lambda dense, rows, features, labels: (
            0.0,
            [np.full_like(r, -1.0) for r in rows],
            {},
        ),
    )


def optimizer():
    """Add one to a row with each minibatch."""
    return ArrayOptimizer(learning_rate=1.0)


def feed(records, mode, metadata):
    """Return ids and prices, and clicks."""
    lines = np.array([[int(word) for word in record.split()] for record in records], np.int64)
    features = {"ids": lines[:, 2:], "price": lines[:, 1].astype(np.float32)}
    return features, lines[:, 0].astype(np.float32)

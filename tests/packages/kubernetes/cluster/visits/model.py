"""A model of a job of all-reduce that counts how often each record was trained.

A record is its own number. Lion without momentum moves a weight by the sign of its gradient, so
each update adds exactly 1 to the count of every record in it, whatever else is averaged with it.
"""

import time

import numpy as np

from elasticdl import ArrayModel, ArrayOptimizer, ArrayTable, Initializer, Mode


def forward(num_records, seconds, has_rows=False):
    """A count of each record in a dense variable, and perhaps one in a row of its own.

    Args:
        num_records: How many there are.
        seconds: How long a minibatch takes at least.
        has_rows: Whether there is a table, for ps replicas.
    """
    rows = ArrayTable("rows", dim=1, initializer=Initializer("constant", {"value": 0.0}))

    def gradients(dense, rows, features, labels):
        time.sleep(seconds)  # the tempo of the job: it lasts longer than a pod takes to start
        gradient = np.zeros(num_records, np.float32)
        np.subtract.at(gradient, features, 1.0 / len(features))
        of_rows = [np.full((len(features), 1), -1.0, np.float32)] if has_rows else []
        return 1.0, of_rows, {"visits": gradient}

    return ArrayModel(
        tables=[rows] if has_rows else [],
        ids=lambda features: [features] if has_rows else [],
        predict=lambda dense, rows, features: dense["visits"][features],
        gradients=gradients,
        dense={"visits": np.zeros(num_records, np.float32)},
    )


def optimizer(lr=1.0):
    """The sign of the gradient alone."""
    return ArrayOptimizer(learning_rate=lr, kind="lion", params={"beta_1": 0.0, "beta_2": 0.0})


def feed(records, mode, metadata):
    """Parse the numbers of records."""
    numbers = np.array([int(record) for record in records], np.int64)
    return numbers if mode == Mode.PREDICTION else (numbers, np.zeros(len(numbers), np.float32))

"""One large vector on NumPy with Adam, for `allreduce_join.py`; each worker notes its updates.

JOIN_NUMBERS: of the vector. JOIN_AT_ONCE: give joiners all before the first round, as if the model
were small. JOIN_NOTES: a folder; `updates-PID` gets a line for each update of a worker that has the
parameters (the time, the version), `given-PID` one when it has been given them (the time).
"""

import os
import time
from pathlib import Path

import numpy as np

from elasticdl import ArrayModel, ArrayOptimizer, Mode
from elasticdl.collective import giving
from elasticdl.worker.replica import Replica

NUM_NUMBERS = int(os.environ["JOIN_NUMBERS"])


def forward():
    """A vector that follows the labels."""
    return ArrayModel(
        tables=[],
        ids=lambda features: [],
        predict=lambda dense, rows, features: dense["vector"][features],
        gradients=_gradients,
        dense={"vector": np.zeros(NUM_NUMBERS, np.float32)},
    )


def optimizer(lr=0.001):
    """Adam: its slots are twice as large as the vector."""
    params = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7, "amsgrad": 0.0}
    return ArrayOptimizer(learning_rate=lr, kind="adam", params=params)


def feed(records, mode, metadata):
    """Each record is a number."""
    numbers = np.array([int(record) for record in records])
    return numbers if mode == Mode.PREDICTION else (numbers, numbers % 2)


def _gradients(dense, rows, features, labels):
    gradient = np.full(NUM_NUMBERS, 1e-3, np.float32)
    gradient[features] = dense["vector"][features] - labels
    return float(np.square(gradient[features]).mean()), [], {"vector": gradient}


def _note(folder):
    updates = (folder / f"updates-{os.getpid()}").open("a", buffering=1)
    given = (folder / f"given-{os.getpid()}").open("a", buffering=1)
    count, load, end_stage = Replica.count, Replica.load, Replica.end_stage

    def count_and_note(replica, *args):
        count(replica, *args)
        if not replica.is_staging:
            updates.write(f"{time.time()} {replica.version}\n")

    def load_and_note(replica, data):
        load(replica, data)
        given.write(f"{time.time()}\n")

    def end_stage_and_note(replica):
        if has_ended := end_stage(replica):
            given.write(f"{time.time()}\n")
        return has_ended

    Replica.count, Replica.load = count_and_note, load_and_note
    Replica.end_stage = end_stage_and_note


if "JOIN_NOTES" in os.environ:
    _note(Path(os.environ["JOIN_NOTES"]))
    if os.environ["JOIN_AT_ONCE"] == "1":
        giving.AT_ONCE_BYTES = 1 << 62

"""A model whose step takes a stated time: it waits, or it multiplies matrices.

Each step is noted in a file of its pod, `LOG_DIR/HOST`: when it began and when it ended, in seconds
since 1970. A step is one minibatch.
"""

import os
import socket
import time

import numpy as np

from elasticdl import ArrayModel, ArrayOptimizer, ArrayTable

NUM_IDS = 1000
SIZE = 256  # of the matrices


def forward(log_dir, wait_seconds=0.0, multiplications=0):
    """A table of rows that are pulled, and pushed as they are."""
    step = Step(log_dir, wait_seconds, multiplications)
    return ArrayModel(
        tables=[ArrayTable("rows", dim=8)],
        ids=lambda features: [features],
        predict=lambda dense, rows, features: rows[0][..., 0],
        gradients=step,
    )


class Step:
    """Takes its time, and gives gradients of zero."""

    def __init__(self, log_dir, wait_seconds, multiplications):
        self._path = os.path.join(log_dir, socket.gethostname())
        self._wait_seconds = wait_seconds
        self._multiplications = multiplications
        self._file = None

    def __call__(self, dense, rows, features, labels):
        """Wait and compute."""
        if self._file is None:
            self._file = open(self._path, "a", buffering=1)  # noqa: SIM115 - as long as the process
        began = time.time()
        time.sleep(self._wait_seconds)
        multiply(self._multiplications)
        self._file.write(f"{began:.3f} {time.time():.3f}\n")
        return 0.0, [np.zeros_like(rows[0])], {}


def multiply(count: int) -> np.ndarray:
    """Multiply a matrix with itself so many times."""
    matrix = np.eye(SIZE, dtype=np.float32)
    for _ in range(count):
        matrix = matrix @ matrix
    return matrix


def feed(records, mode, metadata):
    """A record is the text of an id."""
    return np.array([int(record) for record in records]), np.zeros(len(records), np.float32)


def optimizer():
    """SGD."""
    return ArrayOptimizer(learning_rate=0.1)

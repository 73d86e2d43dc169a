"""The counting model with a controlled speed, for tests that disturb a job in the middle.

A minibatch takes at least `seconds`, until there is a file `hurry`. A worker holds `mebibytes` of
memory from its first minibatch on. While there is a file `halt`, all minibatches wait, so a test
has time for its changes.
"""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from counting import model
from counting.model import eval_metrics_fn, feed, optimizer

__all__ = ["eval_metrics_fn", "feed", "forward", "optimizer"]

_LOOK_SECONDS = 0.05


def forward(seconds=0.0, mebibytes=0, halt="", hurry=""):
    """Return the model of `counting.model`. Its counts say how often each record was trained."""
    counting = model.forward()
    held = []

    def gradients(dense, rows, features, labels):
        if not held:
            held.append(np.ones(mebibytes << 20, np.uint8))
        while halt and Path(halt).exists():
            time.sleep(_LOOK_SECONDS)
        if not (hurry and Path(hurry).exists()):
            time.sleep(seconds)
        return counting.gradients(dense, rows, features, labels)

    return replace(counting, gradients=gradients)

"""A dense network on NumPy for `allreduce_recovery.py`; each worker notes its updates.

It has 100,000 parameters and uses Adam. The file `steps-PID` in the folder ELASTICDL_STEPS gets a
line
for each update: the time, the number of the world, and the number of the update.
"""

import os
import time
from pathlib import Path

import numpy as np

from elasticdl import ArrayModel, ArrayOptimizer, Mode
from elasticdl.job import Seat
from elasticdl.packages.all_reduce.replica import Replica
from elasticdl.packages.all_reduce.ring_member import RingMember

SIZES = (784, 120, 10)


def forward():
    """Two layers."""
    rng = np.random.default_rng(0)
    return ArrayModel(
        tables=[],
        ids=lambda features: [],
        predict=lambda dense, rows, features: _forward(dense, features)[1],
        gradients=_gradients,
        dense={
            "w1": rng.normal(0, 0.05, SIZES[:2]).astype(np.float32),
            "w2": rng.normal(0, 0.05, SIZES[1:]).astype(np.float32),
        },
    )


def optimizer(lr=0.001):
    """Adam, so that there are slots to hand on."""
    params = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7, "amsgrad": 0.0}
    return ArrayOptimizer(learning_rate=lr, kind="adam", params=params)


def feed(records, mode, metadata):
    """Make an image of each number, with its label."""
    numbers = np.array([int(record) for record in records])
    labels = numbers % SIZES[-1]
    images = np.zeros((len(numbers), SIZES[0]), np.float32)
    images[np.arange(len(numbers)), labels * 78 + numbers % 78] = 1.0
    return images if mode == Mode.PREDICTION else (images, labels)


def _forward(dense, features):
    hidden = np.maximum(features @ dense["w1"], 0.0)
    return hidden, hidden @ dense["w2"]


def _gradients(dense, rows, features, labels):
    hidden, scores = _forward(dense, features)
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    odds /= odds.sum(axis=1, keepdims=True)
    chosen = np.arange(len(labels)), labels
    loss = -float(np.log(odds[chosen] + 1e-9).mean())
    odds[chosen] -= 1.0
    odds /= len(labels)
    back = (odds @ dense["w2"].T) * (hidden > 0)
    return loss, [], {"w1": features.T @ back, "w2": hidden.T @ odds}


def _note_steps(folder):
    file = (Path(folder) / f"steps-{os.getpid()}").open("a", buffering=1)
    take_part, count, world = RingMember._take_part, Replica.count, [0]

    def take_part_in(member, seat: Seat, began):
        world[0] = seat.world_id
        return take_part(member, seat, began)

    def count_and_note(replica, *args):
        count(replica, *args)
        file.write(f"{time.time()} {world[0]} {replica.version}\n")

    RingMember._take_part, Replica.count = take_part_in, count_and_note


if "ELASTICDL_STEPS" in os.environ:
    _note_steps(os.environ["ELASTICDL_STEPS"])

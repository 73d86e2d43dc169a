"""The counting model of `visits_model.py` in PyTorch: one count is dense, the other in rows.

Adam without momentum moves a weight by the sign of its gradient, so each update adds 1 to both
counts of every record in it, whatever else is averaged with it.
"""

import json
import time
from pathlib import Path

import torch
from torch import nn

from elasticdl import Initializer, Mode
from elasticdl.layers.torch import Embedding

HERE = Path(__file__).parent
SETTINGS = json.loads((HERE / "settings.json").read_text())


class Visits(nn.Module):
    """The number of a record -> the sum of its two counts."""

    def __init__(self):
        super().__init__()
        count = SETTINGS["num_records"]
        self.visits = nn.Parameter(torch.zeros(count))
        zeros = Initializer("constant", {"value": 0.0})
        self.rows = Embedding(None, 1, initializer=zeros, name="rows")

    def forward(self, numbers):
        """Return the sums, at the tempo of the job until it may hurry."""
        if self.training and not (HERE / "hurry").exists():
            time.sleep(SETTINGS["seconds"])
        return self.visits[numbers] + self.rows(numbers)[:, 0]


def forward():
    """Return the model."""
    return Visits()


def loss(labels, predictions):
    """Return what is lower the higher all counts are."""
    return -predictions.mean()


def optimizer(parameters, lr=1.0):
    """Return one that makes steps of 1."""
    return torch.optim.Adam(parameters, lr=lr, betas=(0.0, 0.0), eps=1e-30)


def feed(dataset, mode, metadata):
    """Parse the numbers of records."""
    numbers = torch.tensor([int(record) for record in dataset.values])
    return numbers if mode == Mode.PREDICTION else (numbers, torch.zeros(len(numbers)))


def eval_metrics_fn():
    """Return how often a record was trained, on average over records and halves."""
    return {"mean_visits": lambda labels, predictions: predictions / 2}

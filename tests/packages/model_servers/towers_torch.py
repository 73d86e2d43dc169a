"""The model of `towers_keras.py` in PyTorch."""

import torch
from torch import nn

from elasticdl import Initializer, Mode
from elasticdl.layers.torch import Embedding, Remote

ZEROS = Initializer("constant", {"value": 0.0})


class Counting(nn.Module):
    """A tower: a row and a variable, of which each has the gradient of each occurrence."""

    def __init__(self):
        super().__init__()
        self.rows = Embedding(None, 2, initializer=ZEROS, name="met")
        self.count = nn.Parameter(torch.zeros(2))

    def forward(self, ids):
        return self.rows(ids) + self.count


class Meetings(nn.Module):
    def __init__(self):
        super().__init__()
        self.meetings = Remote(Counting(), "meetings")
        self.beside = Embedding(None, 2, initializer=ZEROS, name="beside")

    def forward(self, ids):
        return self.meetings(ids) + self.beside(ids)


def forward():
    return Meetings()


def loss(labels, predictions):
    return -predictions.sum()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=1.0)


def feed(dataset, mode, metadata):
    ids = torch.tensor([[int(word) for word in record.split()] for record in dataset.values])
    return ids if mode == Mode.PREDICTION else (ids, torch.zeros(len(ids)))

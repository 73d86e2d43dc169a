"""The model of `clicks_keras.py` in PyTorch."""

import torch
from torch import nn

from elasticdl import Mode
from elasticdl.layers.torch import Embedding, Remote


class Clicks(nn.Module):
    def __init__(self):
        super().__init__()
        layers = Embedding(None, 16, name="inner"), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4)
        self.images = Remote(nn.Sequential(*layers), "images")
        self.beside = Embedding(None, 4, name="beside")
        self.out = nn.Linear(24, 1)

    def forward(self, ids):
        both = torch.cat([self.images(ids), self.beside(ids)], -1)
        return torch.sigmoid(self.out(both.flatten(1)))[:, 0]


def forward():
    return Clicks()


def loss(labels, predictions):
    return nn.functional.binary_cross_entropy(predictions, labels)


def optimizer(parameters):
    return torch.optim.Adagrad(parameters, lr=0.1)


def feed(dataset, mode, metadata):
    ids = torch.tensor([[int(word) for word in record.split()] for record in dataset.values])
    return ids if mode == Mode.PREDICTION else (ids, (ids[:, 0] % 2).float())

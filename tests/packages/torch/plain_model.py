"""A small model in PyTorch with a table, and its records."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from elasticdl import Mode
from elasticdl.layers.torch import Embedding

NUM_IDS, DIM, FIELDS = 40, 4, 3


def make_columns(count=64, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "ids": rng.integers(NUM_IDS, size=(count, FIELDS)),
        "x": rng.normal(size=(count, 5)).astype(np.float32),
        "y": rng.integers(2, size=(count, 1)).astype(np.float32),
    }


def feed(dataset, mode, metadata):
    features = {"ids": dataset.columns["ids"], "x": dataset.columns["x"]}
    return features if mode == Mode.PREDICTION else (features, dataset.columns["y"])


def loss(labels, predictions):
    return F.binary_cross_entropy_with_logits(predictions, labels)


class Net(nn.Module):
    def __init__(self, embedding=Embedding, dropout=0.0):
        super().__init__()
        self.vectors = embedding(NUM_IDS, DIM)
        self.norm = nn.BatchNorm1d(5)
        self.dropout = nn.Dropout(dropout)
        self.hidden = nn.Linear(FIELDS * DIM + 5, 7)
        self.out = nn.Linear(7, 1)

    def forward(self, features):
        rows = self.vectors(features["ids"]).flatten(1)
        x = torch.cat([rows, self.norm(features["x"])], 1)
        return self.out(self.dropout(torch.relu(self.hidden(x))))

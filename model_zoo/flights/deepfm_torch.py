"""The DeepFM of `flights/deepfm.py` in PyTorch: will a flight arrive more than 15 minutes late?"""

import itertools

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from elasticdl import Initializer, Mode
from elasticdl.data.example import decode_examples
from elasticdl.layers.torch import Embedding
from flights.fields import FIELDS, LABEL

DIM = 8
HIDDEN = (64, 32)
CROSSES = (("date", "origin"), ("date", "hour"), ("date", "carrier"))  # pairs as one category each
SIZES = [*FIELDS.values(), *(FIELDS[a] * FIELDS[b] for a, b in CROSSES)]
OFFSETS = [0, *itertools.accumulate(SIZES)]  # all categories share one range of ids
NUM_IDS = OFFSETS.pop()


class DeepFM(nn.Module):
    """Ids of a flight's categories -> logit of a late arrival."""

    def __init__(self):
        super().__init__()
        zeros = Initializer("constant", {"value": 0.0})
        small = Initializer("uniform", {"low": -0.05, "high": 0.05})
        self.weights = Embedding(NUM_IDS, 1, initializer=zeros)
        self.vectors = Embedding(NUM_IDS, DIM, initializer=small)
        sizes = (len(SIZES) * DIM, *HIDDEN)
        hidden = [
            part
            for given, units in itertools.pairwise(sizes)
            for part in (nn.Linear(given, units), nn.ReLU())
        ]
        self.deep = nn.Sequential(*hidden, nn.Linear(HIDDEN[-1], 1))

    def forward(self, ids):
        """Return the logits, shape (records, 1)."""
        linear = self.weights(ids).sum(1)
        vectors = self.vectors(ids)
        pairs = (vectors.sum(1).square() - vectors.square().sum(1)).sum(1, keepdim=True) / 2
        return linear + pairs + self.deep(vectors.flatten(1))


def forward():
    """Return the model."""
    return DeepFM()


def loss(labels, predictions):
    """Return the mean binary cross-entropy of logits."""
    return F.binary_cross_entropy_with_logits(predictions, labels.float())


def optimizer(parameters, lr=0.1):
    """Return Adagrad: rare categories keep a large step, frequent ones slow down."""
    return torch.optim.Adagrad(parameters, lr=lr, initial_accumulator_value=0.001, eps=1e-7)


def feed(dataset, mode, metadata):
    """Turn records (one serialised `tf.train.Example` each) into ids and labels."""
    columns = {name: ((), "int64") for name in FIELDS}
    if mode != Mode.PREDICTION:
        columns[LABEL] = ((1,), "int64")
    parsed = decode_examples(dataset.values, columns)
    values = [parsed[name] for name in FIELDS]
    values += [parsed[a] * FIELDS[b] + parsed[b] for a, b in CROSSES]
    ids = np.stack(values, axis=1) + np.array(OFFSETS)
    return ids if mode == Mode.PREDICTION else (ids, parsed[LABEL])


def eval_metrics_fn():
    """Return the metrics of an evaluation."""
    metrics = {"accuracy": lambda labels, predictions: (predictions > 0) == (labels > 0)}
    try:
        from torchmetrics.classification import BinaryAUROC
    except ImportError:  # it is an extra of its own
        return metrics
    return {"auc": BinaryAUROC(thresholds=200), **metrics}

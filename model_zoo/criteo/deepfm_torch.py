"""The DeepFM of `criteo/deepfm.py` in PyTorch: will the advertisement be clicked?"""

import itertools

import torch
from torch import nn
from torch.nn import functional as F

from criteo.fields import NUM_IDS, NUM_NUMBERS, SIZES
from elasticdl import Initializer, Mode
from elasticdl.data.example import decode_examples
from elasticdl.layers.torch import Embedding

DIM = 8
HIDDEN = (128, 64)


class DeepFM(nn.Module):
    """Numbers and ids of a record -> logit of a click."""

    def __init__(self):
        super().__init__()
        zeros = Initializer("constant", {"value": 0.0})
        small = Initializer("uniform", {"low": -0.05, "high": 0.05})
        self.weights = Embedding(NUM_IDS, 1, initializer=zeros)
        self.vectors = Embedding(NUM_IDS, DIM, initializer=small)
        self.number_weights = nn.Linear(NUM_NUMBERS, 1, bias=False)
        self.number_vectors = nn.Parameter(torch.empty(NUM_NUMBERS, DIM).uniform_(-0.05, 0.05))
        sizes = ((NUM_NUMBERS + len(SIZES)) * DIM, *HIDDEN)
        hidden = [
            part
            for given, units in itertools.pairwise(sizes)
            for part in (nn.Linear(given, units), nn.ReLU())
        ]
        self.deep = nn.Sequential(*hidden, nn.Linear(HIDDEN[-1], 1))

    def forward(self, features):
        """Return the logits, shape (records, 1)."""
        numbers, ids = features["numbers"], features["ids"]
        linear = self.weights(ids).sum(1) + self.number_weights(numbers)
        scaled = numbers[:, :, None] * self.number_vectors
        vectors = torch.cat([scaled, self.vectors(ids)], 1)
        pairs = (vectors.sum(1).square() - vectors.square().sum(1)).sum(1, keepdim=True) / 2
        return linear + pairs + self.deep(vectors.flatten(1))


def forward():
    """Return the model."""
    return DeepFM()


def loss(labels, predictions):
    """Return the mean binary cross-entropy of logits."""
    return F.binary_cross_entropy_with_logits(predictions, labels.float())


def optimizer(parameters, lr=0.05):
    """Return Adagrad: rare ids keep a large step, frequent ones slow down."""
    return torch.optim.Adagrad(parameters, lr=lr, initial_accumulator_value=0.1, eps=1e-7)


def feed(dataset, mode, metadata):
    """Turn records (one serialised `tf.train.Example` each) into features and labels."""
    columns = {"numbers": ((NUM_NUMBERS,), "float32"), "ids": ((len(SIZES),), "int64")}
    if mode != Mode.PREDICTION:
        columns["label"] = ((1,), "int64")
    features = decode_examples(dataset.values, columns)
    return features if mode == Mode.PREDICTION else (features, features.pop("label"))


def eval_metrics_fn():
    """Return the share of records that are on the right side."""
    return {"accuracy": lambda labels, predictions: (predictions > 0) == (labels > 0)}

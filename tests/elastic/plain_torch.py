"""A small model in PyTorch that a job trains, and a loop of PyTorch's own.

`lr` halves after seven updates, again after fourteen, and so on.
"""

import torch
from torch import nn
from torch.nn import functional as F

from elasticdl.layers.torch import Embedding
from elasticdl.optimizers.torch import clip_grad_value

NUM_IDS, DIM = 8, 4


class Net(nn.Module):
    """Ids and numbers -> a number; the table is what the caller says."""

    def __init__(self, embedding=Embedding):
        super().__init__()
        self.vectors = embedding(NUM_IDS, DIM)
        nn.init.constant_(self.vectors.weight, 0.1)
        self.hidden = nn.Linear(DIM + 2, 5)
        self.out = nn.Linear(5, 1)
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for layer in (self.hidden, self.out):
                layer.weight.copy_(torch.rand(layer.weight.shape, generator=generator) - 0.5)
                layer.bias.zero_()

    def forward(self, features):
        """Return the numbers, shape (records, 1)."""
        both = torch.cat([self.vectors(features["id"]), features["x"]], 1)
        return self.out(torch.tanh(self.hidden(both)))


def forward():
    """Return the model of a job."""
    return Net()


def loss(labels, predictions):
    """Return the mean squared error."""
    return F.mse_loss(predictions, labels)


def optimizer(parameters, lr=0.05):
    """Return a scheduler of an optimizer that clips."""
    made = clip_grad_value(torch.optim.Adam(parameters, lr=lr), 0.02)
    return torch.optim.lr_scheduler.StepLR(made, step_size=7, gamma=0.5)


def feed(dataset, mode, metadata):
    """Yield the examples in the order of the records, so that minibatches are those of a loop."""
    for record in dataset.values:
        number, *values = record.split(b",")
        *x, y = map(float, values)
        yield {"id": torch.tensor(int(number)), "x": torch.tensor(x)}, torch.tensor([y])

"""The convolutional network of `mnist/model.py` in PyTorch."""

import torch
from torch import nn
from torch.nn import functional as F

from elasticdl import Mode
from elasticdl.data.example import decode_examples


class Network(nn.Module):
    """Images of 28 x 28 pixels -> logits of ten digits."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, kernel_size=3),
            nn.ReLU(),
            nn.Conv2d(32, 64, kernel_size=3),
            nn.ReLU(),
            nn.BatchNorm2d(64, eps=0.001, momentum=0.01),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(64 * 12 * 12, 10),
        )

    def forward(self, images):
        """Return the logits."""
        return self.layers(images.unsqueeze(1))


def custom_model():
    """Return the network."""
    return Network()


def loss(labels, predictions):
    """Return the mean cross-entropy."""
    return F.cross_entropy(predictions, labels)


def optimizer(parameters, lr=0.1):
    """Return plain SGD."""
    return torch.optim.SGD(parameters, lr=lr)


def feed(dataset, mode, metadata):
    """Parse a `tf.train.Example` a record: pixels 0 to 255, and a digit except in predictions."""
    columns = {"image": ((28, 28), "float32")}
    if mode != Mode.PREDICTION:
        columns["label"] = ((), "int64")
    parsed = decode_examples(dataset.values, columns)
    images = torch.from_numpy(parsed["image"]) / 255.0
    return images if mode == Mode.PREDICTION else (images, parsed["label"])


def eval_metrics_fn():
    """Return the share of correctly classified digits."""
    return {"accuracy": lambda labels, predictions: predictions.argmax(1) == labels}

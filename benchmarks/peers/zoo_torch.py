"""Plain PyTorch: a model file of the zoo trained by a loop in one process; prints its metrics.

    python benchmarks/peers/zoo_torch.py --model_def=mnist.model_torch.custom_model --train=...

The model, loss, optimizer and feed come from the model file. Only the readers of records are those
of a job, on the same files. All records are read once, and they are shuffled in each epoch.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from zoo_model import load, parse, read

from elasticdl.job import Mode
from elasticdl.model_spec import ModelSpec
from elasticdl.packages.torch.feed import TaskRecords
from elasticdl.packages.torch.metrics import Metrics

TEST_SIZE = 512


def main() -> None:
    """Train, and print `{"accuracy": 0.9, ...}`."""
    args = parse(__doc__)
    torch.manual_seed(args.seed)
    spec, given = load(args)
    model = spec.model()
    assert spec.optimizer is not None
    assert spec.loss is not None
    optimizer = spec.optimizer(list(model.parameters()), **given)
    features, labels = fed(spec, args.train, args.data_reader_params, Mode.TRAINING)
    for _ in range(args.num_epochs):
        for chosen in torch.randperm(len(labels)).split(args.minibatch_size):
            optimizer.zero_grad()
            spec.loss(labels[chosen], model(features[chosen])).backward()
            optimizer.step()
    model.eval()
    metrics = Metrics(spec.eval_metrics_fn)
    features, labels = fed(spec, args.test, args.data_reader_params, Mode.EVALUATION)
    with torch.no_grad():
        for chosen in torch.arange(len(labels)).split(TEST_SIZE):
            metrics.update(labels[chosen], model(features[chosen]))
    print(json.dumps(metrics.results(metrics.states())))


def fed(spec: ModelSpec, place: str, params: str, mode: Mode) -> tuple[Any, Any]:
    """Return the features and labels of some data, as tensors."""
    reader, chunks = read(place, params)
    records, _numbers = TaskRecords.read(chunks)
    features, labels = spec.feed(records, mode, reader.metadata)
    return torch.as_tensor(features), torch.as_tensor(labels)


if __name__ == "__main__":
    main()

"""A plain loop of PyTorch in one process, on the records and with the functions of a model file.

    python benchmarks/peers/torch_loop.py --model_def=flights.deepfm_torch.forward \
        --minibatch_size=512 --seconds=8 [--sparse] FILE...

Each call of `feed` gets as many records as a task of elasticdl has. Minibatches are cut from its
result in random order. `--sparse` makes the embedding layers `torch.nn.Embedding(sparse=True)`.
The program prints records/s without the first two seconds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

from elasticdl import Mode
from elasticdl._core import RecordReader
from elasticdl.config import ModelSection
from elasticdl.data.base import Metadata
from elasticdl.model_spec import ModelSpec, load_model_spec
from elasticdl.packages.torch.feed import TaskRecords

ZOO = Path(__file__).parents[2] / "model_zoo"
TASK_MINIBATCHES = 20
WARM_UP_SECONDS = 2.0


def main() -> None:
    """Train for some seconds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model_def", required=True)
    parser.add_argument("--minibatch_size", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--sparse", action="store_true")
    parser.add_argument("files", nargs="+")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    spec = load_model_spec(ModelSection(model_zoo=ZOO, model_def=args.model_def))
    model = spec.model()
    if args.sparse:
        make_sparse(model)
    optimizer = spec.optimizer(list(model.parameters()))
    loss = spec.loss
    count, began = 0, time.perf_counter()
    start = None
    for features, labels in minibatches(spec, args.files, args.minibatch_size):
        optimizer.zero_grad()
        loss(labels, model(features)).backward()
        optimizer.step()
        now = time.perf_counter()
        if start is not None:
            count += len(labels)
            if now - start > args.seconds:
                break
        elif now - began > WARM_UP_SECONDS:
            start = now
    print(json.dumps({"records_per_second": count / (now - start)}))


def make_sparse(model: Any) -> None:
    """Exchange embedding layers for PyTorch's own with sparse gradients."""
    for name, layer in list(model.named_children()):
        if isinstance(layer, torch.nn.Embedding):
            own = torch.nn.Embedding(*layer.weight.shape, sparse=True, _weight=layer.weight.data)
            setattr(model, name, own)


def minibatches(spec: ModelSpec, files: list[str], size: int) -> Iterator[tuple[Any, Any]]:
    """Yield minibatches of all records, over and over."""
    while True:
        for file in files:
            reader = RecordReader(file)
            for begin in range(0, reader.num_records, size * TASK_MINIBATCHES):
                end = min(begin + size * TASK_MINIBATCHES, reader.num_records)
                records = TaskRecords(reader.read(begin, end), {})
                features, labels = tree_map(
                    torch.as_tensor, spec.feed(records, Mode.TRAINING, Metadata())
                )
                for chosen in torch.randperm(len(labels)).split(size):
                    yield tree_map(itemgetter(chosen), features), labels[chosen]


if __name__ == "__main__":
    main()

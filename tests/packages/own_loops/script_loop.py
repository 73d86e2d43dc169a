"""A training loop of its own that counts how often each record was trained.

A record is its own number. Adam without momentum moves a weight by the sign of its gradient. So
each update adds 1 to the count of every record in it, whatever else is averaged with it. A record
that is twice in an update would count once: it is for one epoch, since a late task of an epoch may
be part of the same updates as the first tasks of the next.
"""

import argparse
import hashlib
import json
import time
from pathlib import Path

import torch

import elasticdl.controller

parser = argparse.ArgumentParser()
parser.add_argument("--num_records", type=int)
parser.add_argument("--seconds", type=float)
parser.add_argument("--finals", type=Path)
parser.add_argument("--num_loaders", type=int, default=0)
words = parser.parse_args()


class Numbers(torch.utils.data.Dataset):
    """What a process of a `DataLoader` makes of a record, which it is given as the index."""

    def __getitem__(self, record):
        loading = torch.utils.data.get_worker_info()
        assert (loading is not None) == (words.num_loaders > 0)
        return int(record)


class Visits(torch.nn.Module):
    """A count of each record; the buffer counts minibatches."""

    def __init__(self):
        super().__init__()
        self.visits = torch.nn.Parameter(torch.zeros(words.num_records))
        self.register_buffer("minibatches", torch.zeros(1))

    def forward(self, numbers):
        if self.training:
            self.minibatches += 1
        return -self.visits[numbers].mean()


if __name__ == "__main__":
    controller = elasticdl.controller.init()
    model = Visits()
    adam = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.0, 0.0), eps=1e-30)
    optimizer = controller.wrap(model, adam)
    loader = torch.utils.data.DataLoader(
        Numbers(),
        batch_sampler=controller.batches(),
        num_workers=words.num_loaders,
        persistent_workers=words.num_loaders > 0,
    )
    places = set()
    for numbers in controller.minibatches(loader):
        if not (words.finals / "hurry").exists():
            time.sleep(words.seconds)  # the tempo of the job: it lasts longer than a worker's start
        loss = model(numbers)
        loss.backward()
        optimizer.step(loss)
        assert 0 <= controller.rank < controller.world_size
        places.add((controller.rank, controller.world_size))
    (words.finals / f"places-{controller.worker_id}").write_text(json.dumps(sorted(places)))
    digest = hashlib.sha256(model.visits.detach().numpy().tobytes()).hexdigest()
    (words.finals / str(controller.worker_id)).write_text(digest)

"""The network of `recovery_model.py` in PyTorch, on DistributedDataParallel under torchrun.

    torchrun --nnodes=1 --nproc_per_node=3 --max_restarts=3 torchrun_steps.py FOLDER

Rank 0 writes a checkpoint every `STEPS` updates. All workers begin with the newest checkpoint when
torchrun starts them again. Each worker adds a line to FOLDER/steps-PID for each update: the time,
the number of restarts by torchrun, and the number of the update.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn

STEPS = 10
SIZES = (784, 120, 10)
MINIBATCH_SIZE = 64


def main() -> None:
    """Train until somebody ends it."""
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, world = distributed.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(SIZES[0], SIZES[1], bias=False),
        nn.ReLU(),
        nn.Linear(SIZES[1], SIZES[2], bias=False),
    )
    model = nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    checkpoint, step = folder / "checkpoint.pt", 0
    if checkpoint.exists():
        found = torch.load(checkpoint)
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        step = found["step"]
    with (folder / f"steps-{os.getpid()}").open("a", buffering=1) as steps:
        while True:
            optimizer.zero_grad()
            images, labels = minibatch(step * distributed.get_world_size() + rank)
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            step += 1
            steps.write(f"{time.time()} {world} {step}\n")
            if rank == 0 and step % STEPS == 0:
                values = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                partial = checkpoint.with_suffix(".partial")
                torch.save({**values, "step": step}, partial)
                partial.replace(checkpoint)


def minibatch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Make images as `recovery_model.feed` does."""
    numbers = torch.arange(number * MINIBATCH_SIZE, (number + 1) * MINIBATCH_SIZE)
    labels = numbers % SIZES[-1]
    images = torch.zeros(MINIBATCH_SIZE, SIZES[0])
    images[torch.arange(MINIBATCH_SIZE), labels * 78 + numbers % 78] = 1.0
    return images, labels


if __name__ == "__main__":
    main()

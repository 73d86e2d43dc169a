"""What PyTorch is told before a model is made."""

from __future__ import annotations

import torch


def prepare(seed: int, num_threads: int) -> None:
    """Have PyTorch use these threads, and begin with the same random numbers in each worker."""
    torch.set_num_threads(num_threads)
    torch.manual_seed(seed)

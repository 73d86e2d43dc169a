"""Computes what a minibatch adds to the statistics of its ids, in place of a gradient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from elasticdl.backends.base import Float32
from elasticdl.errors import ModelError
from elasticdl.layers.row_statistics import SHOW, RowStatistics, value_of
from elasticdl.packages.torch.feed import TorchMinibatch


def amounts(
    said: RowStatistics,
    shape: Sequence[int],
    records: torch.Tensor | None,
    weights: torch.Tensor | None,
    minibatch: TorchMinibatch,
) -> Float32:
    """Return what each id of a lookup adds to its sums.

    Args:
        said: The statistics.
        shape: The shape of the ids.
        records: The record of each id; None: it is their first axis.
        weights: What each counts; None: all count 1.
        minibatch: The minibatch whose labels and features are counted.

    Raises:
        ModelError: `feed` does not give a value that is counted, once for each record.
    """
    added = torch.ones(*shape, len(said.names))
    for column, name in enumerate(said.names):
        if name != SHOW:
            added[..., column] = _of_records(name, shape, records, minibatch)
    if weights is not None:
        added *= weights.cpu().unsqueeze(-1)
    return np.asarray(added.numpy(), np.float32)


def _of_records(
    name: str, shape: Sequence[int], records: torch.Tensor | None, minibatch: TorchMinibatch
) -> torch.Tensor:
    """Return the value of each id's record."""
    given = value_of(name, minibatch.labels, minibatch.features, torch.Tensor)
    if any(size != 1 for size in given.shape[1:]):
        raise ModelError(
            f"statistic {name!r} is counted by record: expected one number of feed for each, found "
            f"shape {tuple(given.shape)}"
        )
    values = given.detach().cpu().reshape(-1).to(torch.float32)
    if records is not None:
        return values[records.cpu()]
    return values.reshape(-1, *[1] * (len(shape) - 1)).expand(*shape)

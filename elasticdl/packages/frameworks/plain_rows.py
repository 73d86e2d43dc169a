"""Rows of a table in a plain Python session, from a store in this process."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl.errors import ModelError

PLAIN_SEED = 0


class PlainRows:
    """Creates rows when they are first looked up, as a job with seed 0 creates them.

    Args:
        name: The name of the table, and of the layer in messages.
        dim: The width of a row.
        input_dim: The number of rows, if it is limited.
        initializer: The kind and the parameters, as in `Initializer` of
            `elasticdl/backends/base.py`.
        constraint: The kind and the parameters of the constraint of rows.
    """

    def __init__(
        self,
        name: str,
        dim: int,
        input_dim: int | None,
        initializer: tuple[str, dict[str, float]],
        constraint: tuple[str, dict[str, float]] | None = None,
    ) -> None:
        from elasticdl._core import PsClient, Store

        sgd = {"kind": "sgd", "params": {}}
        table: dict[str, Any] = {
            "name": name,
            "dim": dim,
            "initializer": {"kind": initializer[0], "params": initializer[1]},
            "optimizer": sgd,
            "input_dim": input_dim,
        }
        if constraint is not None:
            table["constraint"] = {"kind": constraint[0], "params": constraint[1]}
        model = {"tables": [table], "dense": [], "state": [], "optimizer": sgd, "seed": PLAIN_SEED}
        empty = np.zeros(0, np.float32)
        self._name = name
        self._dim = dim
        self._client = PsClient.in_process(Store())
        self._client.declare(json.dumps(model), empty, empty)

    def pull(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the rows of ids of any shape, `ids.shape + (dim,)`.

        Raises:
            ModelError: An id is negative.
        """
        if ids.size and ids.min() < 0:
            raise ModelError(
                f"Embedding {self._name!r}: ids must not be negative, found {ids.min()}"
            )
        if not ids.size:
            return np.zeros((*ids.shape, self._dim), np.float32)
        sites = [(0, np.ascontiguousarray(ids))]
        return self._client.pull(sites, training=True, dense=False).rows[0]

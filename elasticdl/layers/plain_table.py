"""Rows for an `Embedding` in a plain Python session: an in-process store of one table."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from elasticdl.errors import ModelError
from elasticdl.layers.constraint import RowConstraint
from elasticdl.layers.initializer import describe_initializer

PLAIN_SEED = 0


class PlainTable:
    """A table whose rows are created when first looked up, as a job with seed 0 creates them."""

    def __init__(
        self,
        name: str,
        dim: int,
        input_dim: int | None,
        initializer: Any,
        constraint: RowConstraint | None = None,
    ) -> None:
        from elasticdl._core import PsClient, Store

        kind, params = describe_initializer(initializer, name, dim, input_dim)
        sgd = {"kind": "sgd", "params": {}}
        table: dict[str, Any] = {
            "name": name,
            "dim": dim,
            "initializer": {"kind": kind, "params": params},
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

    def lookup(self, ids: Any) -> Any:
        """Return the rows of an int64 tensor, `ids.shape + (dim,)`; eagerly or in a function."""
        if tf.executing_eagerly():
            return tf.convert_to_tensor(self._pull(ids.numpy()))
        rows = tf.numpy_function(self._pull, [ids], tf.float32, stateful=True)
        return tf.ensure_shape(
            rows, (*ids.shape, self._dim) if ids.shape.rank is not None else None
        )

    def _pull(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        if ids.size and ids.min() < 0:
            raise ModelError(
                f"Embedding {self._name!r}: ids must not be negative, found {ids.min()}"
            )
        if not ids.size:
            return np.zeros((*ids.shape, self._dim), np.float32)
        sites = [(0, np.ascontiguousarray(ids))]
        return self._client.pull(sites, training=True, dense=False).rows[0]

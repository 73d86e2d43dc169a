"""Computes what a minibatch adds to the statistics of its ids, in place of a gradient."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from elasticdl.errors import ModelError
from elasticdl.layers.row_statistics import SHOW, RowStatistics, value_of
from elasticdl.packages.keras.types import Nested


class Counted:
    """The records of each lookup of statistics in a call of the model, as the layers say them."""

    def __init__(self) -> None:
        self._sites: list[tuple[tf.Tensor | None, tf.Tensor | None]] = []

    def __call__(self, records: tf.Tensor | None, weights: tf.Tensor | None) -> None:
        """Note the records of the ids of the next lookup, and what each id counts."""
        self._sites.append((records, weights))

    def amounts(
        self,
        said: Sequence[RowStatistics | None],
        rows: Sequence[tf.Tensor],
        labels: Nested,
        features: Nested,
    ) -> list[tf.Tensor | None]:
        """Return what each id of each lookup adds to its sums; None of one without statistics.

        Args:
            said: The statistics of each lookup of the model.
            rows: The rows of each, whose first axes are those of the ids.
            labels: The labels, as `feed` gives them.
            features: The same.

        Raises:
            ModelError: `feed` does not give a value that is counted, once for each record.
        """
        sites = iter(self._sites)
        return [
            None if of_site is None else _amounts(of_site, given, *next(sites), labels, features)
            for of_site, given in zip(said, rows, strict=True)
        ]


def _amounts(
    said: RowStatistics,
    rows: tf.Tensor,
    records: tf.Tensor | None,
    weights: tf.Tensor | None,
    labels: Nested,
    features: Nested,
) -> tf.Tensor:
    shape = tf.shape(rows)[:-1]
    columns = [
        tf.ones(shape) if name == SHOW else _of_records(name, shape, records, labels, features)
        for name in said.names
    ]
    amounts = tf.stack(columns, -1)
    return amounts if weights is None else amounts * weights[..., None]


def _of_records(
    name: str, shape: tf.Tensor, records: tf.Tensor | None, labels: Nested, features: Nested
) -> tf.Tensor:
    """Return the value of each id's record."""
    given = value_of(name, labels, features, tf.Tensor)
    if given.shape.rank is None or any(size != 1 for size in given.shape[1:]):
        raise ModelError(
            f"statistic {name!r} is counted by record: expected one number of feed for each, found "
            f"shape {given.shape}"
        )
    values = tf.cast(tf.reshape(given, [-1]), tf.float32)
    if records is not None:
        return tf.gather(values, records)
    ones = tf.ones([tf.size(shape) - 1], tf.int32)
    return tf.broadcast_to(tf.reshape(values, tf.concat([[-1], ones], 0)), shape)

"""A model whose parameters count their training records and minibatches.

Initial values are 0. SGD with learning rate 1 adds the numbers that `_gradients` returns. A row
counts the occurrences of its id, and sums the signatures of the minibatches of these occurrences.
The dense parameters and the state count all minibatches and sum their signatures. float32 counts
exactly up to 2**24. A record is a line of ids separated by spaces.

A **signature** is a number made from the ids of a minibatch in their order. Each epoch shuffles
records into other minibatches. Suppose that one epoch trains a record twice and another epoch
leaves it out. Then the counts are right, but the sums of signatures are wrong. A minibatch that is
made again after a loss must also have the same signature.
"""

import zlib

import numpy as np

from elasticdl import ArrayModel, ArrayOptimizer, ArrayTable, Initializer, Mode, batched

NUM_SIGNATURES = 256  # so that sums of signatures stay below 2**24
COPIES = 8  # of a pair of numbers; so large vectors are split between two replicas


def forward():
    """Return the model. Dense parameters and state are large enough for two replicas."""
    return ArrayModel(
        tables=[ArrayTable("count", dim=2, initializer=Initializer("constant", {"value": 0.0}))],
        ids=lambda features: [features],
        predict=lambda dense, rows, features: rows[0][..., 0],
        gradients=_gradients,
        dense=_counters(),
        state=_counters(),
    )


def optimizer(lr=1.0):
    """Return SGD: a row grows by lr for each occurrence."""
    return ArrayOptimizer(learning_rate=lr, kind="sgd")


def feed(records, mode, metadata):
    """Parse lines that have equal numbers of ids."""
    ids = np.array([[int(word) for word in record.split()] for record in records], np.int64)
    return ids if mode == Mode.PREDICTION else (ids, np.zeros(len(ids), np.float32))


@batched
def feed_columns(records, mode, metadata):
    """Take the same ids from columns, with one id in each column."""
    ids = np.stack([records[name] for name in metadata.column_names], axis=1)
    return ids if mode == Mode.PREDICTION else (ids, np.zeros(len(ids), np.float32))


def eval_metrics_fn():
    """Return the mean count of the ids in the data."""
    return {"mean_count": lambda labels, predictions: predictions}


def _gradients(dense, rows, features, labels):
    counted = np.array([1.0, signature(features)], np.float32)
    return (
        float(rows[0].mean()),
        [np.broadcast_to(-counted, rows[0].shape)],
        {name: np.tile(-counted, (COPIES, 1)) for name in dense},
        {name: np.tile(counted, (COPIES, 1)) for name in dense},
    )


def signature(ids):
    """Return the signature of a minibatch from its ids in their order."""
    return zlib.crc32(np.ascontiguousarray(ids, "<i8").tobytes()) % NUM_SIGNATURES


def _counters():
    return {name: np.zeros((COPIES, 2), np.float32) for name in ("seen_low", "seen_high")}

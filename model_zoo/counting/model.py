"""A model whose parameters count what they were trained on, and with which minibatches.

Initial values are 0, and SGD with learning rate 1 adds what `_gradients` asks for. A row counts the
occurrences of its id, and sums the signatures of the minibatches that they came in. The dense
parameters and the state count minibatches, and sum their signatures, in the same way. float32
counts exactly up to 2**24. A record is a line of ids separated by spaces.

A minibatch's **signature** is a number made of its ids in their order. Each epoch shuffles records
into other minibatches. So a record that one epoch trained twice and another never leaves the
counts right and the sums of signatures wrong; and a minibatch that is made anew, after a loss,
must be the same one.
"""

import zlib

import numpy as np

from elasticdl import ArrayModel, ArrayOptimizer, ArrayTable, Initializer, Mode, batched

NUM_SIGNATURES = 256  # so that sums of signatures stay below 2**24
COPIES = 8  # of a pair of numbers; so large vectors are split between two replicas


def forward():
    """The table `count`; dense parameters and state, so large that two replicas have a part."""
    return ArrayModel(
        tables=[ArrayTable("count", dim=2, initializer=Initializer("constant", {"value": 0.0}))],
        ids=lambda features: [features],
        predict=lambda dense, rows, features: rows[0][..., 0],
        gradients=_gradients,
        dense=_counters(),
        state=_counters(),
    )


def optimizer(lr=1.0):
    """SGD: a row grows by lr for each occurrence."""
    return ArrayOptimizer(learning_rate=lr, kind="sgd")


def feed(records, mode, metadata):
    """Parse lines of as many ids each."""
    ids = np.array([[int(word) for word in record.split()] for record in records], np.int64)
    return ids if mode == Mode.PREDICTION else (ids, np.zeros(len(ids), np.float32))


@batched
def feed_columns(records, mode, metadata):
    """Take the same ids, where each has a column of its own."""
    ids = np.stack([records[name] for name in metadata.column_names], axis=1)
    return ids if mode == Mode.PREDICTION else (ids, np.zeros(len(ids), np.float32))


def eval_metrics_fn():
    """The mean count of the ids seen."""
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
    """Return the number of a minibatch, of its ids in their order."""
    return zlib.crc32(np.ascontiguousarray(ids, "<i8").tobytes()) % NUM_SIGNATURES


def _counters():
    return {name: np.zeros((COPIES, 2), np.float32) for name in ("seen_low", "seen_high")}

"""A model whose rows record the round and the weight of each of their updates.

It is for synchronous training on ids that occur once in the data. Each training of a row is a
**visit**. SGD with learning rate 1 then adds three numbers to the row. They are the weight in the
average, the weight times the round, and the weight times the minibatch's `signature`. The number of
the round is the value of the dense parameter `rounds` at the pull. It grows by one in each round if
the weights add up to one. Each visit fills new columns. The model sees in the pulled row which
columns are free.
"""

import zlib

import numpy as np

from elasticdl import ArrayModel, ArrayOptimizer, ArrayTable, Initializer, Mode

NUM_VISITS = 4  # one more than there are epochs: a row that is trained too often must show it
NUM_SIGNATURES = 65_536
COLUMNS = ("weight", "round", "signature")
COPIES = (
    16  # of a number; so `rounds` is on the first of two replicas and `signatures` on the other
)


def forward():
    """Return the model. A round averages dense parameters and sums the state."""
    width = len(COLUMNS) * NUM_VISITS
    zero = Initializer("constant", {"value": 0.0})
    return ArrayModel(
        tables=[ArrayTable("visit", dim=width, initializer=zero)],
        ids=lambda features: [features],
        predict=lambda dense, rows, features: rows[0][..., 0],
        gradients=_gradients,
        dense={"rounds": np.zeros(COPIES, np.float32), "signatures": np.zeros(COPIES, np.float32)},
        state={"rounds": np.zeros(COPIES, np.float32), "signatures": np.zeros(COPIES, np.float32)},
    )


def optimizer(lr=1.0):
    """Return SGD: a row grows by lr times its negative gradient."""
    return ArrayOptimizer(learning_rate=lr, kind="sgd")


def feed(records, mode, metadata):
    """Parse lines that have equal numbers of ids."""
    ids = np.array([[int(word) for word in record.split()] for record in records], np.int64)
    return ids if mode == Mode.PREDICTION else (ids, np.zeros(len(ids), np.float32))


def eval_metrics_fn():
    """Return the mean weight of the first visit."""
    return {"mean_weight": lambda labels, predictions: predictions}


def _gradients(dense, rows, features, labels):
    one = np.ones(COPIES, np.float32)
    number = np.float32(signature(features))
    visit = np.array([1.0, np.round(dense["rounds"][0]), number], np.float32)
    return (
        float(rows[0].mean()),
        [-_in_free_columns(rows[0], visit)],
        {"rounds": -one, "signatures": -number * one},
        {"rounds": one, "signatures": number * one},
    )


def _in_free_columns(rows, visit):
    """Return an array like `rows` with `visit` in the first free columns of each row."""
    weights = rows[..., :: len(COLUMNS)]
    taken = np.minimum(np.count_nonzero(weights, axis=-1), NUM_VISITS - 1)
    is_free = np.arange(NUM_VISITS) == taken[..., None]
    return (is_free[..., None] * visit).reshape(rows.shape).astype(np.float32)


def signature(ids):
    """Return the signature of a minibatch from its ids in their order."""
    return zlib.crc32(np.ascontiguousarray(ids, "<i8").tobytes()) % NUM_SIGNATURES

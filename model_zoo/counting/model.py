"""A model whose rows count how often their id was trained.

One embedding table of width 1, initial value 0, trained by SGD with learning rate 1; the gradient
of every occurrence of an id is -1. After a job, each row is epochs x occurrences of its id, exactly
(float32 counts exactly up to 2**24). A record is a line of ids separated by spaces.
"""

import numpy as np

from elasticdl import ArrayModel, ArrayOptimizer, ArrayTable, Initializer, Mode


def forward():
    """The table `count`; a dense parameter counts minibatches in the same way."""
    return ArrayModel(
        tables=[ArrayTable("count", dim=1, initializer=Initializer("constant", {"value": 0.0}))],
        ids=lambda features: [features],
        predict=lambda dense, rows, features: rows[0][..., 0],
        gradients=_gradients,
        dense={"minibatches": np.zeros(1, np.float32)},
    )


def optimizer(lr=1.0):
    """SGD: a row grows by lr for each occurrence."""
    return ArrayOptimizer(learning_rate=lr, kind="sgd")


def sign_optimizer(lr=1.0):
    """Adam without memory: a row grows by lr in each update that has it, whatever its gradient.

    Where gradients are averaged over workers (`--use_async=false`), SGD would add a share of one,
    and counts would tell nothing; with this, and ids that occur once, each row ends as its epochs.
    """
    return ArrayOptimizer(
        learning_rate=lr, kind="adam", params={"beta_1": 0.0, "beta_2": 0.0, "epsilon": 0.0}
    )


def feed(records, mode, metadata):
    """Parse lines of as many ids each."""
    ids = np.array([[int(word) for word in record.split()] for record in records], np.int64)
    return ids if mode == Mode.PREDICTION else (ids, np.zeros(len(ids), np.float32))


def eval_metrics_fn():
    """The mean count of the ids seen."""
    return {"mean_count": lambda labels, predictions: predictions}


def _gradients(dense, rows, features, labels):
    return (
        float(rows[0].mean()),
        [np.full_like(rows[0], -1.0)],
        {"minibatches": np.full(1, -1.0, np.float32)},
    )

"""The differences between training in a job and in the framework alone, a line for each."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from elasticdl.backends.base import Float32, OptimizerSpec, TableDescription, VariableDescription

_OF_ROWS = ("sgd", "adagrad")  # leave a row as it is that a minibatch does not have


def of_moved(names: Sequence[str], rule: OptimizerSpec, optimizer: str) -> Iterator[str]:
    """Say that plain layers of Keras were moved, and whether their optimizer is another one then.

    Args:
        names: The names of the layers.
        rule: The rule of the tables.
        optimizer: The user's name for the optimizer.
    """
    if not names:
        return
    text = (
        f"plain Embedding {', '.join(names)} is moved to the ps replicas, as "
        "--embedding_threshold_bytes says"
    )
    if rule.kind not in _OF_ROWS or rule.params.get("weight_decay"):
        text += (
            f": there {optimizer} changes the rows of a minibatch alone, where Keras changes every "
            "row in each step. A larger threshold leaves it in the model"
        )
    yield text


def of_frozen(tables: Sequence[TableDescription]) -> Iterator[str]:
    """Say what ids read as that training did not look up, in tables of random rows that rest."""
    for table in tables:
        is_random = table.initializer.kind != "constant" and not table.given_rows
        if is_random and not table.trainable and table.statistics is None:
            yield (
                f"table {table.name!r} is not trained, and its rows are random: ids that training "
                f"did not look up read as {table.initializer.centre:g}, the centre of its "
                "initializer, in evaluations and exports"
            )


def of_endless(state: Sequence[VariableDescription], values: Float32) -> Iterator[str]:
    """Say what happens to state that begins with infinity, for which no rule is known."""
    for one in state:
        begins = values[one.offset : one.offset + math.prod(one.shape)]
        if one.momentum == 0.0 and not np.all(np.isfinite(begins)):
            yield (
                f"state {one.name!r} begins with {begins.flat[0]:g}: each step replaces it, and of "
                "workers that train at the same time the last one's value stays"
            )


def of_scheduler(name: str) -> str:
    """Say what a scheduler counts that in a plain loop may count epochs."""
    return (
        f"{name} counts updates of the model, as if step() followed each minibatch; one that is "
        "meant by epochs needs the number of updates of an epoch in its settings"
    )


def of_schedule(schedule: Callable[..., object]) -> Iterator[str]:
    """Say what the function of a `LearningRateScheduler` is given, if it is named after epochs."""
    try:
        first = next(iter(inspect.signature(schedule).parameters), "")
    except (TypeError, ValueError):
        return
    if "epoch" in first.lower():
        yield (
            f"LearningRateScheduler gives its function ({first}) the number of updates of the "
            "model, and not that of epochs"
        )

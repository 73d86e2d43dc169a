"""Translates Keras constraints of an embedding table into the store's operation on a row."""

from __future__ import annotations

import keras

from elasticdl.errors import ModelError

RowConstraint = tuple[str, dict[str, float]]


def describe_constraint(
    constraint: keras.constraints.Constraint | None, layer: str
) -> RowConstraint | None:
    """Return (kind, params) of the constraint for each row, or None without a constraint.

    Kinds and parameters are those of `ConstraintSpec` in `elasticdl/backends/base.py`.

    Raises:
        ModelError: The constraint looks at more than one row, or is the user's own.
    """
    kinds = keras.constraints
    if constraint is None:
        return None
    # A subclass may do something else, so the exact type is compared.
    if type(constraint) is kinds.NonNeg:
        return "non_neg", {}
    if type(constraint) is kinds.UnitNorm:
        low, high, rate = 1.0, 1.0, 1.0
    elif type(constraint) is kinds.MaxNorm:
        low, high, rate = 0.0, constraint.max_value, 1.0
    elif type(constraint) is kinds.MinMaxNorm:
        low, high, rate = constraint.min_value, constraint.max_value, constraint.rate
    else:
        raise ModelError(
            f"Embedding {layer!r}: embeddings_constraint is {type(constraint).__name__}, but rows "
            "are held to it one by one on the ps replicas; use NonNeg, or UnitNorm, MaxNorm or "
            "MinMaxNorm with axis=1"
        )
    if constraint.axis not in (1, -1, [1], (1,), [-1], (-1,)):
        raise ModelError(
            f"Embedding {layer!r}: embeddings_constraint {type(constraint).__name__} has "
            f"axis={constraint.axis!r}, which is the norm over all rows of the table; no ps "
            "replica has them all: say axis=1, for the norm of each row"
        )
    # The store divides by a norm as Keras does, with the same epsilon.
    norm = {"min": low, "max": high, "rate": rate, "epsilon": keras.config.epsilon()}
    return "norm", {name: float(value) for name, value in norm.items()}

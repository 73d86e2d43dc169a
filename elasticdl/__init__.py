"""Elastic training of deep models: nothing that dies stops a job or loses a record."""

from typing import Any

from elasticdl.job import Mode

__all__ = [
    "ArrayModel",
    "ArrayOptimizer",
    "ArrayTable",
    "CountAdmission",
    "Expiry",
    "Initializer",
    "Job",
    "Mode",
    "ProbabilityAdmission",
    "RowStatistics",
    "StatisticAdmission",
    "batched",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import the parts of the array backend when a model file asks for them."""
    if name in ("ArrayModel", "ArrayOptimizer", "ArrayTable"):
        from elasticdl.backends import numpy

        return getattr(numpy, name)
    if name == "RowStatistics":
        from elasticdl.layers.row_statistics import RowStatistics

        return RowStatistics
    if name in ("CountAdmission", "Expiry", "ProbabilityAdmission", "StatisticAdmission"):
        from elasticdl.layers import life_cycle

        return getattr(life_cycle, name)
    if name == "batched":
        from elasticdl.model_spec import batched

        return batched
    if name in ("Job", "train"):
        from elasticdl.cli import interactive

        return getattr(interactive, name)
    if name == "Initializer":
        from elasticdl.backends.base import Initializer

        return Initializer
    raise AttributeError(f"module 'elasticdl' has no attribute {name!r}")

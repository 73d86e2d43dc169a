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
    """Import the parts of the array backend, and of packages, when somebody asks for them."""
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
    if name == "Initializer":
        from elasticdl.backends.base import Initializer

        return Initializer
    from elasticdl.registry import load, places

    if name.startswith("__") or name not in places("names"):
        raise AttributeError(f"module 'elasticdl' has no attribute {name!r}")
    return load(places("names")[name])

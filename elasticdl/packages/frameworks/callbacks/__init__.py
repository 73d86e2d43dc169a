"""Callbacks for `callbacks()` of a model file in any framework; none is imported here.

Models in PyTorch can use all of these. Models in Keras use Keras' own callbacks, and
`LearningRateScheduler`.
"""

from elasticdl.packages.frameworks.callbacks.base import Callback, JobControl, LearningRateScheduler
from elasticdl.packages.frameworks.callbacks.monitors import (
    EarlyStopping,
    MonitorCallback,
    ReduceLROnPlateau,
)

__all__ = [
    "Callback",
    "EarlyStopping",
    "JobControl",
    "LearningRateScheduler",
    "MonitorCallback",
    "ReduceLROnPlateau",
]

"""What a model file's `callbacks()` may return, whatever its framework is; without importing one.

Models in PyTorch have all of these. Models in Keras have Keras' own, and `LearningRateScheduler`.
"""

from elasticdl.callbacks.base import Callback, JobControl, LearningRateScheduler
from elasticdl.callbacks.monitors import EarlyStopping, MonitorCallback, ReduceLROnPlateau

__all__ = [
    "Callback",
    "EarlyStopping",
    "JobControl",
    "LearningRateScheduler",
    "MonitorCallback",
    "ReduceLROnPlateau",
]

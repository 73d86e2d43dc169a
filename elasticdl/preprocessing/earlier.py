"""What layers of `elasticdl_preprocessing` of ElasticDL 0.x were called with, where it differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras


def Discretization(bins: Sequence[float], **kwargs: Any) -> Any:
    """Return Keras' layer, whose setting is called `bin_boundaries`."""
    return keras.layers.Discretization(bins, **kwargs)

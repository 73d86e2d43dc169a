"""Callbacks for `callbacks()` of a model file in PyTorch, and `LearningRateScheduler` for Keras.

The package `frameworks` has the code: this name stands for its module `callbacks`.
"""

import sys
from typing import TYPE_CHECKING, Any

from elasticdl import registry

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


sys.modules[__name__] = registry.module(__name__, "frameworks")

"""The profiler of TensorFlow, for `elasticdl profile --framework`."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from elasticdl.backends.backend import End
from elasticdl.packages.keras.model.function import FlatFunction


def begin(folder: Path) -> End:
    """Begin to record; the end writes `plugins/profile/` into the folder."""
    tf.profiler.experimental.start(str(folder))
    # The usual executor tells a profiler nothing of the operations that it runs.
    FlatFunction.executor_type = "DEFAULT"

    def end() -> None:
        FlatFunction.executor_type = ""
        tf.profiler.experimental.stop()

    return end

"""The profiler of a worker's framework, for `elasticdl profile --framework`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

End = Callable[[], None]
"""Ends recording and writes what was recorded; called by the thread that began."""

TORCH_FILE = "torch.json"
"""A Chrome trace. TensorFlow writes `plugins/profile/`, for TensorBoard's profile plugin."""


def begin(folder: Path) -> End | None:
    """Begin to record what the framework does, for files in a folder; None if it has no profiler.

    The thread that computes must call it.
    """
    if "elasticdl.backends.torch.trainer" in sys.modules:
        return _torch(folder)
    if "elasticdl.backends.keras.trainer" in sys.modules:
        return _tensorflow(folder)
    return None


def _torch(folder: Path) -> End:
    import torch

    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    profiler = torch.profiler.profile(activities=activities)
    profiler.start()

    def end() -> None:
        profiler.stop()
        folder.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(folder / TORCH_FILE))

    return end


def _tensorflow(folder: Path) -> End:
    import tensorflow as tf

    from elasticdl.backends.keras.model.function import FlatFunction

    tf.profiler.experimental.start(str(folder))
    # The usual executor tells a profiler nothing of the operations that it runs.
    FlatFunction.executor_type = "DEFAULT"

    def end() -> None:
        FlatFunction.executor_type = ""
        tf.profiler.experimental.stop()

    return end

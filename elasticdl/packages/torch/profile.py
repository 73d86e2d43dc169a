"""The profiler of PyTorch, for `elasticdl profile --framework`."""

from __future__ import annotations

from pathlib import Path

import torch

from elasticdl.backends.backend import End

FILE = "torch.json"
"""A Chrome trace."""


def begin(folder: Path) -> End:
    """Begin to record; the end writes `FILE` into the folder."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    profiler = torch.profiler.profile(activities=activities)
    profiler.start()

    def end() -> None:
        profiler.stop()
        folder.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(folder / FILE))

    return end

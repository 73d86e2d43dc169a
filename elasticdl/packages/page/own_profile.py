"""The profiler of a worker's framework, for `elasticdl profile --framework`."""

from __future__ import annotations

from pathlib import Path

from elasticdl.backends.backend import End
from elasticdl.backends.known import known


def begin(folder: Path) -> End | None:
    """Begin to record what the framework does, for files in a folder; None if it has no profiler.

    The thread that computes must call it.
    """
    ends = (backend.begin_profile(folder) for backend in known().values())
    return next((end for end in ends if end is not None), None)

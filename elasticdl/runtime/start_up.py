"""Settings for a fast and quiet import of frameworks.

Imported objects stay alive, so the garbage collector finds nothing in them. Its repeated searches
would take a fifth of the import time.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
from collections.abc import Iterator


def quiet_tensorflow() -> None:
    """Turn off messages of TensorFlow's C++ code about the processor, and its warnings.

    An error of a step or of `feed` becomes an exception, and TensorFlow would print it twice more.
    A user's TF_CPP_MIN_LOG_LEVEL in the environment stays as it is.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def collect_garbage() -> None:
    """Turn on garbage collection, but leave out the objects that exist now."""
    gc.freeze()
    atexit.register(gc.unfreeze)  # libraries that look for leaks at the end must see all objects
    gc.enable()


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Turn off garbage collection in the block; later leave out the objects that it made."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        collect_garbage()

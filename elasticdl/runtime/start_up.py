"""How a process loads modules: TensorFlow says little, and nothing looks for garbage.

What is imported stays, and to look through it for garbage again and again takes a fifth of the
time.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
from collections.abc import Iterator


def quiet_tensorflow() -> None:
    """Leave out what TensorFlow's C++ says of the processor, and its warnings.

    An error of a step or of `feed` is raised too, and TensorFlow would say it twice more. With
    TF_CPP_MIN_LOG_LEVEL in the environment, it says what that asks for.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def collect_garbage() -> None:
    """Have garbage looked for from now on, but not before the end in what there is by now."""
    gc.freeze()
    atexit.register(gc.unfreeze)  # else a library that looks at the end tells of leaks
    gc.enable()


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Look for no garbage within the block, and later on not in what there is when it ends."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        collect_garbage()

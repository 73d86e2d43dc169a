"""TensorFlow starts without the lines that it prints whenever it is imported.

They tell of the processor. Its C++ writes them before any of its log settings count, and they would
stand in a user's terminal above what the job has to say.

Meanwhile nothing looks for garbage: what is imported stays, and to look through it again and again
takes a fifth of the time.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_VARIABLE = "TF_CPP_MIN_LOG_LEVEL"
_LEFT_OUT = (
    "All log messages before absl::InitializeLog() is called",
    "oneDNN custom operations are on",
    "This TensorFlow binary is optimized to use available CPU instructions",
    "To enable the following instructions:",
)
# A process of its own: what is printed just before a crash comes through.
_FILTER = f"""
import sys
for line in sys.stdin.buffer:
    if not any(words.encode() in line for words in {_LEFT_OUT!r}):
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
"""


def quiet_tensorflow() -> None:
    """Leave those lines out when TensorFlow is imported, by whomever, and its C++ warnings later.

    An error of a step or of `feed` is raised too, and TensorFlow would say it twice more.

    Not with TF_CPP_MIN_LOG_LEVEL=0 in the environment: that asks for all that there is.
    """
    if os.environ.setdefault(_VARIABLE, "2") == "0" or "tensorflow" in sys.modules:
        return
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds TensorFlow, once, as the others do."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _QuietLoader(spec.loader)
        return spec


class _QuietLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        with _filtered_stderr(), _without_collection():
            self._loader.exec_module(module)


def collect_garbage() -> None:
    """Have garbage looked for from now on, but not before the end in what there is by now."""
    gc.freeze()
    atexit.register(gc.unfreeze)  # else a library that looks at the end tells of leaks
    gc.enable()


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Look for no garbage, and later on not in what there is when this ends."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        collect_garbage()


@contextlib.contextmanager
def _filtered_stderr() -> Iterator[None]:
    """Pass what this process writes to its standard error through the filter."""
    sys.stderr.flush()
    stderr = os.dup(2)
    try:
        with subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _FILTER],
            stdin=subprocess.PIPE,
            stdout=stderr,
            start_new_session=True,  # Ctrl-C is not for it
        ) as passing:
            assert passing.stdin is not None
            os.dup2(passing.stdin.fileno(), 2)
            try:
                yield
            finally:
                sys.stderr.flush()
                os.dup2(stderr, 2)
    finally:
        os.close(stderr)

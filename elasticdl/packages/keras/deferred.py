"""Parts of Keras that a job seldom uses are loaded when they are first used.

Keras imports scikit-learn, pandas and Matplotlib if they are installed, for its wrappers, for `fit`
on data frames, and for its galleries. These imports take a third of the time in which a process
loads TensorFlow, and few model files need them.

`importlib.util.LazyLoader` is not enough. It loads a module on access to any attribute, and some
libraries ask all modules for their `__file__` or `__warningregistry__`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from elasticdl.model_spec import ModelSpec
from elasticdl.runtime.start_up import quiet_tensorflow

SELDOM_USED = frozenset(
    {
        "keras.wrappers",
        "keras.visualization",
        "keras._tf_keras.keras.wrappers",
        "keras._tf_keras.keras.visualization",
        "keras.src.visualization",
        "keras.src.trainers.data_adapters.array_slicing",
    }
)
"""Modules of Keras that other modules import, but do not use before a function is called."""


def defer(names: Iterable[str]) -> None:
    """Let modules load at the first use of an attribute, and not at their import.

    Modules that are loaded already stay as they are.
    """
    finder = next((one for one in sys.meta_path if isinstance(one, _Finder)), None)
    if finder is None:
        finder = _Finder()
        sys.meta_path.insert(0, finder)
    finder.names.update(names)


class _ModelFiles:
    """Prepares a process for model files in Keras; see `model_spec.AdaptsModelFiles`."""

    def before_import(self) -> None:
        """Have the imports of TensorFlow and Keras be quiet and fast."""
        quiet_tensorflow()
        defer(SELDOM_USED)

    def adapted(self, spec: ModelSpec, file: str | None) -> ModelSpec:
        """Return the functions as they are."""
        return spec


MODEL_FILES = _ModelFiles()


class _Finder(MetaPathFinder):
    """Finds each deferred module once and returns a stand-in. Later other finders find it."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._found: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.names or fullname in self._found:
            return None
        self._found.add(fullname)
        if (found := importlib.util.find_spec(fullname)) is None:
            return None
        spec = ModuleSpec(fullname, _Loader(), origin=found.origin)
        spec.has_location = found.has_location
        spec.submodule_search_locations = found.submodule_search_locations
        return spec


class _Loader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None  # an ordinary module; `exec_module` needs its name and file first

    def exec_module(self, module: ModuleType) -> None:
        module.__class__ = _StandIn


class _StandIn(ModuleType):
    """Stands for a module, which is imported at the first use of an attribute."""

    def __getattr__(self, name: str) -> Any:
        # Libraries that look through all modules ask for such names; they must not load this one.
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)
        return getattr(self._module(), name)

    def __dir__(self) -> list[str]:
        return dir(self._module())

    def _module(self) -> ModuleType:
        """Import the module. One thread imports it, and the other threads wait."""
        own = self.__name__
        with _replacing:
            if sys.modules.get(own) is self:
                del sys.modules[own]
        module = importlib.import_module(own)
        for name, part in vars(self).items():  # submodules that were imported before
            vars(module).setdefault(name, part)
        vars(self).update(vars(module))
        return module


_replacing = threading.Lock()

"""Parts of Keras that a job seldom uses are loaded when they are first used.

Keras imports scikit-learn, pandas and Matplotlib where they are installed, for its wrappers, for
`fit` on data frames, and for its galleries. That is a third of the time in which a process loads
TensorFlow, and few model files use any of it.

`importlib.util.LazyLoader` is not enough: it loads a module whatever is asked of it, and there are
libraries that ask all modules for their `__file__` or `__warningregistry__`.
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
"""Modules of Keras of which the others use nothing before something is called."""


def defer(names: Iterable[str]) -> None:
    """Have modules loaded when something of them is asked for, not when they are imported.

    Those that are loaded already stay as they are.
    """
    finder = next((one for one in sys.meta_path if isinstance(one, _Finder)), None)
    if finder is None:
        finder = _Finder()
        sys.meta_path.insert(0, finder)
    finder.names.update(names)


class _Finder(MetaPathFinder):
    """Finds each of some modules once, and gives a stand-in for it; then the others find it."""

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
        return None  # one as any other, until the import system has filled in its name and file

    def exec_module(self, module: ModuleType) -> None:
        module.__class__ = _StandIn


class _StandIn(ModuleType):
    """Has what a module has, which is imported when something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        # Who looks through all modules that there are asks for such names.
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)
        return getattr(self._module(), name)

    def __dir__(self) -> list[str]:
        return dir(self._module())

    def _module(self) -> ModuleType:
        """Import the module; one thread does, and others that want it wait for that."""
        own = self.__name__
        with _replacing:
            if sys.modules.get(own) is self:
                del sys.modules[own]
        module = importlib.import_module(own)
        for name, part in vars(self).items():  # parts that were imported alone
            vars(module).setdefault(name, part)
        vars(self).update(vars(module))
        return module


_replacing = threading.Lock()

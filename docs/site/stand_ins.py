"""Stands in for the frameworks while docstrings are read, so that none is imported.

A name that begins with a capital is a class, which can be a base or an annotation. Any other name
is a module, and can be called: as a decorator it changes nothing, so that what it stands before
keeps its signature and its docstring.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types

FRAMEWORKS = ("keras", "tensorflow", "torch", "torchmetrics")


class _Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].isupper():
            own = {
                "__module__": self.__name__,
                "__class_getitem__": classmethod(lambda cls, _: cls),
            }
            value = type(name, (), own)
        else:
            value = _Module(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value

    def __call__(self, *args, **kwargs):
        is_decorator = len(args) == 1 and isinstance(args[0], type | types.FunctionType)
        return args[0] if is_decorator else lambda decorated: decorated


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in FRAMEWORKS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        """Nothing is in it: names are made when they are asked for."""


def install():
    """Have every import of a framework find its stand-in."""
    sys.meta_path.insert(0, _Finder())

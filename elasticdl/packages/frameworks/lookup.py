"""Holds the function that gives an embedding layer its rows; a backend sets it while it traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import NoReturn, TypeAlias

from elasticdl.errors import ModelError

Shape: TypeAlias = tuple[int | None, ...]
"""The shape of a tensor; None in place of a size that depends on the minibatch."""

Lookup = Callable[[object, object], object]
"""`lookup(layer, ids) -> rows`: `ids` an int64 tensor of any shape, rows `ids.shape + (dim,)`."""

Count = Callable[[object, object], None]
"""`count(records, weights)` is called before the lookup of statistics.

`records` has the record of each id; None: it is the first axis of the ids. `weights` has the weight
of each id; None: all are equal.
"""

_lookup: ContextVar[Lookup | None] = ContextVar("elasticdl_lookup", default=None)
_count: ContextVar[Count | None] = ContextVar("elasticdl_count", default=None)
_is_served: ContextVar[bool] = ContextVar("elasticdl_is_served", default=False)


def current_lookup() -> Lookup | None:
    """Return the lookup that is in force, or None in a plain Python session."""
    return _lookup.get()


def current_count() -> Count | None:
    """Return the function that is told the records of statistics; None if nothing is counted."""
    return _count.get()


@contextmanager
def counting(count: Count) -> Iterator[None]:
    """Make each layer with statistics, called within the block, tell `count` its records."""
    token = _count.set(count)
    try:
        yield
    finally:
        _count.reset(token)


def is_served() -> bool:
    """Return whether the model is called for serving; unread statistics are absent then."""
    return _is_served.get()


@contextmanager
def serving() -> Iterator[None]:
    """Keep layers within the block from looking up statistics that they do not return."""
    token = _is_served.set(True)
    try:
        yield
    finally:
        _is_served.reset(token)


@contextmanager
def looking_up(lookup: Lookup) -> Iterator[None]:
    """Make each distributed embedding layer, called within the block, take its rows from `lookup`.

    A model's layers are found by calling the model, wherever the model keeps them. So this is a
    context, and not an attribute that must be set on each layer.
    """
    token = _lookup.set(lookup)
    try:
        yield
    finally:
        _lookup.reset(token)


def building() -> AbstractContextManager[None]:
    """Return a context for the model function, which may call no distributed layer itself."""
    return looking_up(_no_rows_yet)


def _no_rows_yet(layer: object, ids: object) -> NoReturn:
    raise ModelError(
        f"the model function calls {type(layer).__name__} itself; its rows come when the model "
        "that it returns is called"
    )

"""Where an embedding layer's rows come from: a function that a backend sets while it traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

Shape: TypeAlias = tuple[int | None, ...]
"""The shape of a tensor; None where it depends on the minibatch."""

Lookup = Callable[[object, object], object]
"""`lookup(layer, ids) -> rows`: `ids` an int64 tensor of any shape, rows `ids.shape + (dim,)`."""

_lookup: ContextVar[Lookup | None] = ContextVar("elasticdl_lookup", default=None)


def current_lookup() -> Lookup | None:
    """Return the lookup that is in force, or None in a plain Python session."""
    return _lookup.get()


@contextmanager
def looking_up(lookup: Lookup) -> Iterator[None]:
    """Have every distributed embedding layer that is called meanwhile take its rows from `lookup`.

    The layers of a model are found by being called, wherever the model keeps them. That is why
    this is a context and not an attribute that somebody would have to set on each layer.
    """
    token = _lookup.set(lookup)
    try:
        yield
    finally:
        _lookup.reset(token)


_elsewhere: ContextVar[bool] = ContextVar("elasticdl_elsewhere", default=False)


def towers_are_elsewhere() -> bool:
    """Whether what towers give is looked up as rows are, and not computed here."""
    return _elsewhere.get()


@contextmanager
def towers_elsewhere(are_elsewhere: bool) -> Iterator[None]:
    """Have every `Remote` that is called meanwhile look its outputs up, or compute them here."""
    token = _elsewhere.set(are_elsewhere)
    try:
        yield
    finally:
        _elsewhere.reset(token)

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

Count = Callable[[object, object], None]
"""`count(records, weights)`: the record of each id of the lookup of statistics that comes next,
None where that is the first axis of the ids, and what each counts, None where all count alike."""

_lookup: ContextVar[Lookup | None] = ContextVar("elasticdl_lookup", default=None)
_count: ContextVar[Count | None] = ContextVar("elasticdl_count", default=None)
_is_served: ContextVar[bool] = ContextVar("elasticdl_is_served", default=False)


def current_lookup() -> Lookup | None:
    """Return the lookup that is in force, or None in a plain Python session."""
    return _lookup.get()


def current_count() -> Count | None:
    """Return what is told which records statistics are of, or None where nothing is counted."""
    return _count.get()


@contextmanager
def counting(count: Count) -> Iterator[None]:
    """Have each layer that keeps statistics, called meanwhile, say which records they are of."""
    token = _count.set(count)
    try:
        yield
    finally:
        _count.reset(token)


def is_served() -> bool:
    """Say whether the model is called to serve: statistics that it does not read are not there."""
    return _is_served.get()


@contextmanager
def serving() -> Iterator[None]:
    """Have no layer look up statistics that it does not return."""
    token = _is_served.set(True)
    try:
        yield
    finally:
        _is_served.reset(token)


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

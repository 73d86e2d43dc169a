"""Towers: parts of a model that may be computed outside of its step, as frameworks offer them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, runtime_checkable

from elasticdl.backends.base import Float32, Int64

_elsewhere: ContextVar[bool] = ContextVar("elasticdl_elsewhere", default=False)


def towers_are_elsewhere() -> bool:
    """Return whether the outputs of towers are looked up as rows are, and not computed here."""
    return _elsewhere.get()


@contextmanager
def towers_elsewhere(are_elsewhere: bool) -> Iterator[None]:
    """Make each `Remote`, called within the block, look its outputs up, or compute them here."""
    token = _elsewhere.set(are_elsewhere)
    try:
        yield
    finally:
        _elsewhere.reset(token)


class Tower(Protocol):
    """A part of a model that turns ids into vectors, each id for itself.

    Methods may be called from one thread only.

    Attributes:
        name: The name of the layer.
        dim: The width of its output.
        dense: The places of its variables in the flat dense vector of the model, in their order.
        tables: The table of each of its id sites.
    """

    name: str
    dim: int
    dense: Sequence[slice]
    tables: Sequence[int]

    def ids(self, ids: Int64) -> Sequence[Int64]:
        """Return the ids that each of its sites looks up for ids of shape (n,)."""
        ...

    def forward(
        self, ids: Int64, rows: Sequence[Float32], dense: Float32, training: bool
    ) -> Float32:
        """Return the output, shape (n, dim).

        Args:
            ids: Shape (n,).
            rows: The rows of each site, in the order of its ids.
            dense: Its own variables, one after the other.
            training: Whether it is trained.
        """
        ...

    def backward(
        self, ids: Int64, gradients: Float32, rows: Sequence[Float32], dense: Float32
    ) -> tuple[Sequence[Float32], Float32]:
        """Return the gradient of the rows of each site and of its own variables.

        Args:
            ids: Shape (n,).
            gradients: The gradient of the output for these ids, shape (n, dim).
            rows: The same as in `forward`.
            dense: The same.
        """
        ...


@runtime_checkable
class HasTowers(Protocol):
    """A trainer of a model whose towers may be computed elsewhere, once it is built."""

    def towers(self) -> Sequence[Tower]:
        """Return the towers of the model.

        Raises:
            ModelError: A tower cannot be computed elsewhere.
        """
        ...

    def place_towers(self) -> None:
        """Look up what towers give from now on, as rows are.

        `id_sites` then has sites whose number is beyond the tables: number `len(tables) + k` is
        tower k.

        Raises:
            ModelError: The rest of the model needs what is inside of a tower.
        """
        ...

"""The parameters and results of a step, which the loop and the exchange pass to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from elasticdl._core import Pulled
from elasticdl.backends.base import Float32, Int64, StepResult
from elasticdl.job import Lease
from elasticdl.worker.row_source import ComputedRows, Site

_NONE = np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True)
class OwnParameters:
    """The worker's own parameters in all-reduce; `lineage` and `version` identify them."""

    dense: Float32
    state: Float32
    version: int
    lineage: int


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters that one pull brought: a step computes on them.

    of_stores: The rows, and the dense parameters unless there is a ring.
    of_ring: The dense parameters, if there is a ring.
    sites: The (table, ids) of each id site.
    computed: The rows that are in no store.

    A saved model brings its own parameters, so both are None.
    """

    of_stores: Pulled | None = None
    of_ring: OwnParameters | None = None
    sites: Sequence[Site] = ()
    computed: Sequence[ComputedRows] = ()

    @property
    def stored(self) -> Pulled:
        """What the stores gave for a step that is pushed to them."""
        assert self.of_stores is not None, "it was pulled from no store"
        return self.of_stores

    @property
    def own(self) -> OwnParameters:
        """What the worker has itself of a step that is pushed around a ring."""
        assert self.of_ring is not None, "it was taken from no ring"
        return self.of_ring

    @property
    def rows(self) -> list[Float32]:
        """The rows of each id site, shape `ids.shape + (dim,)`."""
        stored = [] if self.of_stores is None else self.of_stores.rows
        if not self.computed:
            return stored
        found = {at: rows for each in self.computed for at, rows in each.rows.items()}
        left = iter(stored)
        return [found[at] if at in found else next(left) for at in range(len(self.sites))]

    @property
    def dense(self) -> Float32:
        """The flat vector of the dense parameters."""
        holder = self.of_ring or self.of_stores
        return _NONE if holder is None else holder.dense

    @property
    def state(self) -> Float32:
        """The flat vector of the state."""
        holder = self.of_ring or self.of_stores
        return _NONE if holder is None else holder.state

    @property
    def version(self) -> int:
        """The version of the dense parameters."""
        holder = self.of_ring or self.of_stores
        return 0 if holder is None else holder.version


@dataclass(frozen=True, slots=True)
class Step:
    """One minibatch of one lease."""

    lease: Lease
    index: int


@dataclass(slots=True)
class PendingPull:
    """The pull of a step that waits for the push before it.

    parameters: Set by that push if its answer brings them; else they must be pulled.
    """

    ids: Sequence[Int64]
    step: Step
    parameters: Parameters | None = None


@dataclass(frozen=True, slots=True)
class ComputedMinibatch:
    """A minibatch whose gradients are ready to be pushed, alone or with others."""

    given: Parameters
    result: StepResult
    num_records: int


@dataclass(frozen=True, slots=True)
class Committed:
    """An update that every holder of parameters has applied."""

    version: int
    staleness: int

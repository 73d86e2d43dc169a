"""The source of parameters and the target of gradients: stores, a ring, or both.

Rows are in stores, on ps replicas or in this process. Dense parameters are there too, or they go
around a ring: then each worker has them. So a job has a pair of which either may be absent:

    Local, ParameterServerStrategy   stores
    AllreduceStrategy                ring
    HybridStrategy                   stores for the rows, ring for all else
    a saved model                    neither, it brings its own

In a job with both, a minibatch has two halves, and each half is counted once: the stores count by
watermarks, the ring by marks. The dense half is pushed first (`push`). Its verdict says whether the
step must be computed again. So a row gradient is sent only for a step that counts (`Halves`).

A worker may be lost between the two halves. The ring then has minibatches that the stores lack. The
next lease of the task begins at the first minibatch that either of them lacks. A holder that has a
minibatch already drops it, and the other one applies it.

Neither half waits for the other. While a step is computed, the rows of the next steps are pulled
(`pull`) and the rows of earlier steps are pushed. The dense parameters of a step must be the
newest, so they are read when the step begins (`take_dense`).

Rows that are in no store come from sources of rows (`row_source.py`). A source computes them on the
dense parameters of the step, so it is asked when these are known. Before the push of a minibatch,
`completed` puts the gradients that a source gives in the place of those of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from elasticdl._core import PsClient
from elasticdl.backends.base import Int64, ModelDescription, StepResult
from elasticdl.errors import ModelError
from elasticdl.job import JointGeneration, Lease, Strategy
from elasticdl.worker.parameters import (
    Committed,
    ComputedMinibatch,
    Parameters,
    PendingPull,
    Step,
)
from elasticdl.worker.ring import Ring
from elasticdl.worker.row_source import RowSource, Site, SiteGradient
from elasticdl.worker.stores import StoreExchange

_NONE = np.zeros(0, np.float32)
_REACH_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Halves:
    """Both holders of a job whose minibatches have two halves, one for each of the pair."""

    stores: StoreExchange
    ring: Ring

    def push_rows(
        self,
        given: Parameters,
        result: StepResult,
        learning_rate: float,
        lease: Lease,
        index: int,
        num_records: int,
        pending: PendingPull | None = None,
    ) -> int:
        """Send the rows' half of a minibatch after an update has applied its dense half.

        A holder drops a half that it has already. So both halves are repeated together, by this
        worker or another, until both are applied.

        Returns:
            The staleness of the rows.

        Raises:
            StaleLeaseError: Another worker has the task.
            GapError: A ps replica has lost minibatches before this one.
        """
        rows = replace(result, dense_grad=_NONE, state_delta=_NONE)
        numbers = (learning_rate, lease, index, num_records)
        return self.stores.push(given.stored, rows, *numbers, pending).staleness


class Exchange:
    """The pair of stores and ring, as the loop of a worker uses it.

    A holder that is lost and comes back is waited for; see docs/designs/ps-recovery.md.
    """

    def __init__(
        self,
        stores: StoreExchange | None = None,
        ring: Ring | None = None,
        sources: Sequence[RowSource] = (),
    ) -> None:
        self.stores = stores
        self.ring = ring
        self._sources = sources
        self.halves = None if stores is None or ring is None else Halves(stores, ring)

    @property
    def has_halves(self) -> bool:
        """Whether a minibatch has two halves, one for each of the pair."""
        return self.halves is not None

    @property
    def _stores(self) -> StoreExchange:
        """The stores, for what is asked only in jobs that have some."""
        assert self.stores is not None, "a saved model is not trained"
        return self.stores

    @property
    def may_pull_with_push(self) -> bool:
        """Whether a push can bring all rows of the next step."""
        return not self._sources

    @property
    def generation(self) -> int:
        """The number of losses that were repaired.

        If it is equal before and after reads, no holder was replaced between them.
        """
        of_stores = 0 if self.stores is None else self.stores.route.generation
        if of_stores < 0:
            return of_stores  # on the way to another route
        of_ring = 0 if self.ring is None else self.ring.member.generation
        return JointGeneration(of_ring, of_stores).number

    def reach(self, generation: int) -> None:
        """Wait until both have this generation; the heartbeat learns of it within a few beats."""
        wanted = JointGeneration.of(generation)
        if self.stores is not None:
            self.stores.route.reach(wanted.of_ps, _REACH_SECONDS)
        if self.ring is not None:
            self.ring.reach(wanted.of_worlds)

    def declare(self, model: ModelDescription) -> None:
        """Agree with the other workers on the model; the first one's initial values count.

        Raises:
            ModelError: The model does not fit the strategy.
            ModelMismatchError: Another worker, or the checkpoint, has a different model.
        """
        if self.stores is None and any(table.statistics for table in model.tables):
            raise ModelError(
                f"the model keeps statistics of ids (statistics=RowStatistics(...)), and with "
                f"--distribution_strategy={Strategy.ALLREDUCE} every worker has the tables: "
                f"expected --distribution_strategy={Strategy.PARAMETER_SERVER} or "
                f"{Strategy.HYBRID}"
            )
        of_stores, of_ring = model, model
        if self.has_halves:
            _check_halves(model)
            of_stores, of_ring = half_of_stores(model), replace(model, tables=())
        for source in self._sources:
            source.declare(of_stores)
        if self.stores is not None:
            self.stores.declare(of_stores)
        if self.ring is not None:
            self.ring.declare(of_ring)

    # --- a task ----------------------------------------------------------------------------------

    def start_index(self, lease: Lease) -> int:
        """Fence off older leases of the task; return the minibatch at which to go on.

        Raises:
            StaleLeaseError: A newer lease of the task has begun.
        """
        # The stores are asked first: once the ring knows of the lease, other workers wait for this
        # one.
        parts = [part for part in (self.stores, self.ring) if part is not None]
        return min(part.start_index(lease) for part in parts)

    def ends_at(self, lease: Lease, end: int) -> None:
        """Say how many minibatches a task has, before the last one is pushed or skipped.

        Called in deterministic jobs alone.
        """
        if self.ring is not None:
            self.ring.ends_at(lease, end)

    def settle_task(self, lease: Lease) -> None:
        """Have every store hear of all minibatches of a lease, before it is reported as done.

        Raises:
            StaleLeaseError: Another worker has the task.
            GapError: A store has lost minibatches of the task.
        """
        if self.stores is not None:
            self.stores.settle_task(lease)

    def end_task(self, lease: Lease) -> None:
        """Drop what a lease pulled and did not push; others stop waiting for the lease."""
        if self.ring is not None:
            self.ring.end_task(lease)
        if self.stores is not None:
            self.stores.end_task(lease)

    def when_settled(self, lease: Lease, end: int, tell: Callable[[bool], None]) -> None:
        """Call a function once all that was pushed so far cannot be lost with this worker alone.

        The calls keep their order, and may come from another thread. The function is told whether
        the first `end` minibatches of the task are applied. A store applies a push at once.
        """
        if self.ring is None:
            tell(True)
        else:
            self.ring.when_settled(lease, end, tell)

    def settle(self) -> None:
        """Return when all functions given to `when_settled` have been called."""
        if self.ring is not None:
            self.ring.member.settle()

    def out_of_work(self, is_out_of_work: bool) -> None:
        """Say whether the master has no task for this worker just now; after each answer of it."""
        if self.ring is not None:
            self.ring.member.out_of_work(is_out_of_work)

    def rest(self) -> None:
        """Push only what is computed already: no other worker need wait for this one."""
        if self.ring is not None:
            self.ring.member.rest()

    # --- a minibatch -----------------------------------------------------------------------------

    def pull(self, ids: Sequence[Int64], step: Step | None = None) -> Parameters:
        """Fetch parameters for a minibatch, given the ids of each site.

        For a training step with two halves only the rows are fetched; `take_dense` adds the rest.

        Args:
            ids: The ids of each site, of any shape.
            step: The training step that will push a gradient for these ids, or call `end_task`.
        """
        given = Parameters()
        if self.stores is not None:
            given = Parameters(self.stores.pull(ids, step), sites=self.stores.sites(ids))
        if self.has_halves and step is not None:
            return given
        return self._with_rest(given, step is not None, step)

    def pull_several(self, ids: Sequence[Sequence[Int64]], first: Step) -> list[Parameters]:
        """Fetch parameters for training steps that follow each other, given the ids of each."""
        stores = self._stores
        pulled = zip(stores.pull_several(ids, first), ids, strict=True)
        given = [Parameters(each, sites=stores.sites(own)) for each, own in pulled]
        return [self._with_rest(each, True) for each in given]

    def take_dense(self, given: Parameters, step: Step) -> Parameters:
        """Return the rows of a training step with the newest dense parameters."""
        return self._with_rest(given, True, step)

    def look_up(self, sites: Sequence[Site], training: bool) -> Parameters:
        """Fetch the rows for (table, ids) of each site, and all else."""
        given = Parameters()
        if self.stores is not None:
            given = Parameters(self.stores.look_up(sites, training), sites=sites)
        return self._with_rest(given, training)

    def _with_rest(self, given: Parameters, training: bool, step: Step | None = None) -> Parameters:
        """Add to the rows of stores the parameters of this worker, then the rows of sources.

        Later parts are as new or newer, so the staleness is at most the one of the stores.
        """
        if self.ring is not None:
            given = replace(given, of_ring=self.ring.pull(step))
        dense = None if given.of_ring is None else given.of_ring.dense
        computed = [source.compute(given.sites, training, dense) for source in self._sources]
        return replace(given, computed=computed)

    def completed(self, minibatch: ComputedMinibatch) -> ComputedMinibatch:
        """Return a minibatch as it is pushed: without gradients of rows that are in no store.

        Instead of these it has the gradients of the parameters from which the rows were computed.

        Raises:
            NonFiniteLossError: Such a gradient is not finite.
        """
        given, result = minibatch.given, minibatch.result
        if not given.computed:
            return minibatch
        dense, within, left = result.dense_grad, list[SiteGradient](), dict(enumerate(given.sites))
        for each in given.computed:
            dense, found = each.gradients(replace(result, dense_grad=dense))
            within += found
            left = {at: site for at, site in left.items() if at not in each.rows}
        row_grads = [result.row_grads[at] for at in left] + [each.gradient for each in within]
        if within:
            sites = [*left.values(), *((each.table, each.ids) for each in within)]
            given = replace(given, of_stores=self._stores.with_sites(given.stored, sites))
        result = replace(result, row_grads=row_grads, dense_grad=dense)
        return replace(minibatch, given=given, result=result)

    def push(
        self,
        given: Parameters,
        result: StepResult,
        learning_rate: float,
        lease: Lease,
        index: int,
        num_records: int,
        pending: PendingPull | None = None,
    ) -> Committed:
        """Hand in the gradients of one minibatch, exactly once; of two halves the dense one.

        A pending pull may be sent with the push; that saves a round trip.

        Raises:
            StaleLeaseError: Another worker has the task.
            GapError: A holder has lost minibatches before this one.
            StaleParametersError: The parameters are too old; nothing has changed.
        """
        numbers = (learning_rate, lease, index, num_records)
        if self.ring is not None:
            return Committed(self.ring.push(given.own, result, *numbers), 0)
        return self._stores.push(given.stored, result, *numbers, pending)

    def skip(self, lease: Lease, index: int) -> None:
        """Leave a minibatch out for good, of two halves the dense one; raises what `push` does."""
        holder = self.ring or self._stores
        holder.skip(lease, index)

    # --- all -------------------------------------------------------------------------------------

    @property
    def client(self) -> PsClient:
        """Return the client that reads whole tables, from the stores or from this worker."""
        holder = self.stores or self.ring
        assert holder is not None, "a saved model has its own parameters"
        return holder.client


def half_of_stores(model: ModelDescription) -> ModelDescription:
    """Return the part of a model that the stores hold when workers have the dense part."""
    return replace(model, dense=(), state=())


def _check_halves(model: ModelDescription) -> None:
    """Check that a model can be split.

    Each half is clipped alone: the rows by the gradient of a minibatch, the dense parameters by the
    mean gradient of an update.

    Raises:
        ModelError: It cannot.
    """
    strategy = f"--distribution_strategy={Strategy.HYBRID}"
    if not model.tables:
        raise ModelError(
            f"{strategy} keeps rows of elasticdl.layers.Embedding on ps replicas, and the "
            f"model has none: expected --distribution_strategy={Strategy.ALLREDUCE}"
        )
    if model.clip is not None and model.clip.kind == "global_norm":
        raise ModelError(
            "the optimizer clips by the norm of all gradients together (global_clipnorm, in "
            f"PyTorch clip_grad_norm), and with {strategy} nobody has them together: expected "
            "clipnorm or clipvalue (in PyTorch clip_grad_value), or "
            f"--distribution_strategy={Strategy.PARAMETER_SERVER}"
        )

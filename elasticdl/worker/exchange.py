"""Where parameters come from and where a gradient goes: stores, a ring, or both.

Rows are in stores, on ps replicas or in this process. Dense parameters are there too, or they go
around a ring: then each worker has them. So a job has a pair of which either may be absent:

    Local, ParameterServerStrategy   stores
    AllreduceStrategy                ring
    HybridStrategy                   stores for the rows, ring for all else
    a saved model                    neither, it brings its own

With both, a minibatch has two halves, each of which is counted once by those who hold it: the
stores by their watermarks, the ring by its marks. The dense half goes first (`push`). Its verdict
says whether the step must be computed again, so a row gradient is sent only of a step that counts
(`push_rows`). A worker that is lost in between leaves minibatches that only the ring has. The next
lease of the task begins where the one that has less of it stands: who has a minibatch already drops
it, who lacks it takes it.

Neither half waits for the other. So the rows of the next steps are pulled (`pull`), and those of
the steps before are pushed, while a step is computed. The dense parameters of a step are the
newest, so they are taken when it begins (`take_dense`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from elasticdl._core import PsClient, Pulled
from elasticdl.backends.base import Int64, ModelDescription, StepResult
from elasticdl.errors import ModelError
from elasticdl.job import JointGeneration, Lease, Strategy
from elasticdl.worker.all_reduce import RingExchange
from elasticdl.worker.parameters import (
    Committed,
    ComputedMinibatch,
    Parameters,
    PendingPull,
    Step,
)
from elasticdl.worker.stores import StoreExchange

_NONE = np.zeros(0, np.float32)
_REACH_SECONDS = 60.0


class Exchange:
    """The pair, as the loop of a worker speaks to it.

    A holder that is lost and comes back is waited for; see docs/designs/ps-recovery.md.
    """

    def __init__(
        self, stores: StoreExchange | None = None, ring: RingExchange | None = None
    ) -> None:
        self.stores = stores
        self.ring = ring

    @property
    def has_halves(self) -> bool:
        """Whether a minibatch has two halves, one for each of the pair."""
        return self.stores is not None and self.ring is not None

    @property
    def generation(self) -> int:
        """Which losses were made good; the same before and after reads: none met a successor."""
        of_stores = 0 if self.stores is None else self.stores.route.generation
        if of_stores < 0:
            return of_stores  # on the way to another route
        of_ring = 0 if self.ring is None else self.ring.member.generation
        return JointGeneration(of_ring, of_stores).number

    def reach(self, generation: int) -> None:
        """Wait until both are of this generation; the heartbeat learns of it within a few beats."""
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
        # The stores first: other workers wait for this one once the ring knows of the lease.
        parts = [part for part in (self.stores, self.ring) if part is not None]
        return min(part.start_index(lease) for part in parts)

    def ends_at(self, lease: Lease, end: int) -> None:
        """Say how many minibatches a task has, before the last one is pushed or skipped.

        Of deterministic jobs alone.
        """
        if self.ring is not None:
            self.ring.ends_at(lease, end)

    def end_task(self, lease: Lease) -> None:
        """Let go of what a lease pulled and never pushed; nobody waits for it any more."""
        if self.ring is not None:
            self.ring.end_task(lease)
        if self.stores is not None:
            self.stores.end_task(lease)

    def when_settled(self, lease: Lease, end: int, tell: Callable[[bool], None]) -> None:
        """Call a function once all that was pushed so far cannot be lost with this worker alone.

        In the order of the calls, perhaps from another thread. It is told whether the first `end`
        minibatches of the task are there. What is pushed to a store is there at once.
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
        """Nothing more will be pushed but what is computed: nobody need wait for this worker."""
        if self.ring is not None:
            self.ring.member.rest()

    # --- a minibatch -----------------------------------------------------------------------------

    def pull(self, ids: Sequence[Int64], step: Step | None = None) -> Parameters:
        """Fetch parameters for a minibatch, given the ids of each site.

        Of a training step with two halves the rows alone: `take_dense` adds the rest.

        Args:
            ids: For each id site, of any shape.
            step: The training step that will push a gradient of them, or call `end_task`.
        """
        of_stores = None if self.stores is None else self.stores.pull(ids, step)
        if self.ring is None or (self.has_halves and step is not None):
            return Parameters(of_stores)
        return self._with_ring(of_stores, self.ring, step)

    def take_dense(self, given: Parameters, step: Step) -> Parameters:
        """Return the rows of a training step with the newest dense parameters."""
        assert self.ring is not None
        return self._with_ring(given.of_stores, self.ring, step)

    def look_up(self, sites: Sequence[tuple[int, Int64]], training: bool) -> Parameters:
        """Fetch the rows for (table, ids) of each site, and all else."""
        of_stores = None if self.stores is None else self.stores.look_up(sites, training)
        return Parameters(of_stores) if self.ring is None else self._with_ring(of_stores, self.ring)

    def _with_ring(
        self, of_stores: Pulled | None, ring: RingExchange, step: Step | None = None
    ) -> Parameters:
        """Add what is with this worker, last, so that it is the newest."""
        of_ring = ring.pull(step)
        if self.stores is not None and of_stores is not None:
            of_stores = self.stores.with_dense(of_stores, of_ring.dense)
        return Parameters(of_stores, of_ring)

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

        What is pending may be pulled with it; that saves a round trip.

        Raises:
            StaleLeaseError: The task has been given to somebody else.
            GapError: A holder has lost minibatches before this one.
            StaleParametersError: The parameters are too old; nothing has changed.
        """
        numbers = (learning_rate, lease, index, num_records)
        if self.ring is not None:
            assert given.of_ring is not None
            if self.stores is not None and given.of_stores is not None:
                result = self.stores.completed(given.of_stores, result)
            return Committed(self.ring.push(given.of_ring, result, *numbers), 0)
        assert self.stores is not None, "a saved model is not trained"
        assert given.of_stores is not None
        return self.stores.push(given.of_stores, result, *numbers, pending)

    def push_several(
        self,
        minibatches: Sequence[ComputedMinibatch],
        learning_rate: float,
        lease: Lease,
        index: int,
    ) -> Committed:
        """Hand in the sum of the gradients of minibatches that follow each other, exactly once.

        Args:
            minibatches: One after the other.
            learning_rate: Of the update that they make.
            lease: Theirs.
            index: The number of the first one.

        Raises:
            StaleLeaseError: The task has been given to somebody else.
            GapError: A holder has lost minibatches before these.
        """
        assert self.stores is not None, "settings are refused that would have no stores here"
        return self.stores.push_several(minibatches, learning_rate, lease, index)

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
        """Send the rows' half of a minibatch once an update has its dense half.

        Each half is dropped by those who have it already. So both are repeated as a whole, by this
        worker or another, until both are there.

        Returns:
            The staleness of the rows.

        Raises:
            StaleLeaseError: The task has been given to somebody else.
            GapError: A ps replica has lost minibatches before this one.
        """
        assert self.stores is not None
        assert given.of_stores is not None
        rows = replace(result, dense_grad=_NONE, state_delta=_NONE)
        numbers = (learning_rate, lease, index, num_records)
        return self.stores.push(given.of_stores, rows, *numbers, pending).staleness

    def skip(self, lease: Lease, index: int) -> None:
        """Leave a minibatch out for good, of two halves the dense one; raises what `push` does."""
        holder = self.ring or self.stores
        assert holder is not None, "a saved model is not trained"
        holder.skip(lease, index)

    def skip_rows(self, lease: Lease, index: int) -> None:
        """Leave the rows' half of a minibatch out for good; raises what `push_rows` does."""
        assert self.stores is not None
        self.stores.skip(lease, index)

    # --- all -------------------------------------------------------------------------------------

    @property
    def client(self) -> PsClient:
        """What reads whole tables: of the stores, or of this worker's own parameters."""
        if self.stores is not None:
            return self.stores.client
        assert self.ring is not None, "a saved model has its own parameters"
        return self.ring.client


def half_of_stores(model: ModelDescription) -> ModelDescription:
    """Return what the stores have of a model whose workers have the dense parameters."""
    return replace(model, dense=(), state=())


def _check_halves(model: ModelDescription) -> None:
    """Check that a model can be split.

    Each half is clipped by itself: of the rows the gradient of a minibatch, of the dense parameters
    the mean one of an update.

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

"""`Exchange` of a hybrid job: rows are on ps replicas, dense parameters go around the ring.

A minibatch has two halves, each of which is counted once by those who hold it: the ps replicas by
their watermarks, the ring by its marks. The dense half goes first. Its verdict says whether the
step must be computed again, so a row gradient is sent only of a step that counts. A worker that is
lost in between leaves a minibatch that only the ring has. The next lease of the task begins where
the one that has less of it stands: who has a minibatch already drops it, who lacks it takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from elasticdl.backends.base import Float32, Int64, Minibatch, ModelDescription, StepResult
from elasticdl.config import CheckpointSection
from elasticdl.errors import ModelError
from elasticdl.job import JointGeneration, Lease, Strategy
from elasticdl.worker.all_reduce import OwnParameters, RingExchange
from elasticdl.worker.exchange import Committed, Parameters, PendingPull, Step, StoreExchange

_NONE = np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True)
class HybridParameters:
    """`Parameters` of both holders; the version is that of the dense ones."""

    of_rows: Parameters
    own: OwnParameters

    @property
    def rows(self) -> list[Float32]:
        """See `Parameters`."""
        return self.of_rows.rows

    @property
    def dense(self) -> Float32:
        """See `Parameters`."""
        return self.own.dense

    @property
    def state(self) -> Float32:
        """See `Parameters`."""
        return self.own.state

    @property
    def version(self) -> int:
        """See `Parameters`."""
        return self.own.version


class HybridExchange:
    """Rows by `StoreExchange`, all else by `RingExchange`."""

    def __init__(self, rows: StoreExchange, ring: RingExchange) -> None:
        self._rows = rows
        self._ring = ring

    @property
    def generation(self) -> int:
        """Which losses of ps replicas and of whole worlds have been made good."""
        if self._rows.generation < 0:
            return self._rows.generation  # on the way to another route
        return JointGeneration(self._ring.generation, self._rows.generation).number

    def reach(self, generation: int) -> None:
        """Wait until both holders are of this generation."""
        wanted = JointGeneration.of(generation)
        self._rows.reach(wanted.of_ps)
        self._ring.reach(wanted.of_worlds)

    def declare(self, model: ModelDescription) -> None:
        """Declare the tables to the ps replicas, and go to the rendezvous with the rest.

        Each half is clipped by itself: of the rows the gradient of a minibatch, of the dense
        parameters the mean one of an update.

        Raises:
            ModelError: The model does not fit the strategy.
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
        self._rows.declare(replace(model, dense=(), state=()))
        self._ring.declare(replace(model, tables=()))

    def start_index(self, lease: Lease) -> int:
        """Return where the holder stands that has less of the task."""
        of_rows = self._rows.start_index(lease)  # first: others wait for this worker after it
        return min(of_rows, self._ring.start_index(lease))

    def ends_at(self, lease: Lease, end: int) -> None:
        """Never called: hybrid jobs are not deterministic."""
        self._ring.ends_at(lease, end)

    def end_task(self, lease: Lease) -> None:
        """Neither other workers nor ps replicas wait because of this lease any more."""
        self._ring.end_task(lease)
        self._rows.end_task(lease)

    def when_settled(self, lease: Lease, end: int, tell: Callable[[bool], None]) -> None:
        """Call it when all ranks have made the same updates; the rows have been sent before."""
        self._ring.when_settled(lease, end, tell)

    def settle(self) -> None:
        """Wait for these calls."""
        self._ring.settle()

    def out_of_work(self, is_out_of_work: bool) -> None:
        """Say so to the ring."""
        self._ring.out_of_work(is_out_of_work)

    def rest(self) -> None:
        """Others go on without this worker, unless it has something in hand."""
        self._ring.rest()

    def pull(self, ids: Sequence[Int64], step: Step | None = None) -> Parameters:
        """Fetch rows, and then what is here, so that the dense parameters are the newest."""
        of_rows = self._rows.pull(ids, step)
        return HybridParameters(of_rows, self._ring.pull([], step))

    def name(self, minibatch: Minibatch, ids: Sequence[Int64]) -> None:
        """Send the ps replicas the strings that they do not have yet."""
        self._rows.name(minibatch, ids)

    def push(
        self,
        pulled: Parameters,
        result: StepResult,
        learning_rate: float,
        lease: Lease,
        index: int,
        num_records: int,
        pending: PendingPull | None = None,
    ) -> Committed:
        """Hand in the dense gradient; once an update has it, send the rows'.

        Each half is dropped by those who have it already. So both are repeated as a whole, by this
        worker or another, until both are there.
        """
        assert isinstance(pulled, HybridParameters)
        numbers = (learning_rate, lease, index, num_records)
        update = self._ring.push(pulled.own, result, *numbers)
        of_rows = replace(result, dense_grad=_NONE, state_delta=_NONE)
        # What comes next is pulled by itself: its dense half must be newer than this update.
        rows = self._rows.push(pulled.of_rows, of_rows, *numbers)
        return Committed(update.version, rows.staleness)

    def skip(self, lease: Lease, index: int) -> None:
        """Leave a minibatch out for good, in both holders."""
        self._ring.skip(lease, index)
        self._rows.skip(lease, index)

    def look_up(self, sites: Sequence[tuple[int, Int64]], training: bool) -> Parameters:
        """Fetch rows, and what is here."""
        of_rows = self._rows.look_up(sites, training)
        return HybridParameters(of_rows, self._ring.pull([]))

    def scan(self, table: int) -> Iterator[tuple[Int64, Float32]]:
        """Read the rows of every ps replica."""
        return self._rows.scan(table)

    def expire(self) -> None:
        """Ask every ps replica."""
        self._rows.expire()

    def export_tables(self, directory: Path, settings: CheckpointSection, attempt: int) -> None:
        """Have every ps replica write its part."""
        self._rows.export_tables(directory, settings, attempt)

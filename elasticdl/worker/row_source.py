"""Sources of rows beside the stores: rows that somebody computes when they are looked up.

`Trainer.id_sites` may name numbers beyond the model's tables. A `RowSource` has the rows of these
sites. The exchange asks it after it has pulled the rows of the stores. Before a push, it asks for
the gradients of what the rows were computed from. These go with the other gradients of the
minibatch, so that a minibatch is counted once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from elasticdl import registry
from elasticdl.backends.base import Float32, Int64, ModelDescription, StepResult, Trainer
from elasticdl.rpc.client import GrpcMasterClient
from elasticdl.runtime.process import ProcessArguments

Site = tuple[int, Int64]
"""The number of a table or of what a source computes, and ids of any shape."""


@dataclass(frozen=True, slots=True)
class SiteGradient:
    """The gradient of the rows of some ids of a table, shape `ids.shape + (dim,)`."""

    table: int
    ids: Int64
    gradient: Float32


class ComputedRows(Protocol):
    """The rows that a source has computed for a minibatch."""

    @property
    def rows(self) -> Mapping[int, Float32]:
        """The rows of each of its sites, by place among all sites, shape `ids.shape + (dim,)`."""
        ...

    def gradients(self, result: StepResult) -> tuple[Float32, Sequence[SiteGradient]]:
        """Return the gradients of what the rows were computed from.

        Args:
            result: The gradients of the step, those of these rows among them.

        Returns:
            The dense gradient of the step with that of the rows added, and gradients of rows in
            stores.

        Raises:
            NonFiniteLossError: A gradient is not finite.
        """
        ...


class RowSource(Protocol):
    """Computes rows of sites that no table has."""

    def declare(self, model: ModelDescription) -> None:
        """Get to know the model, whose tables come before the numbers of this source.

        Raises:
            ModelError: The source does not go with the model.
        """
        ...

    def compute(self, sites: Sequence[Site], training: bool, dense: Float32 | None) -> ComputedRows:
        """Return the rows of those sites that are of this source.

        Args:
            sites: All sites of a minibatch.
            training: Whether rows that are missing in stores are created.
            dense: The dense parameters, if this worker has them; None if the stores have them.
        """
        ...


MakeSources = Callable[[Trainer, ProcessArguments, GrpcMasterClient], list[RowSource]]
"""Returns the sources of a worker. Called with the built model, the arguments of the worker's
process, and its client of the master.
"""


def sources_of(
    trainer: Trainer, arguments: ProcessArguments, master: GrpcMasterClient
) -> list[RowSource]:
    """Return the sources of rows that packages bring for a job.

    Raises:
        ModelError: The model does not go with a source.
    """
    makers: dict[str, MakeSources] = registry.brought("row_sources")
    return [source for make in makers.values() for source in make(trainer, arguments, master)]

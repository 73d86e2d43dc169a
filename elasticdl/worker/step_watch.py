"""Watches of the steps of training, which packages bring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from elasticdl import registry
from elasticdl.backends.base import ModelDescription
from elasticdl.config import JobConfig
from elasticdl.worker.parameters import Committed
from elasticdl.worker.running import Item


class StepWatch(Protocol):
    """Called with each step that was handed in."""

    def handed_in(self, item: Item, done: Committed) -> None:
        """Note that a step of training was applied to the parameters."""
        ...

    def close(self) -> None:
        """Note that no more steps come."""
        ...


MakeWatches = Callable[[JobConfig, int, ModelDescription, Sequence[int]], list[StepWatch]]
"""Returns the watches of a worker. Called with the job, the worker's id, the model and the table of
each id site, by its number in the model."""


def watches_of(
    config: JobConfig, worker_id: int, model: ModelDescription, id_sites: Sequence[int]
) -> list[StepWatch]:
    """Return the watches of a worker that packages bring.

    Args:
        config: The settings of the job.
        worker_id: The worker.
        model: The model that it trains.
        id_sites: The table of each id site, by its number in `model`.

    Raises:
        ElasticdlError: The settings of a watch do not fit the model.
    """
    makers: dict[str, MakeWatches] = registry.brought("step_watches")
    return [watch for make in makers.values() for watch in make(config, worker_id, model, id_sites)]

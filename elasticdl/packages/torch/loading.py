"""A `DataLoader` of a script, whose processes make examples of the records of a task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from elasticdl.errors import DataError, ElasticdlError, ModelError, place_of

Batch = list[Any]


class TaskBatches(Sampler):  # type: ignore[misc]  # torch has no types here
    """A `batch_sampler`: the minibatches of one task, as lists of records."""

    def __init__(self) -> None:
        self.of_task: Sequence[Batch] = ()

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.of_task)

    def __len__(self) -> int:
        return len(self.of_task)

    def loaded_by(self, loader: object, seed: int) -> Loading:
        """See `LoaderBatches`."""
        loading = Loading(loader, self, seed)
        loading.start()  # in this thread: its processes are begun before others have locks
        return loading


def _sampler_of(loader: DataLoader) -> object:
    """Return what gives the minibatches of a loader: with batch_size=None its sampler does."""
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


class Loading:
    """Has a loader go through one task after the other; its processes stay."""

    def __init__(self, loader: object, batches: TaskBatches, seed: int) -> None:
        """Check a loader.

        Args:
            loader: Made by the script.
            batches: The data set that it must be made on.
            seed: The seed of what the loader draws for its processes.

        Raises:
            ModelError: The loader would give something else, or begin processes for each task.
        """
        if not isinstance(loader, DataLoader) or _sampler_of(loader) is not batches:
            found = type(loader).__name__
            raise ModelError(
                "minibatches(loader): expected a torch.utils.data.DataLoader(dataset, "
                "batch_sampler=controller.batches(), ...), found "
                f"{'one on another sampler' if isinstance(loader, DataLoader) else found}"
            )
        if not loader.in_order:
            raise ModelError(
                "minibatches(loader): the job counts the minibatches in their order; leave out "
                "in_order=False"
            )
        if loader.num_workers and not loader.persistent_workers:
            raise ModelError(
                "minibatches(loader): the loader goes through one task after the other; say "
                "persistent_workers=True, or it would begin new processes for each"
            )
        if loader.generator is None:  # it would draw from the random numbers of the script's steps
            loader.generator = torch.Generator().manual_seed(seed)
        self._loader, self._batches = loader, batches

    def start(self) -> None:
        """Have its processes begin."""
        for _ in self.loaded([]):
            raise AssertionError("there is no minibatch")

    def loaded(self, cut: Sequence[Batch]) -> Iterator[object]:
        """Yield what the loader makes of each minibatch of a task, in their order.

        Raises:
            DataError: The dataset raised, or a process of the loader is gone.
        """
        self._batches.of_task = cut
        try:
            # The loader asks its batch sampler anew for each pass, so the task's minibatches are
            # set before.
            yield from self._loader
        except ElasticdlError:
            raise
        except Exception as error:
            raise DataError(
                f"the DataLoader that minibatches() was given raised {type(error).__name__}: "
                f"{' '.join(str(error).split())[-1000:]} ({place_of(error)})"
            ) from error

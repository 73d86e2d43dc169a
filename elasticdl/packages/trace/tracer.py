"""A trace: the records of chosen minibatches, with the values that they were trained on.

The thread that hands in a step only copies the chosen values of a few records. A thread of the
files (`files`) does the rest, and nothing waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elasticdl.backends.average import as_numbers
from elasticdl.backends.base import Int64, ModelDescription, StepResult
from elasticdl.config import JobConfig
from elasticdl.data.strings import Array
from elasticdl.errors import ModelError
from elasticdl.packages.trace.files import TraceFiles
from elasticdl.packages.trace.settings import TraceChoice, TraceSection
from elasticdl.worker.parameters import Committed
from elasticdl.worker.running import Item
from elasticdl.worker.step_watch import StepWatch

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TracedStep:
    """The traced values of one minibatch.

    numbers: Numbers of the whole minibatch, by the name of a column.
    by_record: Arrays whose first axis is the record, for the records that are written.
    whole: Arrays that belong to no record; they are written with the first one.
    """

    num_records: int
    numbers: Mapping[str, float]
    by_record: Mapping[str, Array]
    whole: Mapping[str, Array]

    @property
    def num_bytes(self) -> int:
        """The bytes of its arrays."""
        arrays = (*self.by_record.values(), *self.whole.values())
        return sum(array.nbytes for array in arrays)


class Tracer:
    """Traces the chosen steps of a worker; it is a `StepWatch`."""

    def __init__(
        self,
        choice: TraceChoice,
        sites: Sequence[str],
        minibatches_per_task: int,
        files: TraceFiles,
    ) -> None:
        """Prepare a trace.

        Args:
            choice: The steps, records and tensors to trace.
            sites: The table of each id site.
            minibatches_per_task: The largest number; it gives each minibatch of the data a number
                of its own.
            files: Writes the trace.
        """
        self._choice = choice
        self._sites = tuple(_numbered(sites))
        self._of_table = tuple(sites)
        self._minibatches_per_task = minibatches_per_task
        self._files = files
        self._has_failed = False

    @classmethod
    def of(
        cls,
        choice: TraceChoice,
        model: ModelDescription,
        id_sites: Sequence[int],
        minibatches_per_task: int,
        folder: Path,
        worker_id: int,
    ) -> Tracer:
        """Return the trace of a worker.

        Raises:
            ModelError: The model has no such table.
        """
        tables = [table.name for table in model.tables]
        for name in choice.tables:
            if name not in tables:
                raise ModelError(
                    f"--trace: tables={name}: the model has no such table; expected some of "
                    f"{', '.join(tables) or 'none, for it has no tables'}"
                )
        files = TraceFiles(folder, worker_id, choice.megabytes << 20, choice.seconds)
        return cls(choice, [tables[site] for site in id_sites], minibatches_per_task, files)

    def handed_in(self, item: Item, done: Committed) -> None:
        """Copy the traced values of a step, if the step is chosen."""
        number = item.running.lease.task.id * self._minibatches_per_task + item.index
        if number % self._choice.every:
            return
        try:
            self._files.put(self._traced(item, done))
        except Exception as error:  # a trace never fails the training
            if not self._has_failed:
                log.warning("a minibatch cannot be traced: %s: %s", type(error).__name__, error)
            self._has_failed = True
            self._files.drop()

    def close(self) -> None:
        """Write the steps that wait, and end the file."""
        self._files.close()

    def _traced(self, item: Item, done: Committed) -> TracedStep:
        minibatch, given, result = item.minibatch, item.parameters, item.result
        assert minibatch is not None
        assert given is not None
        assert result is not None
        task, most = item.running.lease.task, self._choice.records
        numbers = {
            "epoch": task.epoch,
            "task": task.id,
            "lease": item.running.lease.number,
            "minibatch": item.index,
            "version": given.version,
            "staleness": done.staleness,
            "learning_rate": item.learning_rate,
            "loss": result.loss,
        }
        num_records = min(minibatch.num_records, most or minibatch.num_records)
        by_record: dict[str, Array] = {}
        whole: dict[str, Array] = {}
        for name, array in self._arrays(item.ids, given.rows, minibatch.labels, result):
            # Another thread writes these arrays later. A view would keep the whole minibatch in
            # memory.
            if array.ndim and len(array) == minibatch.num_records:
                by_record[name] = array[:num_records].copy()
            else:
                whole[name] = array.copy()
        for name, array in (("dense", given.dense), ("dense_gradients", result.dense_grad)):
            if name in self._choice.tensors:
                whole[name] = array.copy()
        return TracedStep(num_records, numbers, by_record, whole)

    def _arrays(
        self, ids: Sequence[Int64], rows: Sequence[Array], labels: object, result: StepResult
    ) -> Iterator[tuple[str, Array]]:
        of_sites = {"ids": ids, "rows": rows, "gradients": result.row_grads}
        for tensor in self._choice.tensors:
            sites = zip(self._sites, self._of_table, of_sites.get(tensor, ()), strict=False)
            for site, table, array in sites:
                if not self._choice.tables or table in self._choice.tables:
                    yield f"{tensor}_{site}", array
        if "predictions" in self._choice.tensors:
            yield from _leaves("predictions", result.predictions)
        if "labels" in self._choice.tensors:
            yield from _leaves("labels", labels)


def _numbered(sites: Sequence[str]) -> Iterator[str]:
    """Yield a name for each site: the name of its table, with a number from the second site on."""
    for at, name in enumerate(sites):
        before = sites[:at].count(name)
        yield f"{name}_{before}" if before else name


def _leaves(name: str, structure: Any) -> Iterator[tuple[str, Array]]:
    """Yield the numeric arrays of a structure, with their names."""
    if isinstance(structure, Mapping):
        for key, value in structure.items():
            yield from _leaves(f"{name}_{key}", value)
    elif isinstance(structure, tuple | list) and len(structure) == 1:
        yield from _leaves(name, structure[0])
    elif isinstance(structure, tuple | list):
        for at, value in enumerate(structure):
            yield from _leaves(f"{name}_{at}", value)
    elif structure is not None:
        if hasattr(structure, "detach"):
            structure = structure.detach().cpu()
        array = as_numbers(structure)
        if array.dtype.kind in "biuf":
            yield name, array


def watches_of(
    config: JobConfig, worker_id: int, model: ModelDescription, id_sites: Sequence[int]
) -> list[StepWatch]:
    """Return the trace of a worker, if the job wants one.

    Raises:
        ModelError: The model has no such table.
    """
    choice = TraceChoice.of(config.of(TraceSection).trace)
    if choice is None:
        return []
    folder = _folder(config)
    per_task = config.training.most_minibatches_per_task
    return [Tracer.of(choice, model, id_sites, per_task, folder, worker_id)]


def _folder(config: JobConfig) -> Path:
    folder, job_dir = config.of(TraceSection).trace_dir, config.cluster.job_dir
    if folder is None:
        assert job_dir is not None, "a job that is under way has a folder"
        return job_dir / "trace"
    return folder

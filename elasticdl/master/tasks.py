"""Every task that a job can have. Tasks are numbered, not stored: a number says all about one."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from elasticdl import registry
from elasticdl.config import JobConfig
from elasticdl.data.sources import stream_at
from elasticdl.errors import JobFailedError
from elasticdl.job import Moment, MomentKind, Shard, Strategy, Task, TaskKind

_NO_SHARD = Shard("", 0, 0)
_MOST_TURNS = 65_536
_TASKS_OF_AN_EPOCH = 20_000  # twenty for each of a thousand workers


class TaskTable:
    """Shards cut into pieces of at most `records_per_task` records, numbered from 0.

    Pieces of one shard follow each other and begin at its start, so that every piece but the last
    of a shard is a whole number of minibatches.

    first: The first piece that is not forgotten; all pieces of files are kept.
    """

    first = 0

    def __init__(self, shards: Iterable[Shard], records_per_task: int) -> None:
        self.shards = tuple(shards)
        self._records_per_task = records_per_task
        counts = (-(-shard.num_records // records_per_task) for shard in self.shards)
        # Number of the first piece of each shard, and at the end the number of pieces.
        self._first = [0, *accumulate(counts)]
        self.num_records = sum(shard.num_records for shard in self.shards)
        # Only of those pieces, the last of a shard, that are not full.
        self._short = {
            last - 1: shard.num_records % records_per_task
            for shard, last in zip(self.shards, self._first[1:], strict=True)
            if shard.num_records % records_per_task
        }

        self._short_numbers = np.fromiter(self._short.keys(), np.int64, len(self._short))
        self._short_records = np.fromiter(self._short.values(), np.int64, len(self._short))
        missing = np.cumsum(records_per_task - self._short_records)
        self._missing_before = np.concatenate([np.zeros(1, np.int64), missing])

    @property
    def num_numbers(self) -> int:
        """How many numbers pieces may have, now or later."""
        return len(self)

    def __len__(self) -> int:
        return self._first[-1]

    def piece(self, number: int) -> Shard:
        """Return the records of a piece."""
        # Empty shards share a first number with their successor; the last of equals has pieces.
        at = bisect_right(self._first, number) - 1
        shard = self.shards[at]
        start = shard.start + (number - self._first[at]) * self._records_per_task
        return Shard(shard.name, start, min(start + self._records_per_task, shard.end))

    def num_records_of(self, number: int) -> int:
        """Return how many records a piece has."""
        return self._short.get(number, self._records_per_task)

    def records_of_all(self) -> NDArray[np.int64]:
        """Return how many records each piece has, shape (number of pieces,)."""
        records = np.full(len(self), self._records_per_task, np.int64)
        records[self._short_numbers] = self._short_records
        return records

    def records_of_shards(self, chosen: NDArray[np.bool_]) -> list[int]:
        """Return how many records the chosen pieces of each shard have; `chosen` has all pieces."""
        sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.records_of_all() * chosen)])
        found: list[int] = np.diff(sums[self._first]).tolist()
        return found

    def records_before(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many records the pieces before each number have, all together."""
        at = np.searchsorted(self._short_numbers, numbers)
        before: NDArray[np.int64] = numbers * self._records_per_task - self._missing_before[at]
        return before


class GrowingTable(Protocol):
    """Pieces that are cut while the job runs, as records arrive; a package brings such a table.

    It is asked as a `TaskTable` is, of what was cut so far, and forgets pieces that are done for
    good.
    """

    first: int
    num_records: int
    keeps_order: bool
    """Whether no two pieces of a shard are trained side by side, nor a later one first."""

    def forget(self, first: int) -> None:
        """Forget the pieces before one."""
        ...

    @property
    def num_numbers(self) -> int:
        """How many numbers pieces may have, now or later."""
        ...

    def __len__(self) -> int: ...

    def piece(self, number: int) -> Shard:
        """Return the records of a piece."""
        ...

    def num_records_of(self, number: int) -> int:
        """Return how many records a piece has."""
        ...

    def records_of_all(self) -> NDArray[np.int64]:
        """Return how many records each piece has that is not forgotten."""
        ...

    def records_before(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many records the pieces before each number have, of those that are known."""
        ...


MakeTable = Callable[[JobConfig, Sequence[Shard]], GrowingTable | None]
"""Makes the table of a job whose tasks are cut while it runs, from where its data begins; returns
None for other jobs."""


class ChosenPieces:
    """Some pieces of a table, numbered from 0, for `--evaluation_minibatches`."""

    def __init__(self, table: TaskTable, count: int, seed: int) -> None:
        """Draw `count` pieces of the table, the same for equal seeds."""
        self._table = table
        self._numbers = sorted(random.Random(seed).sample(range(len(table)), count))
        self.num_records = sum(map(table.num_records_of, self._numbers))

    def __len__(self) -> int:
        return len(self._numbers)

    def piece(self, number: int) -> Shard:
        """Return the records of a piece."""
        return self._table.piece(self._numbers[number])


class JobTasks:
    """Every task that a job can have, by its id.

    The order of the ids is: training (epoch after epoch), one export, prediction, callbacks (at the
    begin of training, after each epoch, at the end), and then the evaluations. Each evaluation has
    its validation tasks, one task for the metrics and one for callbacks. A restarted master derives
    the same ids from the same shards.

    per_epoch, num_training: numbers of training tasks of an epoch, and of all epochs. A stream has
        one epoch without an end; `num_known` counts its tasks up to now.
    export_id: the one EXPORT task. prediction_ids: the PREDICTION tasks.
    callback_ids: the CALLBACKS tasks that belong to no evaluation.
    growth: how many times larger training tasks are than the settings say: see `growth_of`.
    """

    def __init__(
        self,
        training: TaskTable | GrowingTable,
        validation: TaskTable | ChosenPieces,
        prediction: TaskTable,
        num_epochs: int,
        growth: int = 1,
    ) -> None:
        self.growth = growth
        self.training = training
        self.validation = validation
        self.prediction = prediction
        self.num_epochs = num_epochs
        self.per_epoch = training.num_numbers
        self.num_training = self.per_epoch * num_epochs
        self.export_id = self.num_training
        self.prediction_ids = range(self.export_id + 1, self.export_id + 1 + len(prediction))
        first = self.prediction_ids.stop
        self.callback_ids = range(first, first + num_epochs + 2 if num_epochs else first)

    @property
    def growing(self) -> GrowingTable | None:
        """The training tasks, if they are cut while the job runs."""
        return None if isinstance(self.training, TaskTable) else self.training

    @property
    def num_known(self) -> int:
        """How many training tasks there are; only those of a stream grow in number."""
        return len(self.training) * self.num_epochs

    def evaluation_ids(self, evaluation_id: int) -> range:
        """Ids of the EVALUATION tasks of one evaluation; its METRICS task has the next id."""
        first = self.callback_ids.stop + evaluation_id * (len(self.validation) + 2)
        return range(first, first + len(self.validation))

    def metrics_id(self, evaluation_id: int) -> int:
        """Id of the METRICS task of an evaluation."""
        return self.evaluation_ids(evaluation_id).stop

    def callbacks_id(self, moment: Moment) -> int:
        """Id of the CALLBACKS task of a moment."""
        match moment.kind:
            case MomentKind.TRAIN_BEGIN:
                return self.callback_ids.start
            case MomentKind.EPOCH_END:
                return self.callback_ids.start + 1 + moment.number
            case MomentKind.TRAIN_END:
                return self.callback_ids.stop - 1
            case MomentKind.EVALUATION:
                return self.metrics_id(moment.number) + 1

    def epoch_ids(self, epoch: int) -> range:
        """Ids of the training tasks of one epoch, as many as there are, and are not forgotten."""
        start = epoch * self.per_epoch
        return range(start + self.training.first, start + len(self.training))

    def records_in(self, ranges: NDArray[np.int64]) -> int:
        """Return how many records ranges [first, stop) of training tasks have, shape (n, 2)."""
        epochs, numbers = np.divmod(ranges, self.per_epoch)
        before = epochs * self.training.num_records + self.training.records_before(numbers)
        return int((before[:, 1] - before[:, 0]).sum())

    def count_by_epoch(self, ranges: NDArray[np.int64]) -> tuple[int, list[int]]:
        """Count the training tasks of ascending ranges, shape (n, 2), by epoch; n > 0.

        Returns:
            The epoch of the first one, and how many there are in it and in each after it.
        """
        firsts, stops = ranges.T
        total = np.concatenate([np.zeros(1, np.int64), np.cumsum(stops - firsts)])
        first_epoch, last_epoch = firsts[0] // self.per_epoch, (stops[-1] - 1) // self.per_epoch
        edges = np.arange(first_epoch, last_epoch + 2) * self.per_epoch
        # The ranges are in order. So only the last range that begins before an edge may end
        # after it.
        begun = np.searchsorted(firsts, edges)
        beyond = np.where(begun > 0, np.maximum(stops[begun - 1] - edges, 0), 0)
        return int(first_epoch), np.diff(total[begun] - beyond).tolist()

    def task(self, task_id: int) -> Task:
        """Return the task of an id."""
        if task_id < self.num_training:
            epoch, number = divmod(task_id, self.per_epoch)
            return Task(task_id, TaskKind.TRAINING, self.training.piece(number), epoch)
        if task_id == self.export_id:
            return Task(task_id, TaskKind.EXPORT, _NO_SHARD)
        if task_id < self.prediction_ids.stop:
            piece = self.prediction.piece(task_id - self.prediction_ids.start)
            return Task(task_id, TaskKind.PREDICTION, piece)
        if task_id < self.callback_ids.stop:
            return Task(task_id, TaskKind.CALLBACKS, _NO_SHARD)
        evaluation, number = divmod(task_id - self.callback_ids.stop, len(self.validation) + 2)
        if number >= len(self.validation):
            kind = TaskKind.METRICS if number == len(self.validation) else TaskKind.CALLBACKS
            return Task(task_id, kind, _NO_SHARD, evaluation_id=evaluation)
        piece = self.validation.piece(number)
        return Task(task_id, TaskKind.EVALUATION, piece, evaluation_id=evaluation)


def draws_order(config: JobConfig) -> bool:
    """Whether the order of training tasks is drawn in each epoch.

    Messages of a topic are trained as they came, its partitions side by side. A range that does not
    follow the last range of its partition needs a new request, which fetches much in vain. In a
    deterministic job the workers know the order too, so the order is drawn.
    """
    training = config.training
    is_read_on = stream_at(config.data.training_data) is not None and not training.deterministic
    return training.shuffle_tasks and not is_read_on


def in_turns(shards: Iterable[Shard], records_per_task: int) -> Iterator[Shard]:
    """Yield pieces of shards, one of each in turns.

    A piece is one task. If there were very many pieces, a piece is several tasks in a row.
    """
    left = deque(shards)
    num_tasks = sum(shard.num_records for shard in left) // records_per_task
    size = records_per_task * max(1, num_tasks // _MOST_TURNS)
    while left:
        shard = left.popleft()
        end = min(shard.start + size, shard.end)
        yield Shard(shard.name, shard.start, end)
        if end < shard.end:
            left.append(Shard(shard.name, end, shard.end))


def growth_of(config: JobConfig, num_records: int) -> int:
    """Return how many times larger the training tasks of a job are than its settings say.

    A task costs the master the same, whatever its size, and a watermark in each ps replica. So an
    epoch has few large tasks, but never so few that another number of workers has too few of them.
    Only a size that nobody has chosen grows, and only where nobody waits for the end of one task
    or holds all of its records.

    Args:
        config: The job's settings.
        num_records: The records of an epoch.
    """
    training = config.training
    may_grow = (
        config.command == "train"
        and training.distribution_strategy is Strategy.PARAMETER_SERVER
        and training.shuffle == "tasks"
        and training.finish_rate == 1.0
        and stream_at(config.data.training_data) is None
    )
    if not may_grow:
        return 1
    most = training.most_minibatches_per_task // training.num_minibatches_per_task
    return max(1, min(most, num_records // (config.records_per_task * _TASKS_OF_AN_EPOCH)))


def make_tasks(
    config: JobConfig,
    training: Sequence[Shard],
    validation: Sequence[Shard],
    prediction: Sequence[Shard],
    growth: int = 1,
) -> JobTasks:
    """Cut a job's shards into tasks.

    Args:
        config: The job's settings.
        training: The shards of training.
        validation: The shards of evaluations.
        prediction: The shards of predictions.
        growth: How many times larger training tasks are than the settings say.

    Raises:
        JobFailedError: There is nothing to do: the data that the command needs has no records.
    """
    per_task = config.records_per_task
    makers: dict[str, MakeTable] = registry.brought("tables")
    for make in makers.values():
        if (growing := make(config, training)) is not None:
            evaluated = _validation(config, TaskTable(validation, per_task))
            return JobTasks(growing, evaluated, TaskTable((), per_task), 1)
    trained: Iterable[Shard] = training if config.command == "train" else ()
    if stream_at(config.data.training_data) is not None:
        trained = in_turns(trained, per_task)
    tables = {
        "train": TaskTable(trained, growth * per_task),
        "evaluate": TaskTable(validation if config.command != "predict" else (), per_task),
        "predict": TaskTable(prediction if config.command == "predict" else (), per_task),
    }
    if not tables[config.command].num_records:
        flag, value = {
            "train": ("training_data", config.trains_on),
            "evaluate": ("validation_data", config.data.validation_data),
            "predict": ("prediction_data", config.data.prediction_data),
        }[config.command]
        raise JobFailedError(f"--{flag}={value}: expected records, found none")
    epochs = config.training.num_epochs if config.command == "train" else 0
    evaluated = _validation(config, tables["evaluate"])
    return JobTasks(tables["train"], evaluated, tables["predict"], epochs, growth)


def _validation(config: JobConfig, table: TaskTable) -> TaskTable | ChosenPieces:
    """Return the pieces of one evaluation: all tasks, or minibatches from all over the data."""
    count = config.evaluation.evaluation_minibatches
    minibatches = TaskTable(table.shards, config.training.minibatch_size)
    if not 0 < count < len(minibatches):
        return table
    return ChosenPieces(minibatches, count, config.training.seed)

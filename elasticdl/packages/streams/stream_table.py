"""The training tasks of a stream: ranges of positions of its partitions, cut as messages arrive."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from elasticdl.config import JobConfig
from elasticdl.data.sources import is_stream
from elasticdl.job import Shard
from elasticdl.packages.streams.topic import is_topic, parse
from elasticdl.state.base import Snapshot

MOST_PIECES = 1 << 40
"""Numbers that the pieces of a stream may ever have; other tasks of its job have higher ones."""


class StreamTable:
    """Pieces of partitions, numbered from 0 in the order in which they were cut.

    It is a `GrowingTable`, which grows by facts of the job's journal, 20 bytes a piece.

    first: The first piece that is not forgotten.
    """

    def __init__(self, partitions: Iterable[Shard], keeps_order: bool = False) -> None:
        """Begin without pieces.

        Args:
            partitions: The begin of each partition. `Intake` knows the ends, which move.
            keeps_order: The pieces of a partition are trained one after the other.
        """
        self.keeps_order = keeps_order
        self.next: dict[str, int] = {}
        """The position at which the next piece of each partition begins."""
        self.first = 0
        self.num_records = 0
        """Positions of all pieces. Not each has a record: see `Ledger.missing`."""
        self.late_before: dict[int, float] = {}
        """For each begun piece, the event time before which messages are late; 0: none is late."""
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._partitions, self._starts, self._ends = array("i"), array("q"), array("q")
        for partition in partitions:
            self.add(partition.name, partition.start)

    # --- facts -----------------------------------------------------------------------------------

    def add(self, name: str, start: int) -> None:
        """Add a partition that begins at a position."""
        self._numbers[name] = len(self._names)
        self._names.append(name)
        self.next[name] = start

    def cut(self, name: str, end: int) -> None:
        """Add a piece of a partition, from the end of its last piece up to a position."""
        start = self.next[name]
        if end <= start:
            raise ValueError(f"a piece of {name} from {start} to {end}")
        self._partitions.append(self._numbers[name])
        self._starts.append(start)
        self._ends.append(end)
        self.next[name] = end
        self.num_records += end - start

    def skip(self, name: str, end: int) -> None:
        """Have the next piece of a partition begin at a position: what was before is gone."""
        self.next[name] = end

    def forget(self, first: int) -> None:
        """Forget the pieces before one."""
        count = first - self.first
        for column in (self._partitions, self._starts, self._ends):
            del column[:count]
        self.first = first
        self.late_before = {n: time for n, time in self.late_before.items() if n >= first}

    def kept_from(self) -> dict[str, int]:
        """Return the position of each partition at which its first piece begins that is known."""
        found = dict(self.next)
        # Backwards, so that the first known piece of each partition is written last and stays.
        for number in range(len(self._starts) - 1, -1, -1):
            found[self._names[self._partitions[number]]] = self._starts[number]
        return found

    # --- questions, as of a `TaskTable` ----------------------------------------------------------

    @property
    def num_numbers(self) -> int:
        """How many numbers pieces may have, now or later."""
        return MOST_PIECES

    def __len__(self) -> int:
        return self.first + len(self._starts)

    def piece(self, number: int) -> Shard:
        """Return the positions of a piece."""
        at = self._at(number)
        return Shard(self.name_of(number), self._starts[at], self._ends[at])

    def name_of(self, number: int) -> str:
        """Return the partition of a piece."""
        return self._names[self._partitions[self._at(number)]]

    def num_records_of(self, number: int) -> int:
        """Return how many positions a piece has."""
        at = self._at(number)
        return self._ends[at] - self._starts[at]

    def records_of_all(self) -> NDArray[np.int64]:
        """Return how many positions each piece has, from the first on that is known, shape (n,)."""
        return np.array(self._ends, np.int64) - np.array(self._starts, np.int64)

    def records_before(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many positions the pieces before each number have, of those that are known."""
        total = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.records_of_all())])
        before: NDArray[np.int64] = total[numbers - self.first]
        return before

    def _at(self, number: int) -> int:
        at = number - self.first
        if at < 0:
            raise IndexError(f"task {number} is done for good, and forgotten")
        return at

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it."""
        return {
            "partitions": [[name, self.next[name]] for name in self._names],
            "first": self.first,
            "num_records": self.num_records,
            "late_before": list(self.late_before.items()),
            "pieces": [self._partitions.tolist(), self._starts.tolist(), self._ends.tolist()],
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of a snapshot."""
        self.next = dict(snapshot["partitions"])
        self._names = [name for name, _ in snapshot["partitions"]]
        self._numbers = {name: number for number, name in enumerate(self._names)}
        columns: Sequence[list[int]] = snapshot["pieces"]
        self._partitions = array("i", columns[0])
        self._starts, self._ends = array("q", columns[1]), array("q", columns[2])
        self.first, self.num_records = snapshot["first"], snapshot["num_records"]
        self.late_before = dict(snapshot.get("late_before", ()))


def table_of(config: JobConfig, partitions: Sequence[Shard]) -> StreamTable | None:
    """Return the table of a job on a stream, still without pieces; None if it has other data."""
    if not is_stream(config):
        return None
    place = config.data.training_data
    return StreamTable(partitions, is_topic(place) and parse(place).keeps_order)

"""What a data reader provides: named shards, cheaply, and records of any range of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from elasticdl.data.strings import Column
from elasticdl.errors import DataError
from elasticdl.job import Mode, Shard


@dataclass(frozen=True, slots=True)
class Aside:
    """A message that is set aside, at a position of its shard: it is unreadable, or late."""

    position: int
    why: str
    value: bytes
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class Records:
    """Consecutive records of a shard, as bytes each or as columns (exactly one of the two).

    start: number of the first record in its shard's source.
    values: one `bytes` a record (RecordIO, TFRecord, CSV: the line without its newline).
    columns: name -> array whose first axis is the record, or `Strings` (Parquet, tables).
    order: the number of each record, where they are not consecutive.
    aside: what was found among them that is none (a topic's messages).
    times: the event time of each, in seconds since 1970, where the source has any; 0: not known.
    num_late: how many messages were late, whether they are records or not.
    num_gone: how many positions before them were deleted before they were read, and are left out.
    """

    start: int = 0
    values: list[bytes] = field(default_factory=list)
    columns: Mapping[str, Column] = field(default_factory=dict)
    order: NDArray[np.int64] | None = None
    aside: tuple[Aside, ...] = ()
    times: NDArray[np.float64] | None = None
    num_late: int = 0
    num_gone: int = 0

    def __len__(self) -> int:
        if self.columns:
            return len(next(iter(self.columns.values())))
        return len(self.values)

    @property
    def numbers(self) -> NDArray[np.int64]:
        """The number of each record in its source."""
        if self.order is not None:
            return self.order
        return np.arange(self.start, self.start + len(self))


@dataclass(frozen=True, slots=True)
class Metadata:
    """What `feed` may know about the data.

    Its columns and their types, when the format has any, and what is between the fields of a line.
    `column_kinds` says what the values of a column are, where the type of its arrays does not tell:
    whole or truth (in a column of floats, for it has nulls), date, timestamp, "timestamp UTC",
    "decimal 2" (of two decimal places). To `checks` a feed adds what records are checked by before
    it is given them; one raises a `DataError` that has the record.
    of_modes: what it is of data of other modes, which may have other columns, or another order.
    keeps_order: whether the records of a task are trained as they come, and nothing shuffles them.
    """

    column_names: tuple[str, ...] = ()
    column_dtypes: dict[str, np.dtype[np.generic]] = field(default_factory=dict)
    delimiter: str = ","
    column_kinds: dict[str, str] = field(default_factory=dict)
    checks: list[Callable[[Records], None]] = field(default_factory=list, compare=False)
    of_modes: Mapping[Mode, Metadata] = field(default_factory=dict, compare=False, repr=False)
    keeps_order: bool = False

    def shuffles(self, mode: Mode) -> bool:
        """Whether the records of a task may be put into another order in a mode."""
        return mode is Mode.TRAINING and not self.of(mode).keeps_order

    def of(self, mode: Mode) -> Metadata:
        """Return what `feed` is told in a mode."""
        return self.of_modes.get(mode, self)


def columns_there_are(error: Exception, columns: Iterable[str]) -> str:
    """Return what to add to an error of a `feed` that asked for a column that is not there."""
    names = tuple(columns)
    if isinstance(error, KeyError) and names and error.args and error.args[0] not in names:
        return f"; the records have the columns {', '.join(names)}"
    return ""


class DataReader(Protocol):
    """Reads one kind of source. `custom_data_reader` of a model file returns one."""

    def shards(self) -> list[Shard]:
        """List the shards, without reading the records.

        Raises:
            DataError: A file is missing, torn or of another format; names file and offset.
        """
        ...

    def read(self, shard: Shard) -> Iterator[Records]:
        """Yield the records of `[shard.start, shard.end)`, in order, in chunks of any size."""
        ...

    @property
    def metadata(self) -> Metadata:
        """What `feed` is told about the data."""
        ...


@runtime_checkable
class KeepsMissing(Protocol):
    """A reader of columns that can tell a number that is missing from one that is NaN."""

    def keeping_missing(self) -> DataReader:
        """Return a reader whose columns of numbers with null are objects, None for null."""
        ...


@runtime_checkable
class HasPlaces(Protocol):
    """A reader that can tell where a record is in a file, for an error."""

    def place(self, name: str, record: int) -> str:
        """Return the place of a record of a shard, such as its line."""
        ...


def chunks_of(reader: DataReader) -> Iterator[tuple[Records, str]]:
    """Yield all records of a reader, with the name of the shard that they are of."""
    return ((records, shard.name) for shard in reader.shards() for records in reader.read(shard))


@runtime_checkable
class HasHoles(Protocol):
    """A reader of positions, not each of which has a record: `Shard`s count the positions."""

    has_holes: bool

    def read(self, shard: Shard, late_before: float = 0.0) -> Iterator[Records]:
        """Yield the records; messages of an earlier event time than `late_before` are late."""
        ...


@runtime_checkable
class Waits(Protocol):
    """A reader of a source that may be away for a while, and is waited for."""

    @property
    def waits_for(self) -> str:
        """What nothing comes of, and why; "": it does not wait. For any thread."""
        ...


@runtime_checkable
class Stream(Protocol):
    """A reader of what arrives: its shards are partitions, whose ends move on.

    is_endless: whether what arrives after the job has begun belongs to the data.
    """

    @property
    def is_endless(self) -> bool:
        """Whether it has no end."""
        ...

    def shards(self) -> list[Shard]:
        """List what there is of each partition now."""
        ...

    def look(self) -> list[Shard]:
        """List the same, but do not wait for a source that does not answer.

        Raises:
            AwayError: It does not.
        """
        ...

    def wait(self) -> None:
        """Return when something may have come since the last look, or after a second or so."""
        ...

    def trained(self, positions: Mapping[str, int], is_last: bool = False) -> None:
        """Hear how far each partition is trained without a gap, now and then; for others to see.

        Args:
            positions: Of each partition the first one that is not trained.
            is_last: Nothing more will be trained now.
        """
        ...

    def beginning(self) -> list[Shard]:
        """List what a job that begins now has to read of each partition, as far as it is there."""
        ...


@runtime_checkable
class Captured(Protocol):
    """A stream that the job itself keeps, of a source that may have an end.

    is_over: whether the source had come to its end at the last look.
    """

    is_over: bool

    def forget(self, positions: Mapping[str, int]) -> None:
        """Delete of each partition what is before a position: nobody asks for it again."""
        ...


def all_of(chunks: Iterable[Records], shard: Shard, reader: str) -> Iterator[Records]:
    """Yield what a reader gives for a range, and make sure that it is all of it and no more.

    Args:
        chunks: What it gives.
        shard: The range.
        reader: What the reader is called in an error.

    Raises:
        DataError: It is another number of records.
    """
    num_records = 0
    for chunk in chunks:
        num_records += len(chunk)
        yield chunk
    if num_records != shard.num_records:
        raise DataError(
            f"{shard.name}: {reader}.read gave {num_records} records for "
            f"[{shard.start}, {shard.end}), expected {shard.num_records}"
        )

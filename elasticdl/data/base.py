"""The contract of a data reader: it lists named shards cheaply, and reads any range of one."""

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

    start: The number of the first record in its shard's source.
    values: One `bytes` for each record (RecordIO, TFRecord, CSV: the line without its newline).
    columns: By name, an array whose first axis is the record, or `Strings` (Parquet, tables).
    order: The number of each record, if they are not consecutive.
    aside: The messages of a topic among them that are not records.
    times: The event time of each record, in seconds since 1970, if the source has any; 0: not
        known.
    num_late: The number of late messages, records or not.
    num_gone: The number of positions before them that were deleted before they could be read.
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
        """Return the number of each record in its source."""
        if self.order is not None:
            return self.order
        return np.arange(self.start, self.start + len(self))


@dataclass(frozen=True, slots=True)
class Metadata:
    """Describes the data to `feed`: columns, their types, and the delimiter of a line.

    column_kinds: The kinds of values, if the type of the arrays does not tell: whole or truth (in a
        column of floats, because it has nulls), date, timestamp, "timestamp UTC", "decimal 2" (of
        two decimal places).
    checks: A feed adds checks of records here. They run before the feed gets the records. A check
        raises a `DataError` with the number of the record.
    of_modes: The metadata of other modes, whose data may have other columns, or another order.
    keeps_order: Whether the records of a task are trained in their order, without a shuffle.
    """

    column_names: tuple[str, ...] = ()
    column_dtypes: dict[str, np.dtype[np.generic]] = field(default_factory=dict)
    delimiter: str = ","
    column_kinds: dict[str, str] = field(default_factory=dict)
    checks: list[Callable[[Records], None]] = field(default_factory=list, compare=False)
    of_modes: Mapping[Mode, Metadata] = field(default_factory=dict, compare=False, repr=False)
    keeps_order: bool = False

    def shuffles(self, mode: Mode) -> bool:
        """Return whether the records of a task may be put into another order in a mode."""
        return mode is Mode.TRAINING and not self.of(mode).keeps_order

    def of(self, mode: Mode) -> Metadata:
        """Return the metadata that `feed` gets in a mode."""
        return self.of_modes.get(mode, self)


def columns_there_are(error: Exception, columns: Iterable[str]) -> str:
    """Return words for the error of a `feed` that asked for a column that is not there."""
    names = tuple(columns)
    # A KeyError may also come from the user's own dict. Then the words would mislead.
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
        """Describes the data to `feed`."""
        ...


@runtime_checkable
class KeepsMissing(Protocol):
    """A reader of columns that can tell a number that is missing from one that is NaN."""

    def keeping_missing(self) -> DataReader:
        """Return a reader whose numeric columns with null are objects, with None for null."""
        ...


@runtime_checkable
class HasClasses(Protocol):
    """A reader of a shard for each class, whose records are labelled by the class's number."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of their numbers."""
        ...


@runtime_checkable
class HasPlaces(Protocol):
    """A reader that knows the place of a record in a file, for an error."""

    def place(self, name: str, record: int) -> str:
        """Return the place of a record of a shard, such as its line."""
        ...


def chunks_of(reader: DataReader) -> Iterator[tuple[Records, str]]:
    """Yield all records of a reader, with the name of their shard."""
    return ((records, shard.name) for shard in reader.shards() for records in reader.read(shard))


@runtime_checkable
class HasHoles(Protocol):
    """A reader of positions, some of which have no record. A `Shard` counts positions."""

    has_holes: bool

    def read(self, shard: Shard, late_before: float = 0.0) -> Iterator[Records]:
        """Yield the records; messages of an earlier event time than `late_before` are late."""
        ...


@runtime_checkable
class Waits(Protocol):
    """A reader of a source that may be away for a while, and is waited for."""

    @property
    def waits_for(self) -> str:
        """Return the source that does not answer, and why; "": none. Any thread may ask."""
        ...


@runtime_checkable
class Answers(Protocol):
    """A reader of a source that can be asked, before a job starts, whether it is there."""

    def check(self) -> None:
        """Check that the source is there.

        Raises:
            DataError: It does not exist, or does not answer.
        """
        ...


@runtime_checkable
class Stream(Protocol):
    """A reader of arriving data: its shards are partitions, whose ends move on.

    is_endless: Whether data that arrives after the start of the job belongs to it.
    """

    @property
    def is_endless(self) -> bool:
        """Return whether the stream has no end."""
        ...

    def shards(self) -> list[Shard]:
        """List the part of each partition that is there now."""
        ...

    def look(self) -> list[Shard]:
        """List the same, but do not wait for a source that does not answer.

        Raises:
            AwayError: The source does not answer.
        """
        ...

    def wait(self) -> None:
        """Return when something may have come since the last look, or after a second or so."""
        ...

    def trained(self, positions: Mapping[str, int], is_last: bool = False) -> None:
        """Note how far each partition is trained without a gap, for monitoring.

        Args:
            positions: For each partition, the first position that is not trained.
            is_last: Nothing more will be trained now.
        """
        ...

    def beginning(self) -> list[Shard]:
        """List what a job that begins now reads of each partition, as far as it is there."""
        ...


@runtime_checkable
class Captured(Protocol):
    """A stream of records that the job itself stores; its source may have an end.

    is_over: Whether the source had come to its end at the last look.
    """

    is_over: bool

    def forget(self, positions: Mapping[str, int]) -> None:
        """Delete the records before a position in each partition: no worker needs them again."""
        ...


def all_of(chunks: Iterable[Records], shard: Shard, reader: str) -> Iterator[Records]:
    """Yield the records that a reader gives for a range, and check that they are all of it.

    Args:
        chunks: The records that the reader gives.
        shard: The range.
        reader: The name of the reader in an error.

    Raises:
        DataError: The number of records is another one.
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

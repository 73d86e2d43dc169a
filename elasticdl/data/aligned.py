"""Gives the columns of one data set in the order of another's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from elasticdl.data.base import DataReader, HasHoles, Metadata, Records, Waits
from elasticdl.job import Shard


def aligned(reader: DataReader, like: Metadata) -> DataReader:
    """Return a reader whose columns come in the order of another data set's.

    A `feed` may take the columns of a record by their place. Columns that the other data set does
    not have come last. Readers of lines or other bytes are returned as they are.
    """
    own = reader.metadata
    # Lines have no columns here: `feed` splits them, and `worker/findings.py` compares their
    # headers.
    if not own.column_dtypes or not like.column_dtypes:
        return reader
    known = [name for name in like.column_dtypes if name in own.column_dtypes]
    order = [*known, *(name for name in own.column_dtypes if name not in like.column_dtypes)]
    if order == list(own.column_dtypes):
        return reader
    if isinstance(reader, HasHoles):
        return AlignedMessages(reader, order)
    return AlignedReader(reader, order)


class AlignedReader:
    """Reads what another reader of columns reads, with the columns in a given order."""

    def __init__(self, reader: DataReader, order: Sequence[str]) -> None:
        self._reader = reader
        self._order = tuple(order)

    @property
    def metadata(self) -> Metadata:
        """The columns, in the given order."""
        found = self._reader.metadata
        dtypes = {name: found.column_dtypes[name] for name in self._order}
        return replace(found, column_names=self._order, column_dtypes=dtypes)

    @property
    def waits_for(self) -> str:
        """Return what the other reader waits for."""
        return self._reader.waits_for if isinstance(self._reader, Waits) else ""

    def shards(self) -> list[Shard]:
        """List the shards of the other reader."""
        return self._reader.shards()

    def read(self, shard: Shard) -> Iterator[Records]:
        """Yield the records of the other reader, with their columns in the given order."""
        return self._aligned(self._reader.read(shard))

    def _aligned(self, chunks: Iterable[Records]) -> Iterator[Records]:
        for records in chunks:
            # A chunk without a record has no columns: its messages are set aside, or gone.
            if records.columns:
                columns = {name: records.columns[name] for name in self._order}
                records = replace(records, columns=columns)
            yield records


class AlignedMessages(AlignedReader):
    """The same for positions, some of which have no record: see `HasHoles`."""

    has_holes = True

    def read(self, shard: Shard, late_before: float = 0.0) -> Iterator[Records]:
        """Yield the records of the other reader, with their columns in the given order."""
        reader = self._reader
        assert isinstance(reader, HasHoles), "aligned() looks"
        return self._aligned(reader.read(shard, late_before))

"""Row groups of Parquet files: decoded whole, checked against their footer, kept for a while."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, TypeAlias

from elasticdl import _core
from elasticdl.data import remote
from elasticdl.data.files import CHUNK_RECORDS
from elasticdl.errors import DataError

if TYPE_CHECKING:
    import pyarrow


KEPT_BYTES = 512 << 20
"""The limit of the decoded rows that a reader keeps."""
BATCH_BYTES = 64 << 20
"""The rows of a row group larger than that are decoded about so many bytes at a time."""
_MAX_FOOTERS = 64

_Key: TypeAlias = tuple[str, int]  # a file and the number of a row group
_Rows: TypeAlias = "Iterator[tuple[int, pyarrow.RecordBatch]]"


@dataclass(frozen=True, slots=True)
class Footer:
    """The row groups of a file: where the rows of each end, all other metadata, and its size."""

    ends: list[int]
    metadata: pyarrow.parquet.FileMetaData
    num_bytes: int

    def columns(self, group: int) -> dict[str, pyarrow.parquet.ColumnChunkMetaData]:
        """Return the columns of values of a row group, by their paths."""
        found = self.metadata.row_group(group)
        chunks = map(found.column, range(found.num_columns))
        return {chunk.path_in_schema: chunk for chunk in chunks}

    def nulls(self, leaf: str) -> Iterator[tuple[int | None, int]]:
        """Yield two numbers for each row group with rows: nulls of a column, and all its values.

        The number of nulls is None if the file does not tell it.
        """
        for group, (start, end) in enumerate(pairwise([0, *self.ends])):
            if start == end:
                continue
            chunk = self.columns(group).get(leaf)
            says = chunk and chunk.statistics
            known = says.null_count if says and says.has_null_count else None
            yield known, chunk.num_values if chunk else 0


@dataclass(frozen=True, slots=True)
class _Decoded:
    """The rows of a row group; `starts` has the number of the first row of each batch."""

    batches: list[pyarrow.RecordBatch]
    starts: list[int]
    num_bytes: int

    def rows(self, start: int, end: int) -> _Rows:
        number = bisect_right(self.starts, start) - 1
        while start < end:
            batch, first = self.batches[number], self.starts[number]
            count = min(end, first + batch.num_rows) - start
            yield start, batch.slice(start - first, count)
            start, number = start + count, number + 1


class _Stream:
    """Decodes a row group from its beginning, and continues where the last range ended."""

    def __init__(self, key: _Key, batches: Iterator[pyarrow.RecordBatch]) -> None:
        self.key = key
        self.first = 0  # row of the batch
        self._batches = batches
        self._batch: pyarrow.RecordBatch | None = None

    def rows(self, start: int, end: int) -> _Rows:
        while start < end:
            while self._batch is None or self.first + self._batch.num_rows <= start:
                self.first += 0 if self._batch is None else self._batch.num_rows
                self._batch = next(self._batches, None)
                if self._batch is None:
                    path, group = self.key
                    raise _damaged(path, group, f"it has {self.first} rows, expected {end}")
            count = min(end, self.first + self._batch.num_rows) - start
            yield start, self._batch.slice(start - self.first, count)
            start += count


class RowGroups:
    """The rows of Parquet files. Several threads may read them.

    A row group is decoded whole and kept, as long as all of them fit in `KEPT_BYTES`: the next
    range is often in the same one. If they do not fit, the one that was used last is dropped. So a
    reader that goes through all row groups again and again finds some of them.

    A row group that alone is larger is decoded from its beginning. A later range continues from
    there.

    Args:
        open_file: Opens a file; for a URL it gets the parts that were fetched. Options of
            `ParquetFile` may follow.
        columns: Names of the columns to read.
    """

    def __init__(
        self,
        open_file: Callable[..., pyarrow.parquet.ParquetFile],
        columns: Sequence[str],
    ) -> None:
        self._open = open_file
        self._columns = list(columns)
        self._names = frozenset(columns)
        self.footer = lru_cache(_MAX_FOOTERS)(self._footer)
        self._lock = threading.Lock()
        self._kept: OrderedDict[_Key, _Decoded] = OrderedDict()  # the last one was used last
        self._stream: _Stream | None = None
        self._large: set[_Key] = set()

    def rows(self, path: str, start: int, end: int) -> _Rows:
        """Yield rows `[start, end)` of a file, with the number of the first row of each batch.

        Raises:
            DataError: A column has other values than the footer says.
        """
        ends = self.footer(path).ends
        group = bisect_right(ends, start)
        while start < end:
            before = ends[group - 1] if group else 0
            stop = min(end, ends[group])
            if start < stop:
                for first, batch in self._rows((path, group), start - before, stop - before):
                    yield before + first, batch
            start, group = stop, group + 1

    def sizes(self, path: str) -> tuple[int, int]:
        """Return the rows of the largest row group, and the bytes of all row groups to read."""
        ends = self.footer(path).ends
        rows = max((end - start for start, end in pairwise([0, *ends])), default=0)
        chunks = (self._chunks(path, group).values() for group in range(len(ends)))
        return rows, sum(chunk.total_uncompressed_size for found in chunks for chunk in found)

    def which_is_damaged(self, path: str, start: int, end: int) -> str:
        """Return which column cannot be decoded, and in which row group; "" if each can be."""
        import pyarrow

        footer = self.footer(path)
        for group, last in enumerate(footer.ends):
            first = last - footer.metadata.row_group(group).num_rows
            for name in self._columns if first < end and start < last else ():
                try:
                    self._open(path, {}).read_row_group(group, columns=[name])
                except (pyarrow.ArrowException, OSError):
                    return f", column {name!r} in row group {group}"
        return ""

    def _footer(self, path: str) -> Footer:
        num_bytes = remote.size_of(path)
        metadata = self._open(path, {}).metadata
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        return Footer(list(accumulate(group.num_rows for group in groups)), metadata, num_bytes)

    def _rows(self, key: _Key, start: int, end: int) -> _Rows:
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
        if found is None and not self._is_large(key):
            found = self._keep(key, self._decode(*key))
        yield from self._streamed(key, start, end) if found is None else found.rows(start, end)

    def _is_large(self, key: _Key) -> bool:
        return key in self._large or self._num_bytes(*key) > KEPT_BYTES

    def _num_bytes(self, path: str, group: int) -> int:
        chunks = self._chunks(path, group).values()
        return sum(int(chunk.total_uncompressed_size) for chunk in chunks)

    def _keep(self, key: _Key, decoded: _Decoded) -> _Decoded:
        with self._lock:
            if decoded.num_bytes > KEPT_BYTES:
                self._large.add(key)
                return decoded
            # Two threads may have decoded the same group at once.
            self._kept.pop(key, None)
            kept = sum(other.num_bytes for other in self._kept.values())
            while kept + decoded.num_bytes > KEPT_BYTES:
                # The group that was used last goes first: see the class.
                kept -= self._kept.popitem(last=True)[1].num_bytes
            self._kept[key] = decoded
        return decoded

    def _streamed(self, key: _Key, start: int, end: int) -> _Rows:
        with self._lock:
            # The stream is taken out under the lock, so that no other thread continues it
            # meanwhile.
            stream, self._stream = self._stream, None
        if stream is None or stream.key != key or stream.first > start:
            path, group = key
            file = self._checked(path, group)
            num_rows = file.metadata.row_group(group).num_rows
            most = max(1, BATCH_BYTES * num_rows // max(1, self._num_bytes(*key)))
            size = min(CHUNK_RECORDS, most)
            batches = file.iter_batches(size, row_groups=[group], columns=self._columns)
            stream = _Stream(key, batches)
        yield from stream.rows(start, end)
        with self._lock:
            self._stream = stream

    def _decode(self, path: str, group: int) -> _Decoded:
        table = self._checked(path, group).read_row_group(group, columns=self._columns)
        self._compare(table, path, group)
        batches = table.to_batches(CHUNK_RECORDS)
        starts = [0, *accumulate(batch.num_rows for batch in batches)]
        return _Decoded(batches, starts[:-1], table.nbytes)

    def _checked(self, path: str, group: int) -> pyarrow.parquet.ParquetFile:
        """Open a file after a check of a row group's pages: they must have the right values."""
        is_far = remote.is_url(path)
        if (num_bytes := remote.size_of(path)) != self.footer(path).num_bytes:
            raise DataError(
                f"{path}: it has {num_bytes:,} bytes, and had {self.footer(path).num_bytes:,} when "
                "its rows were counted; do not write to data of a running job"
            )
        parts: dict[int, bytes] = {}
        for name, chunk in self._chunks(path, group).items():
            starts = [chunk.data_page_offset, chunk.dictionary_page_offset or 0]
            start = min(place for place in starts if place)
            end = start + chunk.total_compressed_size
            part = remote.read_bytes(path, start, end)
            try:
                _core.check_parquet_pages(part, chunk.num_values)
            except ValueError as error:
                raise _damaged(path, group, f"{error}", name) from None
            if is_far:
                parts[start] = part
        file = self._open(path, parts)
        if file.metadata.num_rows != self.footer(path).ends[-1]:
            raise DataError(
                f"{path}: it has {file.metadata.num_rows} rows, and had "
                f"{self.footer(path).ends[-1]} before; do not write to data of a running job"
            )
        self._require_near(file, parts, path, group)
        return file

    def _require_near(
        self, file: pyarrow.parquet.ParquetFile, parts: dict[int, bytes], path: str, group: int
    ) -> None:
        """Refuse times of INT96 that int64 does not hold in nanoseconds: Arrow wraps them round."""
        import pyarrow

        chunks = self._chunks(path, group)
        of = [leaf for leaf, chunk in chunks.items() if chunk.physical_type == "INT96"]
        if not of:
            return
        wide = self._open(path, parts, coerce_int96_timestamp_unit="us")
        for name in map(self._column_of, of):
            column = wide.read_row_group(group, columns=[name]).column(name)
            try:
                column.cast(file.schema_arrow.field(name).type)
            except pyarrow.ArrowInvalid:
                what = (
                    "it has a time of INT96 before 1677 or after 2262, which 64 bits of "
                    "nanoseconds do not hold; write it as a time stamp in microseconds, or leave "
                    "the column out by --data_reader_params=columns=..."
                )
                raise _damaged(path, group, what, name) from None

    def _compare(self, table: pyarrow.Table, path: str, group: int) -> None:
        """Compare the decoded values with the footer."""
        num_rows = self.footer(path).metadata.row_group(group).num_rows
        leaves: dict[str, list[pyarrow.parquet.ColumnChunkMetaData]] = {}
        for leaf, chunk in self._chunks(path, group).items():
            leaves.setdefault(self._column_of(leaf), []).append(chunk)
        for name in self._columns:
            column = table.column(name)
            if len(column) != num_rows:
                what = f"it has {len(column)} rows, and its footer says {num_rows}: it is damaged"
                raise _damaged(path, group, what, name)
            if len(leaves[name]) == 1 and (what := _difference(column, leaves[name][0])):
                raise _damaged(path, group, f"{what}: it is damaged", name)

    def _chunks(self, path: str, group: int) -> dict[str, pyarrow.parquet.ColumnChunkMetaData]:
        """Return the columns of values that are read, by their paths."""
        found = self.footer(path).columns(group)
        return {leaf: chunk for leaf, chunk in found.items() if self._column_of(leaf)}

    def _column_of(self, leaf: str) -> str:
        """Return the column that a path is in; "" if it is not read. Names may have dots."""
        while leaf and leaf not in self._names:
            leaf = leaf.rpartition(".")[0]
        return leaf


def _difference(column: pyarrow.ChunkedArray, chunk: pyarrow.parquet.ColumnChunkMetaData) -> str:
    """Return how a column differs from its footer; "" if it does not."""
    import pyarrow

    kind, types, says = column.type, pyarrow.types, chunk.statistics
    if (types.is_list(kind) or types.is_large_list(kind)) and not types.is_nested(kind.value_type):
        found, expected, what = _num_levels(column), chunk.num_values, "values are in its lists"
    elif says is not None and says.has_null_count and not types.is_nested(kind):
        found, expected, what = column.null_count, says.null_count, "values are null"
    else:
        return ""
    return "" if found == expected else f"{found} {what}, and its footer says {expected}"


def _num_levels(lists: pyarrow.ChunkedArray) -> int:
    """Return how many values Parquet counts in lists: an empty list, or null, counts as one."""
    import pyarrow.compute

    lengths = pyarrow.compute.fill_null(pyarrow.compute.list_value_length(lists), 0)
    return int(pyarrow.compute.sum(pyarrow.compute.max_element_wise(lengths, 1)).as_py() or 0)


def _damaged(path: str, group: int, what: str, column: str = "") -> DataError:
    named = f"column {column!r} in " if column else ""
    return DataError(f"{path}: {named}row group {group}: {what}", is_certain=True)

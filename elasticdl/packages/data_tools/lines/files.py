"""Writes columns to files of records: pieces are encoded in parallel, and written in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from elasticdl import _core
from elasticdl.packages.data_tools.convert import Target

Format = Literal["recordio", "tfrecord", "parquet"]
Splits = NDArray[np.int64]
Values = NDArray[np.int64] | tuple[bytes, Splits]


class PartFile(Protocol):
    """A file that is being written."""

    def write(self, piece: Any) -> None:
        """Add a piece that `encoder` made of records."""
        ...

    def close(self) -> None:
        """Write the rest."""
        ...

    def discard(self) -> None:
        """Give up: no file of this name remains."""
        ...


def encoder(target: Target) -> Callable[[pa.Table], object]:
    """Return the function that prepares records to be written; any thread may call it."""
    if target.format == "recordio":
        return partial(blocks_of, codec=target.codec)
    return _keep if target.format == "parquet" else examples_of


def open_part(target: Target, path: Path, columns: pa.Schema) -> PartFile:
    """Begin a file for records of these columns."""
    if target.format == "parquet":
        codec = {"deflate": "gzip"}.get(target.codec, target.codec)
        writer = pq.ParquetWriter(path, columns, compression=codec, write_page_checksum=True)
        return _ParquetPart(writer, target.records_per_row_group)
    if target.format == "recordio":
        return _BlockPart(_core.RecordWriter(path, codec=target.codec))
    return _RecordPart(_core.TFRecordWriter(path))


def examples_of(rows: pa.Table) -> list[bytes]:
    """Encode rows as `tf.train.Example`; a field without a value has no feature."""
    return _core.encode_examples(_features(rows), rows.num_rows)


def blocks_of(rows: pa.Table, codec: str) -> _core.RecordBlocks:
    """Encode rows as `examples_of` does, into compressed blocks: no row is a Python object."""
    return _core.pack_examples(_features(rows), rows.num_rows, codec)


def _features(table: pa.Table) -> list[tuple[str, Values, Splits]]:
    return [(name, *_feature(_whole(table.column(name)))) for name in sorted(table.schema.names)]


def _keep(rows: pa.Table) -> pa.Table:
    return rows


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _feature(array: pa.Array) -> tuple[Values, Splits]:
    """Return the values that are present, and the offset of each row in them."""
    splits = np.zeros(len(array) + 1, dtype=np.int64)
    np.cumsum(np.asarray(pc.is_valid(array)), out=splits[1:])
    present = array.drop_null()
    if pa.types.is_integer(present.type):
        return np.ascontiguousarray(present.to_numpy(zero_copy_only=False), np.int64), splits
    offsets = np.frombuffer(present.buffers()[1], dtype=np.int32)
    offsets = offsets[present.offset : present.offset + len(present) + 1]
    data = present.buffers()[2]
    text = b"" if data is None else data.slice(offsets[0], offsets[-1] - offsets[0]).to_pybytes()
    return (text, (offsets - offsets[0]).astype(np.int64)), splits


@dataclass(slots=True)
class _BlockPart:
    writer: _core.RecordWriter

    def write(self, piece: _core.RecordBlocks) -> None:
        self.writer.write_blocks(piece)

    def close(self) -> None:
        self.writer.close()

    def discard(self) -> None:
        self.writer.discard()


@dataclass(slots=True)
class _RecordPart:
    writer: _core.TFRecordWriter

    def write(self, piece: list[bytes]) -> None:
        self.writer.write_many(piece)

    def close(self) -> None:
        self.writer.close()

    def discard(self) -> None:
        self.writer.discard()


@dataclass(slots=True)
class _ParquetPart:
    """Writes row groups of `group_records` rows, wherever pieces end; the last has fewer."""

    writer: pq.ParquetWriter
    group_records: int
    waiting: list[pa.Table] = field(default_factory=list)
    num_waiting: int = 0

    def write(self, piece: pa.Table) -> None:
        self.waiting.append(piece)
        self.num_waiting += piece.num_rows
        # Only whole row groups are written; the rest waits for the next piece.
        whole = self.num_waiting - self.num_waiting % self.group_records
        if whole:
            rows = pa.concat_tables(self.waiting)
            self._write(rows.slice(0, whole))
            self.waiting, self.num_waiting = [rows.slice(whole)], rows.num_rows - whole

    def close(self) -> None:
        if self.num_waiting:
            self._write(pa.concat_tables(self.waiting))
        self.writer.close()

    def discard(self) -> None:
        self.writer.close()

    def _write(self, rows: pa.Table) -> None:
        self.writer.write_table(rows, row_group_size=self.group_records)

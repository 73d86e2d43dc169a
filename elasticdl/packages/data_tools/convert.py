"""Writes the records of any reader to RecordIO or TFRecord files: all of them or none."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Literal

import numpy as np

from elasticdl._core import RecordWriter, TFRecordWriter
from elasticdl.data.base import DataReader, Records
from elasticdl.data.csv_columns import find_kinds, require_kinds, require_names
from elasticdl.data.files import num_cores
from elasticdl.data.strings import Array
from elasticdl.data.text import TextReader
from elasticdl.errors import ConfigError, DataError
from elasticdl.packages.data_tools.example import encode_examples

Encode = Callable[[Records, str], list[bytes]]
RECORDS_PER_ROW_GROUP = 8192
"""A task decodes whole row groups up to its last record. So small groups waste little."""
OnProgress = Callable[[int], None]  # told how many records more were dealt with


@dataclass(frozen=True, slots=True)
class Target:
    """The place where records are written: a file or, with `records_per_file`, a new folder.

    records_per_row_group: For Parquet; the last row group of a file may have fewer.
    """

    path: Path
    format: Literal["recordio", "tfrecord", "parquet"]
    codec: str = "none"
    records_per_file: int | None = None
    records_per_row_group: int = RECORDS_PER_ROW_GROUP

    def writer(self, path: Path) -> RecordWriter | TFRecordWriter:
        """Open a writer of one file of records."""
        if self.format == "tfrecord":
            return TFRecordWriter(path)
        return RecordWriter(path, codec=self.codec)


def convert(
    reader: DataReader, encode: Encode, target: Target, on_progress: OnProgress
) -> list[Path]:
    """Write every record of a reader; return the files. After an error, no file is left.

    Raises:
        DataError: A record cannot be read or encoded, or a file cannot be written.
    """
    if not reader.shards():
        raise DataError(f"{target.path}: not written, because there are no records")
    batches = _encoded(reader, encode, on_progress)
    if target.records_per_file is None:
        _require_folder(target.path.parent)
        with target.writer(target.path) as writer:
            for batch in batches:
                writer.write_many(batch)
        return [target.path]
    with staged_folder(target.path) as folder:
        names = _write_parts(batches, folder, target, target.records_per_file)
    return [target.path / name for name in names]


def _encoded(reader: DataReader, encode: Encode, on_progress: OnProgress) -> Iterator[list[bytes]]:
    for shard in reader.shards():
        for records in reader.read(shard):
            yield encode(records, shard.name)
            on_progress(len(records))


def _write_parts(
    batches: Iterator[list[bytes]], folder: Path, target: Target, records_per_file: int
) -> list[str]:
    names: list[str] = []
    for number, pieces in groupby(_pieces(batches, records_per_file), key=itemgetter(0)):
        names.append(f"part-{number:05d}.{target.format}")
        with target.writer(folder / names[-1]) as writer:
            for _, piece in pieces:
                writer.write_many(piece)
    return names


def _pieces(
    batches: Iterator[list[bytes]], records_per_file: int
) -> Iterator[tuple[int, list[bytes]]]:
    """Cut batches at the ends of files; yield each piece with the number of its file."""
    num_records = 0
    for batch in batches:
        start = 0
        while start < len(batch):
            number, used = divmod(num_records, records_per_file)
            piece = batch[start : start + records_per_file - used]
            yield number, piece
            num_records += len(piece)
            start += len(piece)


@contextmanager
def staged_folder(path: Path) -> Iterator[Path]:
    """Give a folder to write to; it becomes `path` if no error is raised."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        # The rename at the end would fail after all the work, or mix two data sets.
        raise DataError(f"{path}: exists and is not an empty folder; choose another or remove it")
    _require_folder(path.parent)
    staging = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
    try:
        yield staging
        # `mkdtemp` makes a private folder; the result gets the rights of any new folder. The umask
        # can only be read by setting it.
        umask = os.umask(0)
        os.umask(umask)
        staging.chmod(0o777 & ~umask)
        staging.rename(path)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _require_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; create it first")


def raw(records: Records, source: str) -> list[bytes]:
    """Encode records as they are.

    Raises:
        ConfigError: The records are columns.
    """
    if records.columns:
        raise ConfigError(f"{source}: its records are columns; give --as example to encode them")
    return records.values


def as_examples(
    reader: DataReader, kinds: Mapping[str, str], missing: frozenset[str], on_progress: OnProgress
) -> Encode:
    """Return a function that encodes a reader's records as `tf.train.Example`.

    All records are read once to find the kinds of CSV columns that `kinds` does not name.

    Raises:
        ConfigError: The reader's records have no columns, or `kinds` names one that is not there.
    """
    if isinstance(reader, TextReader):
        return _csv_encoder(reader, kinds, missing, on_progress)
    if names := tuple(reader.metadata.column_dtypes):
        require_kinds(kinds, names, ("int64", "float"))
        return partial(_encode_columns, kinds=kinds)
    raise ConfigError("--as example is for records of columns: these records are bytes already")


def _encode_columns(records: Records, source: str, kinds: Mapping[str, str]) -> list[bytes]:
    columns = dict(records.columns)
    try:
        for name in kinds:
            if kinds[name] == "int64":
                columns[name] = _whole(name, np.asarray(columns[name]))
        return encode_examples(columns, [name for name in kinds if kinds[name] == "float"])
    except ValueError as error:
        raise DataError(
            f"{source}: {error}; or choose other columns by --data_reader_params=columns=..."
        ) from error


def _whole(name: str, column: Array) -> Array:
    """Return numbers as whole numbers; a missing number, or NaN, is None.

    Raises:
        ValueError: A number is not whole, or int64 does not hold it.
    """
    if column.ndim != 1 or column.dtype.kind not in "biufO":
        raise ValueError(f"column {name!r}: expected a number in each record for int64")
    out = np.empty(len(column), dtype=object)
    for row, value in enumerate(column.tolist()):
        if value is None or value != value:
            continue
        is_number = isinstance(value, int | float) and -(2**63) <= value < 2**63
        if not is_number or int(value) != value:
            raise ValueError(f"column {name!r} has {value!r}: expected whole numbers for int64")
        out[row] = int(value)
    return out


def _csv_encoder(
    reader: TextReader, kinds: Mapping[str, str], missing: frozenset[str], on_progress: OnProgress
) -> Encode:
    names = reader.metadata.column_names
    if not names and not reader.has_header:  # a header without names is of empty files
        raise ConfigError(
            "--as example needs names for the columns: give --data_reader_params="
            "skip_header=true if the first line has them, or columns=a,b,c"
        )
    require_kinds(kinds, names)
    require_names(names)
    lines = reader.columns(missing)
    found = dict(kinds)
    if set(kinds) != set(names):
        found = find_kinds(reader, lines, num_cores(), on_progress) | found

    nearest = [name for name in kinds if kinds[name] == "float"]

    def encode(records: Records, source: str) -> list[bytes]:
        fields = lines.fields(records, source)
        try:
            return encode_examples(lines.typed(fields, found, records, source), nearest)
        except ValueError as error:
            raise DataError(f"{source}: {error}") from error

    return encode

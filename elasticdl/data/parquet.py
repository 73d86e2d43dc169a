"""Parquet files: records as columns. Needs pyarrow, which is imported when first used."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from elasticdl import _core
from elasticdl.data import remote
from elasticdl.data.arrow_columns import (
    Convert,
    as_kind,
    column_converter,
    column_kind,
    joined_kind,
)
from elasticdl.data.base import Metadata, Records
from elasticdl.data.folder_columns import folder_columns
from elasticdl.data.in_order import of_files
from elasticdl.data.row_groups import KEPT_BYTES, RowGroups
from elasticdl.data.strings import Column
from elasticdl.distribution import install
from elasticdl.errors import ConfigError, DataError
from elasticdl.job import Shard
from elasticdl.settings.reader_params import FLAG

if TYPE_CHECKING:
    import pyarrow


SHARD_ROWS = 8192
"""Smaller row groups are joined, so that tasks do not become small."""
MAX_SHARDS = 100_000
_END_BYTES = 8
_INDEX = re.compile(r"__index_level_\d+__")  # what pandas calls an index without a name
_MAX_LOOKED_AT = 64


class ParquetReader:
    """Reads Parquet files by row groups.

    Columns become NumPy arrays. Their types depend on the files' schema and statistics alone, so
    every chunk has the same types. Numbers keep their type; whole numbers or truth values with
    nulls become float64 with NaN. Text and binary become `Strings`, null is empty. Fixed-size lists
    of numbers become a further axis. Other lists become one array for each record, as objects.

    Args:
        paths: The files; a shard is one or more row groups of a file.
        columns: The columns to read, in this order; without it, all are read, but no index of
            pandas.
        keeps_missing: Whether numbers with null become arrays of objects, with None.
    """

    def __init__(
        self, paths: Sequence[str], columns: Sequence[str] = (), *, keeps_missing: bool = False
    ) -> None:
        self._arrow, self._parquet = import_pyarrow()
        self._keeps_missing = keeps_missing
        self._paths = tuple(paths)
        self._known = frozenset(paths)
        read_footer(self._paths[0])
        self._schema = self._open(self._paths[0]).schema_arrow
        own = self._schema.names
        of_folders = folder_columns(self._paths)
        self._of_folders = {name: of_folders[name] for name in of_folders if name not in own}
        read = [name for name in own if not _INDEX.fullmatch(name)]
        self._columns = tuple(columns) or (*read, *self._of_folders)
        missing = [name for name in self._columns if name not in (*own, *self._of_folders)]
        if missing:
            raise ConfigError(
                f"{FLAG}: columns={missing[0]}: {self._paths[0]} has "
                f"{', '.join((*own, *self._of_folders))}"
            )
        for name in self._columns:
            if not name:
                raise DataError(
                    f"{self._paths[0]}: column {own.index(name) + 1} of {len(own)} has no name; "
                    "name it, or choose others by --data_reader_params=columns=..."
                )
            if own.count(name) > 1:
                raise DataError(
                    f"{self._paths[0]}: several columns are called {name!r}; rename them, or "
                    "choose others by --data_reader_params=columns=..."
                )
        in_files = [name for name in self._columns if name not in self._of_folders]
        self._groups = RowGroups(self._open, in_files)
        self._has_types = False  # of one column, in different files
        self._fields: dict[str, pyarrow.Field] = {}
        self._cached_converters: dict[str, tuple[Convert, np.dtype[np.generic]]] = {}

    def keeping_missing(self) -> ParquetReader:
        """Return a reader of the same columns that has None for a number that is null."""
        return ParquetReader(self._paths, self._columns, keeps_missing=True)

    @property
    def file_columns(self) -> tuple[str, ...]:
        """All columns of the files."""
        return tuple(self._schema.names)

    @property
    def is_one_table(self) -> bool:
        """Return whether all columns are in the files, with the same type in all of them."""
        self._converters()
        return not self._of_folders and not self._has_types

    @property
    def metadata(self) -> Metadata:
        """The columns and the types of their arrays."""
        dtypes = {name: dtype for name, (_, dtype) in self._converters().items()}
        found = {n: column_kind(self._arrow, self._fields[n].type) for n in self._columns}
        kinds = {name: kind for name, kind in found.items() if kind}
        return Metadata(self._columns, dtypes, column_kinds=kinds)

    def cost_of_pieces(self) -> str:
        """Return why small pieces from all over the files take long to read; "" if they do not.

        Only the first files are looked at.
        """
        paths = self._paths[:_MAX_LOOKED_AT]
        found = [self._groups.sizes(path) for path in paths]
        rows = max(rows for rows, _ in found)
        total = sum(num_bytes for _, num_bytes in found) * len(self._paths) / len(paths)
        if rows <= SHARD_ROWS or total <= KEPT_BYTES:
            return ""
        return (
            f"of row groups of up to {rows:,} rows and {total / 2**20:,.0f} MiB in all, a process "
            f"keeps {KEPT_BYTES >> 20} MiB decoded; a task with pieces of all of them decodes the "
            f"others again: write row groups of {SHARD_ROWS:,} rows (row_group_size={SHARD_ROWS})"
        )

    def shards(self) -> list[Shard]:
        """List ranges of row groups from the footers, so that tasks end where row groups end."""
        self._converters()  # compares the files' schemas
        footers = zip(self._paths, of_files(self._groups.footer, self._paths), strict=True)
        ends = {path: footer.ends for path, footer in footers}
        least = max(SHARD_ROWS, sum(found[-1] for found in ends.values() if found) // MAX_SHARDS)
        return [shard for path, found in ends.items() for shard in _ranges(path, found, least)]

    def read(self, shard: Shard) -> Iterator[Records]:
        """Yield the rows of a shard; only the row groups that it touches are read."""
        if shard.name not in self._known:
            raise DataError(
                f"{shard.name}: not one of the {len(self._paths)} files of this reader "
                f"({self._paths[0]}, ...); do all processes see the same files?"
            )
        num_rows = self._groups.footer(shard.name).metadata.num_rows
        if shard.end > num_rows:
            raise DataError(
                f"{shard.name}: rows [{shard.start}, {shard.end}) were asked for, but it has "
                f"{num_rows}; has the file changed since its rows were counted?"
            )
        try:
            self._converters()  # refuses types before they are decoded
            for first, rows in self._groups.rows(shard.name, shard.start, shard.end):
                yield Records(first, columns=self._to_columns(rows, shard.name, first))
        except (self._arrow.ArrowException, OSError) as error:
            said = " ".join(str(error).split())
            # The library's error does not name the column, so each column is decoded alone to find
            # it.
            where = self._groups.which_is_damaged(shard.name, shard.start, shard.end)
            raise DataError(
                f"{shard.name}: rows [{shard.start}, {shard.end}){where} cannot be read: {said}",
                is_certain=not remote.is_url(shard.name),
            ) from error

    def _to_columns(self, rows: pyarrow.RecordBatch, path: str, first: int) -> dict[str, Column]:
        columns: dict[str, Column] = {}
        for name, (convert, _) in self._converters().items():
            try:
                columns[name] = convert(self._column(name, rows, path))
            except DataError as error:
                raise DataError(
                    f"{path}: {error} (rows [{first}, {first + len(rows)}))",
                    None if error.record is None else first + error.record,
                    is_certain=True,
                ) from error
        return columns

    def _column(self, name: str, rows: pyarrow.RecordBatch, path: str) -> pyarrow.Array:
        kind = self._fields[name].type
        if name in self._of_folders:
            value = self._arrow.scalar(self._of_folders[name][path], kind)
            return self._arrow.repeat(value, len(rows))
        return as_kind(self._arrow, name, rows.column(name), kind)

    def _open(
        self, path: str, parts: Mapping[int, bytes] | None = None, **options: str | bool
    ) -> pyarrow.parquet.ParquetFile:
        options["page_checksum_verification"] = True
        try:
            if remote.is_url(path):  # no other bytes are fetched than those of its columns
                file = self._arrow.PythonFile(remote.RangeFile(path, parts), mode="r")
                return self._parquet.ParquetFile(file, pre_buffer=not parts, **options)
            return self._parquet.ParquetFile(path, **options)
        except (self._arrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: not a Parquet file that can be read: {error}") from error

    def _converters(self) -> dict[str, tuple[Convert, np.dtype[np.generic]]]:
        """The converter of each column; made once, since it reads every file's footer."""
        if not self._cached_converters:
            nullable = self._look_at_files()
            self._cached_converters = {
                name: self._converter(name, name in nullable) for name in self._columns
            }
        return self._cached_converters

    def _converter(self, name: str, has_nulls: bool) -> tuple[Convert, np.dtype[np.generic]]:
        try:
            return column_converter(self._arrow, self._fields[name], has_nulls, self._keeps_missing)
        except DataError as error:
            raise DataError(f"{self._paths[0]}: {error}") from error

    def _look_at_files(self) -> set[str]:
        """Find the type of each column over all files; return the columns that have null."""
        fields = {name: self._field_of_folders(name) for name in self._of_folders}
        nullable = {name for name in fields if None in self._of_folders[name].values()}
        looks = of_files(self._look_at, self._paths)
        for path, (leaves, schema) in zip(self._paths, looks, strict=True):
            for name in self._columns:
                if name not in self._of_folders:
                    fields[name] = self._joined(path, schema, name, fields.get(name))
            for leaf in leaves:
                nullable.update(_top_level(leaf, schema.names))
        self._fields = fields
        return nullable

    def _look_at(self, path: str) -> tuple[list[str], pyarrow.Schema]:
        """Return the paths that may have null in a file, and its columns."""
        leaves = [leaf for leaf, may_be_null in read_footer(path) if may_be_null]
        file = self._open(path)
        groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
        # Some writers give a file without rows a row group, which has no statistics.
        if any(not group.num_rows for group in groups):
            footer = self._groups.footer(path)
            leaves = [leaf for leaf in leaves if any(n != 0 for n, _ in footer.nulls(leaf))]
        return leaves, file.schema_arrow

    def _field_of_folders(self, name: str) -> pyarrow.Field:
        is_text = any(isinstance(value, str) for value in self._of_folders[name].values())
        return self._arrow.field(name, self._arrow.string() if is_text else self._arrow.int64())

    def _joined(
        self, path: str, schema: pyarrow.Schema, name: str, before: pyarrow.Field | None
    ) -> pyarrow.Field:
        """Return the type that holds the values of a column in all files up to one."""
        index = schema.get_field_index(name)
        field = schema.field(index) if index >= 0 else None
        if field is not None and (before is None or field.type == before.type):
            return field
        joined = None
        if field is not None and before is not None:
            self._has_types = True
            # A file whose column is all null may have any type there, as writers choose one without
            # values.
            if self._is_all_null(path, name):
                return before
            if all(self._is_all_null(other, name) for other in self._before(path)):
                return field
            joined = joined_kind(self._arrow, before.type, field.type)
        if joined is None:
            found = "missing" if field is None else field.type
            first = self._schema.field(name).type
            raise DataError(
                f"{path}: column {name!r} is {found}, in {self._paths[0]} it is {first}; "
                "files of one data set have the same columns"
            )
        return self._arrow.field(name, joined)

    def _before(self, path: str) -> tuple[str, ...]:
        return self._paths[: self._paths.index(path)]

    def _is_all_null(self, path: str, name: str) -> bool:
        return all(nulls == num for nulls, num in self._groups.footer(path).nulls(name))


def import_pyarrow(what: str = "Parquet files") -> tuple[ModuleType, ModuleType]:
    """Import pyarrow and its Parquet part, which are an extra.

    Raises:
        ConfigError: They are not installed; `what` needs them.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{what} need pyarrow, which is not installed: {install('parquet')}"
        ) from error
    return pyarrow, pyarrow.parquet


def _ranges(path: str, ends: Sequence[int], least: int) -> Iterator[Shard]:
    """Yield the rows of consecutive row groups: one large group, or several small ones."""
    start = 0
    for end in ends:
        if end - start >= least:
            yield Shard(path, start, end)
            start = end
    if ends and start < ends[-1]:
        yield Shard(path, start, ends[-1])


def read_footer(path: str) -> list[tuple[str, bool]]:
    """Return the path of each column of a file, and whether it may have nulls.

    The library that decodes can end the process when it reads some footers, and it trusts their
    content. So each footer is read here first.

    Raises:
        DataError: It is not a Parquet file, or it is damaged or encrypted; names the column.
    """
    try:
        size = remote.size_of(path)
        end = remote.read_bytes(path, max(0, size - _END_BYTES), size)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    if end.endswith(b"PARE"):
        raise DataError(
            f"{path}: it is encrypted, and elasticdl has no keys; write it without encryption",
            is_certain=True,
        )
    num_bytes = int.from_bytes(end[:4], "little")
    if len(end) < _END_BYTES or not end.endswith(b"PAR1") or num_bytes + 12 > size:
        raise DataError(
            f"{path}: not a Parquet file, or cut short: its end is {end!r}, expected the length "
            "of the footer and PAR1",
            is_certain=True,
        )
    try:
        start = size - _END_BYTES - num_bytes
        return _core.parquet_footer(remote.read_bytes(path, start, size - _END_BYTES))
    except ValueError as error:
        raise DataError(f"{path}: {error}", is_certain=True) from None


def _top_level(path: str, columns: Sequence[str]) -> list[str]:
    """Return the column that a path is in; names of columns may have dots, as paths have."""
    if path in columns:
        return [path]
    return [name for name in columns if path.startswith(f"{name}.")]

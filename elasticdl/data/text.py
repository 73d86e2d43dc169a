"""Reads text files whose records are lines: CSV, or any other lines."""

from __future__ import annotations

import csv
import os
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np

from elasticdl._core import LineReader
from elasticdl.data import remote
from elasticdl.data.base import Metadata, Records
from elasticdl.data.copies import COMPRESSED_MAGICS, readable, said_of, unpacked_name
from elasticdl.data.csv_columns import CsvColumns
from elasticdl.data.files import FileReader
from elasticdl.data.params import Params
from elasticdl.errors import DataError
from elasticdl.job import Shard
from elasticdl.settings.reader_params import FLAG

_START_BYTES = 1 << 20


class TextReader(FileReader):
    """Reads lines, without the line feed (and carriage return) at their end.

    Args:
        paths: The files, in UTF-8 or another encoding with ASCII's line feed. Files that are
            compressed by gzip or zstd are unpacked first.
        skip_header: Whether the first line of each file names the columns and is no record.
        skip_blank: Whether lines without any bytes are no records.
        quoted_newlines: Whether a line feed between double quotes belongs to the record, as in RFC
            4180. Without it each line is a record, and a quoted line feed splits one in two.
        delimiter: The character between the fields of the header.
        column_names: The names of the columns, if there is no header.
        is_csv: Whether the lines have fields: they are UTF-8 without zero bytes, and names differ.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        skip_header: bool = False,
        skip_blank: bool = False,
        quoted_newlines: bool = False,
        delimiter: str = ",",
        column_names: Sequence[str] = (),
        is_csv: bool = False,
    ) -> None:
        def open_file(path: str) -> LineReader:
            copy = readable(path, by_content=True)
            with said_of(path):
                return LineReader(copy, skip_header, skip_blank, quoted_newlines)

        super().__init__(paths, open_file)
        self._open_lines = open_file
        self._delimiter = delimiter
        self._skip_header = skip_header
        self._column_names = tuple(column_names)
        self._is_csv = is_csv
        self._quoted_newlines = quoted_newlines
        if is_csv:
            _check_names(self._column_names, f"{FLAG}=columns={','.join(column_names)}")

    @classmethod
    def from_params(cls, paths: Sequence[str], params: Params, is_csv: bool) -> TextReader:
        """Make a reader from `--data_reader_params`; blank lines of CSV are skipped."""
        names = (remote.without_query(path).lower() for path in paths)
        is_tsv = all(unpacked_name(name).endswith(".tsv") for name in names)
        return cls(
            paths,
            skip_header=params.flag("skip_header", False),
            skip_blank=params.flag("skip_blank", is_csv),
            quoted_newlines=params.flag("quoted_newlines", False),
            delimiter=params.delimiter("\t" if is_tsv else ","),
            column_names=params.names("columns"),
            is_csv=is_csv,
        )

    @property
    def delimiter(self) -> str:
        """The character between the fields of a line."""
        return self._delimiter

    @property
    def has_header(self) -> bool:
        """Return whether the first line of each file names the columns."""
        return self._skip_header

    @property
    def metadata(self) -> Metadata:
        """The names of the columns: those that were given, or those of the first header."""
        if self._column_names or not self._skip_header:
            return Metadata(self._column_names, delimiter=self._delimiter)
        return Metadata(self._first_header[1], delimiter=self._delimiter)

    @cached_property
    def _first_header(self) -> tuple[str, tuple[str, ...]]:
        """The first file that is not empty, and its header."""
        headers = ((path, self._header(path)) for path in self._paths)
        return next((found for found in headers if found[1]), (self._paths[0], ()))

    def shards(self) -> list[Shard]:
        """List the files with their numbers of records.

        Raises:
            DataError: A file has another header than the first, or the given columns in another
                order.
        """
        # Files of one data set may have their columns in different orders, which no later step
        # would notice.
        if self._skip_header:
            first_path, first = self._first_header
            if self._column_names:
                _check_order(first_path, first, self._column_names)
            for path in self._paths[1:]:
                _check_header(path, self._header(path), first_path, first)
        return super().shards()

    def read(self, shard: Shard) -> Iterator[Records]:
        """Yield the lines of a shard, in order.

        Raises:
            DataError: The lines of CSV are not UTF-8; names line and column.
        """
        lines = self.columns() if self._is_csv else None
        for records in super().read(shard):
            if lines is not None:
                self._require_text(records, shard.name, lines)
            yield records

    def columns(self, missing: Iterable[str] = ()) -> CsvColumns:
        """Return the rule by which the lines become columns."""
        names = self.metadata.column_names
        return CsvColumns(names, self._delimiter, frozenset(missing), self.place)

    def place(self, name: str, record: int) -> str:
        """Return the place of a record in a file of this reader, for an error."""
        return f"line {self._open_lines(name).line_of(record)} (record {record})"

    def check_start(self) -> None:
        """Check the first MiB of each local file of CSV, before a job starts and lines are counted.

        The number of fields is checked if the columns have names. A line is wrong only if the
        number differs both with quotes and without: a `feed` may split lines in either way.

        Raises:
            DataError: A line does not parse; names file, line and column.
        """
        if not self._is_csv:
            return
        for path in self._paths:
            start = _start_of(path)
            if not start.values:
                continue
            names = self._column_names
            # With quoted line feeds the header may have several lines.
            if self._skip_header and not names and not self._quoted_newlines:
                names = self._names_in(start.values[0], path)
            lines = CsvColumns(names, self._delimiter, place=_line)
            self._require_text(start, path, lines)
            if len(names) > 1 and not self._quoted_newlines:
                lines.check(self._uneven(start, len(names) - 1), path)

    def _uneven(self, records: Records, num_delimiters: int) -> Records:
        """Return the lines with another number of delimiters, quoted ones counted too."""
        delimiter = self._delimiter.encode()
        first = int(self._skip_header)
        found = [
            number
            for number, line in enumerate(records.values)
            if number >= first and line and line.count(delimiter) != num_delimiters
        ]
        numbers = records.numbers[np.array(found, int)]
        return Records(values=[records.values[number] for number in found], order=numbers)

    def _require_text(self, records: Records, source: str, lines: CsvColumns) -> None:
        joined = b"\n".join(records.values)
        if joined.isascii() and b"\0" not in joined:
            return
        try:
            joined.decode()
            wrong, what = joined.find(b"\0"), "a zero byte"
        except UnicodeDecodeError as error:
            wrong, what = error.start, f"the byte 0x{joined[error.start]:02x}"
        if wrong < 0:
            return
        ends = np.cumsum([len(line) + 1 for line in records.values])
        line = int(np.searchsorted(ends, wrong, side="right"))
        line_start = int(ends[line]) - len(records.values[line]) - 1
        record = int(records.numbers[line])
        field = joined.count(self._delimiter.encode(), line_start, wrong)
        column = repr(lines.names[field]) if field < len(lines.names) else f"number {field + 1}"
        raise DataError(
            f"{source}: {lines.place(source, record)}, column {column}: {_no_utf_8(what)}", record
        )

    def _header(self, path: str) -> tuple[str, ...]:
        header = self._open_lines(path).header
        if header is None:
            return ()
        return self._names_in(header, path)

    def _names_in(self, header: bytes, path: str) -> tuple[str, ...]:
        try:
            lines = csv.reader([header.decode()], delimiter=self._delimiter, strict=self._is_csv)
            names = tuple(next(lines, []))
        except UnicodeDecodeError as error:
            what = f"the byte 0x{header[error.start]:02x}"
            raise DataError(f"{path}: its header line: {_no_utf_8(what)}") from error
        except csv.Error as error:
            has_cr = b"\r" in header
            what = "lines end with CR alone, expected LF or CR LF" if has_cr else str(error)
            raise DataError(f"{path}: its header line does not parse: {what}") from error
        if self._is_csv and not self._column_names:
            _check_names(names, f"{path}: line 1")
        return names


def _line(path: str, number: int) -> str:
    return f"line {number}"


def _start_of(path: str) -> Records:
    """Return the first lines of a local file, with their line numbers."""
    if remote.is_url(path) or not os.path.isfile(path):
        return Records()
    with open(path, "rb") as file:
        start = file.read(_START_BYTES)
    if start.startswith(COMPRESSED_MAGICS):
        return Records()
    # The last line may be cut off, so it is not checked.
    if len(start) == _START_BYTES:
        start = start[: start.rfind(b"\n") + 1]
    values = [line.removesuffix(b"\r") for line in start.removeprefix(BOM_UTF8).split(b"\n")]
    return Records(1, values=values)


def _no_utf_8(what: str) -> str:
    return f"expected UTF-8, found {what}; convert the file, for example by iconv --to-code=UTF-8"


def _check_names(names: Sequence[str], where: str) -> None:
    """Refuse two columns of one name, since the name would not tell which one is meant."""
    for number, name in enumerate(names):
        first = names.index(name)
        if first != number:
            raise DataError(
                f"{where}: columns {first + 1} and {number + 1} are both called {name!r}; name "
                "them by --data_reader_params=columns=a,b,c (with skip_header=true if the first "
                "line has names)"
            )


def _check_order(path: str, header: tuple[str, ...], names: tuple[str, ...]) -> None:
    """Refuse given names that are those of the header in another order."""
    if header != names and sorted(header) == sorted(names):
        raise DataError(
            f"{path}: its header is {','.join(header)}, and {FLAG} says "
            f"columns={','.join(names)}: the same columns in another order, so values would have "
            "other names; leave columns= out, and the header names them"
        )


def _check_header(
    path: str, header: tuple[str, ...], first_path: str, first: tuple[str, ...]
) -> None:
    if header and first and header != first:
        raise DataError(
            f"{path}: its header is {','.join(header)}, that of {first_path} is "
            f"{','.join(first)}; files of one data set have the same columns"
        )

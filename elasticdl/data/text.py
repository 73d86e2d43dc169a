"""Text files whose records are lines: CSV, or anything else."""

from __future__ import annotations

import csv
from collections.abc import Sequence

from elasticdl._core import LineReader
from elasticdl.data.base import Metadata
from elasticdl.data.copies import readable, unpacked_name
from elasticdl.data.files import FileReader
from elasticdl.data.params import Params
from elasticdl.errors import DataError
from elasticdl.job import Shard


class TextReader(FileReader):
    """Reads lines, without the line feed (and carriage return) at their end.

    Args:
        paths: The files, in UTF-8 or any encoding that has ASCII's line feed. Those compressed by
            gzip or zstd are unpacked first.
        skip_header: The first line of each file names the columns and is no record.
        skip_blank: Lines without any bytes are no records.
        quoted_newlines: A line feed between double quotes belongs to the record, as RFC 4180 has
            it. Without it each line is a record, and a quoted line feed splits one in two.
        delimiter: What is between the fields of the header.
        column_names: The names of the columns, where no header says them.
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
    ) -> None:
        def open_file(path: str) -> LineReader:
            return LineReader(
                readable(path, by_content=True), skip_header, skip_blank, quoted_newlines
            )

        super().__init__(paths, open_file)
        self._open_lines = open_file
        self._delimiter = delimiter
        self._skip_header = skip_header
        self._column_names = tuple(column_names)

    @classmethod
    def from_params(cls, paths: Sequence[str], params: Params, is_csv: bool) -> TextReader:
        """Make a reader from `--data_reader_params`; blank lines of CSV are skipped."""
        is_tsv = all(unpacked_name(path).endswith(".tsv") for path in paths)
        return cls(
            paths,
            skip_header=params.flag("skip_header", False),
            skip_blank=params.flag("skip_blank", is_csv),
            quoted_newlines=params.flag("quoted_newlines", False),
            delimiter=params.delimiter("\t" if is_tsv else ","),
            column_names=params.names("columns"),
        )

    @property
    def delimiter(self) -> str:
        """What is between the fields of a line."""
        return self._delimiter

    @property
    def has_header(self) -> bool:
        """Whether the first line of each file names the columns."""
        return self._skip_header

    @property
    def metadata(self) -> Metadata:
        """The names of the columns, as given or as the first file's header says."""
        if self._column_names or not self._skip_header:
            return Metadata(self._column_names, delimiter=self._delimiter)
        return Metadata(self._header(self._paths[0]), delimiter=self._delimiter)

    def shards(self) -> list[Shard]:
        """List the files with their numbers of records.

        Raises:
            DataError: A file has another header than the first.
        """
        if self._skip_header:
            first = self._header(self._paths[0])
            for path in self._paths[1:]:
                _check_header(path, self._header(path), self._paths[0], first)
        return super().shards()

    def _header(self, path: str) -> tuple[str, ...]:
        header = self._open_lines(path).header
        if header is None:
            return ()
        try:
            return tuple(next(csv.reader([header.decode()], delimiter=self._delimiter), []))
        except (UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"{path}: its header line does not parse: {error}") from error


def _check_header(
    path: str, header: tuple[str, ...], first_path: str, first: tuple[str, ...]
) -> None:
    if header and first and header != first:
        raise DataError(
            f"{path}: its header is {','.join(header)}, that of {first_path} is "
            f"{','.join(first)}; files of one data set have the same columns"
        )

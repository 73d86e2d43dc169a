"""LIBSVM files: lines of a label and `index:value` pairs, as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from elasticdl._core import LineReader, parse_libsvm
from elasticdl.data.base import Metadata, Records
from elasticdl.data.copies import readable
from elasticdl.data.files import FileReader
from elasticdl.errors import DataError
from elasticdl.job import Shard

_METADATA = Metadata(
    ("label", "ids", "values"),
    {"label": np.dtype(np.float32), "ids": np.dtype(object), "values": np.dtype(object)},
)


class LibsvmReader:
    """Reads `label index:value index:value ...`; ignores blank lines and text after a `#`.

    Numbers are read by the rule of `docs/data.md`.

    A record has `label` (float32) and its features: `ids` (int64, shape (n,)) and `values`
    (float32, shape (n,)), in the order of the line.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        def open_file(path: str) -> LineReader:
            return LineReader(readable(path, by_content=True), skip_blank=True)

        self._lines = FileReader(paths, open_file)
        self._open_lines = open_file

    @property
    def metadata(self) -> Metadata:
        """The three columns."""
        return _METADATA

    def shards(self) -> list[Shard]:
        """List the files with their numbers of lines."""
        return self._lines.shards()

    def read(self, shard: Shard) -> Iterator[Records]:
        """Yield the records of a shard.

        Raises:
            DataError: A line does not parse.
        """
        for records in self._lines.read(shard):
            try:
                labels, ends, ids, values = parse_libsvm(records.values)
            except ValueError as error:
                line, _, what = error.args
                record = int(records.numbers[line])
                place = self.place(shard.name, record)
                raise DataError(f"{shard.name}: {place}: {what}", record) from None
            columns = {"label": labels, "ids": _rows(ids, ends), "values": _rows(values, ends)}
            yield Records(records.start, columns=columns)

    def place(self, name: str, record: int) -> str:
        """Return the place of a record in a file of this reader, for an error."""
        return f"line {self._open_lines(name).line_of(record)} (record {record})"


def _rows(values: NDArray[np.generic], ends: NDArray[np.int64]) -> NDArray[np.object_]:
    rows = np.split(values, ends[:-1])
    out = np.empty(len(rows), dtype=object)
    for number, row in enumerate(rows):
        out[number] = row
    return out

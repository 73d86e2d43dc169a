"""Turns lines of CSV into typed columns, by the one rule of `docs/data.md`; Rust reads values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from elasticdl._core import CsvFields, check_csv
from elasticdl.data.base import DataReader, Records, chunks_of
from elasticdl.data.in_order import in_order
from elasticdl.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow


KINDS = ("int64", "float", "bytes")  # each can hold what those before it can
_WIDENING = ("int64", "large", "float", "bytes")


def require_names(names: Sequence[str]) -> None:
    """Refuse two columns of one name, and a column without a name.

    Raises:
        DataError: Two are the same, or one is empty.
    """
    for number, name in enumerate(names, 1):
        if not name.strip() or names.index(name) != number - 1:
            what = f"is called {name!r} as an earlier one is" if name.strip() else "has no name"
            raise DataError(
                f"column {number} of {len(names)} ({','.join(names)}) {what}; name them by "
                "--data_reader_params=columns=a,b,c (with skip_header=true if the first line "
                "has names)"
            )


def require_kinds(
    kinds: Mapping[str, str], names: Sequence[str], known: Sequence[str] = KINDS
) -> None:
    """Refuse kinds of `--types` that are unknown, or belong to no column.

    Raises:
        ConfigError: Names the first such kind.
    """
    for name, kind in kinds.items():
        if name not in names or kind not in known:
            raise ConfigError(
                f"--types: {name}={kind}: expected a column ({', '.join(names)}) and "
                f"a type ({', '.join(known)})"
            )


@dataclass(frozen=True, slots=True)
class CsvColumns:
    """The rule by which lines become columns.

    names: The names of the columns, in the order of the line's fields.
    missing: Fields that stand for no value in a column of numbers. In a column of text they are
        words.
    place: Returns the place of a record in a file, such as "line 3".
    """

    names: tuple[str, ...]
    delimiter: str
    missing: frozenset[str] = field(default=frozenset())
    place: Callable[[str, int], str] = lambda source, number: f"record {number}"

    def fields(self, records: Records, source: str) -> CsvFields:
        """Split the lines of a chunk.

        Raises:
            DataError: A line does not parse; names file, line and column.
        """
        try:
            return CsvFields(records.values, self.delimiter_byte, len(self.names))
        except ValueError as error:
            self._refuse(error, records, source)

    def check(
        self,
        records: Records,
        source: str,
        numbers: Mapping[str, str] | None = None,
        required: Sequence[str] = (),
    ) -> None:
        """Check that lines parse, and that some columns are numbers.

        Args:
            records: The lines.
            source: The file of the lines.
            numbers: Names of columns, with the kind of their numbers: int64, float, float32.
            required: Names of columns that have a value in each record.

        Raises:
            DataError: A line does not parse; names file, line and column, and has the record.
        """
        kinds = [(numbers or {}).get(name) for name in self.names]
        places = [self.names.index(name) for name in required]
        missing = self._missing()
        try:
            check_csv(records.values, self.delimiter_byte, len(kinds), kinds, missing, places)
        except ValueError as error:
            self._refuse(error, records, source)

    def kinds(self, fields: CsvFields) -> list[str]:
        """Return the narrowest kind that holds the values of each column."""
        missing = self._missing()
        return [fields.kind(n, missing) or _WIDENING[0] for n in range(len(self.names))]

    def typed(
        self, fields: CsvFields, kinds: Mapping[str, str], records: Records, source: str
    ) -> dict[str, ArrayLike]:
        """Return the columns as numbers and text; a missing number, or NaN, is None.

        Raises:
            DataError: A field is no number, in a column of numbers.
        """
        columns: dict[str, ArrayLike] = {}
        for number, name in enumerate(self.names):
            if kinds[name] == "bytes":
                data, offsets = fields.text(number)
                ends = offsets.tolist()
                columns[name] = [data[a:b] for a, b in pairwise(ends)]
                continue
            values, present = self._numbers(fields, number, kinds[name], records, source)
            if not present.all():
                values = values.astype(object)
                values[~present] = None
            columns[name] = values
        return columns

    def arrow(
        self,
        arrow: ModuleType,
        fields: CsvFields,
        kinds: Mapping[str, str],
        records: Records,
        source: str,
    ) -> dict[str, object]:
        """Return the columns as arrays of Arrow; a missing number, or NaN, is null."""
        columns = {}
        for number, name in enumerate(self.names):
            if kinds[name] == "bytes":
                data, offsets = fields.text(number)
                buffers = [None, arrow.py_buffer(offsets), arrow.py_buffer(data)]
                array = arrow.Array.from_buffers(arrow.large_string(), len(offsets) - 1, buffers)
                columns[name] = array.cast(arrow.string())
            else:
                values, present = self._numbers(fields, number, kinds[name], records, source)
                columns[name] = arrow.array(values, mask=~present)
        return columns

    def _numbers(
        self, fields: CsvFields, number: int, kind: str, records: Records, source: str
    ) -> tuple[pyarrow.Array, pyarrow.Array]:
        try:
            values, present = fields.numbers(number, kind, self._missing())
        except ValueError as error:
            self._refuse(error, records, source)
        return values, present & ~np.isnan(values) if kind != "int64" else present

    def _missing(self) -> list[bytes]:
        return [word.encode() for word in self.missing]

    @property
    def delimiter_byte(self) -> int:
        """The byte between two fields.

        Raises:
            ConfigError: The delimiter is not one byte.
        """
        # Rust splits lines at one byte.
        encoded = self.delimiter.encode()
        if len(encoded) != 1:
            raise ConfigError(f"delimiter={self.delimiter}: expected a character of ASCII")
        return encoded[0]

    def _refuse(self, error: ValueError, records: Records, source: str) -> NoReturn:
        line, number, what = error.args
        record = int(records.numbers[line])
        column = "" if number is None else f", column {self._name(number)}"
        named = "" if number is not None else f" ({', '.join(self.names)})"
        raise DataError(
            f"{source}: {self.place(source, record)}{column}: {what}{named}", record
        ) from None

    def _name(self, number: int) -> str:
        return repr(self.names[number]) if number < len(self.names) else f"number {number + 1}"


def find_kinds(
    reader: DataReader,
    lines: CsvColumns,
    num_threads: int,
    on_progress: Callable[[int], None] = lambda count: None,
) -> dict[str, str]:
    """Return the narrowest kind of each column that holds all its values; reads all records.

    Raises:
        DataError: A line does not parse.
    """

    def kinds(chunk: tuple[Records, str]) -> tuple[list[str], int]:
        return lines.kinds(lines.fields(*chunk)), len(chunk[0])

    widest = [_WIDENING[0]] * len(lines.names)
    with ThreadPoolExecutor(num_threads, "kinds") as pool:
        # Any order would do for the kinds, but an error must name the first bad line.
        for found, count in in_order(pool, kinds, chunks_of(reader)):
            pairs = zip(found, widest, strict=True)
            widest = [max(pair, key=_WIDENING.index) for pair in pairs]
            on_progress(count)
    # Ids that are too large for int64 become text: as floats, several ids would become one.
    kinds_found = ["bytes" if kind == "large" else kind for kind in widest]
    return dict(zip(lines.names, kinds_found, strict=True))

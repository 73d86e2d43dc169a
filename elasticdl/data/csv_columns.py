"""Lines of CSV to columns with types, for `elasticdl data convert --as example`."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from elasticdl.data.base import Records
from elasticdl.errors import DataError

KINDS = ("int64", "float", "bytes")  # each can hold what those before it can


def require_names(names: Sequence[str]) -> None:
    """Refuse names of columns of which one would hide another, or that say nothing.

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


@dataclass(frozen=True, slots=True)
class CsvColumns:
    """How lines become columns.

    names: of the columns, in the order of the line's fields.
    missing: fields that stand for no value in a column of numbers.
    """

    names: tuple[str, ...]
    delimiter: str
    missing: frozenset[str]

    def parse(self, records: Records, source: str) -> dict[str, list[str]]:
        """Split the lines of a chunk.

        Raises:
            DataError: A line is not UTF-8, or has another number of fields; names it.
        """
        rows = list(self._rows(records, source))
        for number, row in enumerate(rows, records.start):
            if len(row) != len(self.names):
                raise DataError(
                    f"{source}: record {number} has {len(row)} fields, expected "
                    f"{len(self.names)} ({', '.join(self.names)})"
                )
        fields = zip(*rows, strict=True) if rows else ([] for _ in self.names)
        return {name: list(values) for name, values in zip(self.names, fields, strict=True)}

    def _rows(self, records: Records, source: str) -> Iterable[list[str]]:
        for number, line in enumerate(records.values, records.start):
            try:
                rows = list(csv.reader([line.decode()], delimiter=self.delimiter, strict=True))
            except UnicodeDecodeError as error:
                raise DataError(f"{source}: record {number} is not UTF-8: {error}") from error
            except csv.Error as error:
                raise DataError(
                    f"{source}: record {number} does not parse: {error}; if its fields have "
                    "line feeds, give --data_reader_params=quoted_newlines=true"
                ) from error
            yield rows[0] if rows else []

    def kinds(self, columns: Mapping[str, Sequence[str]], known: dict[str, str]) -> dict[str, str]:
        """Widen the kinds known so far to hold these values, too."""
        return {
            name: self._kind(values, known.get(name, KINDS[0])) for name, values in columns.items()
        }

    def _kind(self, values: Sequence[str], kind: str) -> str:
        present = [value for value in values if value not in self.missing]
        for wider in KINDS[KINDS.index(kind) :]:
            if wider == "bytes" or _numbers(present, wider) is not None:
                return "bytes" if wider == "float" and _are_large_ids(present) else wider
        raise AssertionError("bytes hold everything")

    def typed(
        self, columns: Mapping[str, list[str]], kinds: Mapping[str, str], first: int, source: str
    ) -> dict[str, ArrayLike]:
        """Return the columns as numbers and text; a number that is missing is None.

        Raises:
            DataError: A field is no number, in a column that is said to have them.
        """
        return {
            name: self._typed(name, values, kinds[name], first, source)
            for name, values in columns.items()
        }

    def _typed(self, name: str, values: list[str], kind: str, first: int, source: str) -> ArrayLike:
        if kind == "bytes":
            return values
        are_present = [value not in self.missing for value in values]
        if all(are_present):
            numbers = _numbers(values, kind)
            if numbers is not None:
                return numbers
        out: list[Any] = [None] * len(values)
        for number, (value, is_present) in enumerate(zip(values, are_present, strict=True)):
            if is_present:
                parsed = _numbers([value], kind)
                if parsed is None:
                    raise DataError(
                        f"{source}: record {first + number}, column {name!r}: expected {kind}, "
                        f"found {value!r}"
                    )
                out[number] = parsed[0]
        column = np.empty(len(out), dtype=object)
        column[:] = out
        return column


def _are_large_ids(values: Sequence[str]) -> bool:
    """Tell whole numbers, such as ids, of which int64 does not hold all, and float none exactly."""
    digits = [value[1:] if value[:1] in ("+", "-") else value for value in values]
    return all(map(str.isdecimal, digits)) and _numbers(values, "int64") is None


def _numbers(values: Sequence[str], kind: str) -> np.ndarray[Any, Any] | None:
    """Parse all values, or none."""
    try:
        return np.asarray(values, dtype=str).astype(np.int64 if kind == "int64" else np.float64)
    except (ValueError, OverflowError):
        return None

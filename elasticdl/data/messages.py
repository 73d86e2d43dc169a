"""Messages of a topic to records, by their format: lines of CSV, JSON, Arrow, `tf.train.Example`s.

A message that is not of its format is unreadable. Which ones are so depends on their bytes alone,
so every process that reads them finds the same.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from elasticdl._core import check_csv, decode_examples
from elasticdl.data import arrow_messages
from elasticdl.data.base import Metadata, Records, Unreadable
from elasticdl.data.csv_columns import KINDS, CsvColumns, require_names
from elasticdl.data.params import Params
from elasticdl.data.strings import Column
from elasticdl.errors import ConfigError, DataError

_FORMATS = ("bytes", "csv", "json", "arrow", "example")
_OF_COLUMNS = ("csv", "json", "arrow")
_MISSING = [b""]
_NUMPY = {"int64": np.dtype(np.int64), "float": np.dtype(np.float64), "bytes": np.dtype(object)}
_SHOWN_CHARACTERS = 60

Parsed = tuple[Mapping[str, Column], Mapping[int, str]]
"""Columns, if the format has any, and why messages are not readable, by their place; then the
columns lack these."""


@dataclass(frozen=True, slots=True)
class Format:
    """How messages become records.

    parse: gives columns of messages, or none where a record is the message itself.
    parse_many: the same where each message has any number of records: says how many.
    """

    metadata: Metadata
    parse: Callable[[Sequence[bytes]], Parsed] = lambda values: ({}, {})
    parse_many: Callable[[Sequence[bytes]], arrow_messages.Table] | None = None

    def records(self, values: list[bytes], positions: list[int], time: float = 0.0) -> Records:
        """Return the records of messages; what is not readable is beside them.

        Args:
            values: Of the messages.
            positions: Where they are.
            time: Of the last one, in seconds since 1970; 0: it is not known.
        """
        counts: Sequence[int] | None = None
        if self.parse_many is not None:
            columns, why, counts = self.parse_many(values)
        else:
            columns, why = self.parse(values)
        bad = tuple(Unreadable(positions[i], words, values[i]) for i, words in sorted(why.items()))
        if bad:
            good = [i for i in range(len(values)) if i not in why]
            values, positions = [values[i] for i in good], [positions[i] for i in good]
        order = np.array(positions, np.int64)
        return Records(
            positions[0] if positions else 0,
            [] if columns else values,
            columns if positions else {},
            order if counts is None else np.repeat(order, counts),
            bad,
            time,
        )


def format_of(params: Params) -> Format:
    """Return the format that the settings of a reader ask for.

    Raises:
        ConfigError: There is none of that name, or it needs columns.
    """
    name = params.text("format", "bytes")
    if name not in _FORMATS:
        raise ConfigError(f"format={name}: messages are one of {', '.join(_FORMATS)}")
    kinds = _kinds(params.names("columns"))
    metadata = Metadata(tuple(kinds), delimiter=params.delimiter(","))
    if name not in _OF_COLUMNS and set(kinds.values()) - {"bytes"}:
        raise ConfigError(f"columns=...: format={name} has no kinds of columns: give their names")
    if name in _OF_COLUMNS and not kinds:
        raise ConfigError(
            f"format={name} needs the columns: expected columns=NAME,NAME:KIND,..., each KIND one "
            f"of {', '.join(KINDS)} (bytes, if none is given, which are text)"
        )
    if name == "csv":
        return Format(metadata, _csv(metadata, kinds))
    typed = Metadata(metadata.column_names, {n: _NUMPY[kind] for n, kind in kinds.items()})
    if name == "json":
        return Format(typed, _json(kinds))
    if name == "arrow":
        return Format(typed, parse_many=arrow_messages.parser(kinds))
    return Format(metadata, _examples) if name == "example" else Format(metadata)


def _kinds(columns: Sequence[str]) -> dict[str, str]:
    """Return the kind of each column, of `name` or `name:kind`."""
    found: dict[str, str] = {}
    pairs = [_name_and_kind(column) for column in columns if column]
    try:
        require_names([name for name, _ in pairs])
    except DataError as error:
        raise ConfigError(f"columns={','.join(columns)}: {error}") from error
    found.update(pairs)
    return found


def _name_and_kind(column: str) -> tuple[str, str]:
    name, colon, kind = column.rpartition(":")
    if not colon:
        return column, "bytes"
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(
            f"columns={column}: {kind!r} is no kind: expected {', '.join(KINDS)}{hint}"
        )
    return name, kind


# --- CSV -----------------------------------------------------------------------------------------


def _csv(metadata: Metadata, kinds: Mapping[str, str]) -> Callable[[Sequence[bytes]], Parsed]:
    delimiter = CsvColumns(metadata.column_names, metadata.delimiter).delimiter_byte
    numbers = [None if kind == "bytes" else kind for kind in kinds.values()]

    def parse(values: Sequence[bytes]) -> Parsed:
        why: dict[int, str] = {}
        try:
            check_csv(values, delimiter, len(numbers), numbers, _MISSING, [])
        except ValueError:
            for place, value in enumerate(values):
                try:
                    check_csv([value], delimiter, len(numbers), numbers, _MISSING, [])
                except ValueError as error:
                    _, number, what = error.args
                    column = "" if number is None else _column(metadata.column_names, number)
                    why[place] = f"{column}{what}"
        return {}, why

    return parse


def _column(names: Sequence[str], number: int) -> str:
    return f"column {names[number]!r}: " if number < len(names) else f"field {number + 1}: "


# --- JSON ----------------------------------------------------------------------------------------


def _json(kinds: Mapping[str, str]) -> Callable[[Sequence[bytes]], Parsed]:
    def parse(values: Sequence[bytes]) -> Parsed:
        rows: list[Mapping[str, Any]] = []
        why: dict[int, str] = {}
        for place, value in enumerate(values):
            try:
                rows.append(_object(value))
            except (ValueError, RecursionError) as error:
                why[place] = f"no JSON object: {error}"
        if not why:
            columns = _columns(rows, kinds)
            if columns is not None:
                return columns, why
        return _one_by_one(values, kinds)

    return parse


def _one_by_one(values: Sequence[bytes], kinds: Mapping[str, str]) -> Parsed:
    rows: list[dict[str, Any]] = []
    why: dict[int, str] = {}
    for place, value in enumerate(values):
        try:
            row = _object(value)
        except (ValueError, RecursionError) as error:
            why[place] = f"no JSON object: {error}"
            continue
        try:
            rows.append({name: _typed(row.get(name), kind, name) for name, kind in kinds.items()})
        except ValueError as error:
            why[place] = str(error)
    return {name: _array([row[name] for row in rows], kind) for name, kind in kinds.items()}, why


def _object(value: bytes) -> dict[str, Any]:
    found = _DECODER.decode(value.decode())
    if not isinstance(found, dict):
        raise ValueError(f"expected an object, found {_shown(found)}")
    return found


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


_DECODER = json.JSONDecoder(
    parse_constant=_refuse_constant
)  # to make one takes as long as to use it


def _columns(
    rows: Sequence[Mapping[str, Any]], kinds: Mapping[str, str]
) -> dict[str, Column] | None:
    """Return the columns of objects; None if a value is not as its column usually has it."""
    columns: dict[str, Column] = {}
    for name, kind in kinds.items():
        values = [row.get(name) for row in rows]
        if not set(map(type, values)) <= _USUAL[kind]:
            return None
        try:
            columns[name] = _array(values, kind)
        except (OverflowError, UnicodeEncodeError):
            return None
        if kind == "float" and not np.isfinite(columns[name]).all():
            return None
    return columns


_USUAL: dict[str, set[type]] = {"int64": {int}, "float": {int, float}, "bytes": {str}}
"""Types of values that need no look at each."""


def _array(values: Sequence[Any], kind: str) -> Column:
    array = np.empty(len(values), _NUMPY[kind])
    if kind == "bytes":
        "".join(values).encode()  # what no UTF-8 has
    array[:] = values
    return array


def _typed(value: Any, kind: str, name: str) -> Any:
    """Return a value as its column has it.

    Raises:
        ValueError: It is of another kind.
    """
    if kind == "int64":
        if type(value) is int and -(2**63) <= value < 2**63:
            return value
        raise ValueError(f"{name!r}: expected a whole number of int64, found {_shown(value)}")
    if kind == "float":
        return _real(value, name)
    if value is None:
        return ""
    if isinstance(value, str | bool | int | float):
        word = str(value)
        try:
            word.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{name!r}: {_shown(value)} is no text: {error.reason}") from error
        return word
    raise ValueError(f"{name!r}: expected text, found {_shown(value)}")


def _real(value: Any, name: str) -> float:
    if value is None:
        return math.nan
    try:
        if type(value) in (int, float) and math.isfinite(number := float(value)):
            return number
    except OverflowError:
        pass
    raise ValueError(f"{name!r}: expected a number of float64, found {_shown(value)}")


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    words = repr(value)
    return words if len(words) <= _SHOWN_CHARACTERS else f"{words[:_SHOWN_CHARACTERS]}..."


# --- tf.train.Example ----------------------------------------------------------------------------


def _examples(values: Sequence[bytes]) -> Parsed:
    why: dict[int, str] = {}
    try:
        decode_examples(values, [])
    except ValueError:
        for place, value in enumerate(values):
            try:
                decode_examples([value], [])
            except ValueError as error:
                why[place] = f"no tf.train.Example: {str(error).removeprefix('record 0: ')}"
    return {}, why

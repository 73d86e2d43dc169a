"""Turns blocks of lines into columns, and reports the lines that are not records."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv

from elasticdl.data.lines.schema import LEFT_OUT, Kind, Schema
from elasticdl.data.lines.source import Block

_SHOWN_BYTES = 40
_CATEGORY_BYTES = 8
_INTEGER_DIGITS = 18
_TO_ASCII = bytes(range(128)) + b"?" * 128


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no record, with the reason."""

    path: str
    number: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: line {self.number}: {self.reason}"


@dataclass(frozen=True, slots=True)
class ParsedBlock:
    """The records of a block.

    rows: The number of each record's line, counted over all files, shape (n,).
    """

    table: pa.Table
    rows: NDArray[np.int64]
    bad: list[BadLine]
    num_bytes: int


def parse(block: Block, schema: Schema) -> ParsedBlock:
    """Make columns of the lines that are records, in the order of `schema.kinds`."""
    bad: dict[int, str] = {}  # by the number of the line in the block, from 0
    # Fields have only ASCII bytes, and the parser reports bad rows only in UTF-8.
    text = block.lines if block.lines.isascii() else block.lines.translate(_TO_ASCII)
    text = _without_lone_returns(text, bad)
    table = _split(text, schema, bad)
    numbers = np.delete(np.arange(block.num_lines), sorted(bad))
    columns = []
    is_good = np.ones(len(numbers), dtype=bool)
    for name, kind in schema.kinds.items():
        fields = _one_array(table.column(name))
        column, wrong = _TYPED[kind](fields)
        for row in np.flatnonzero(wrong):
            reason = _REASONS[kind].format(name=name, found=_shown(fields[row].as_py()))
            bad.setdefault(int(numbers[row]), reason)
        is_good &= ~wrong
        columns.append(column)
    out = pa.table(columns, names=list(schema.kinds))
    if not is_good.all():
        out, numbers = out.filter(pa.array(is_good)), numbers[is_good]
    bad_lines = [BadLine(block.path, block.first_line + n, bad[n]) for n in sorted(bad)]
    return ParsedBlock(out, numbers + block.first_row, bad_lines, block.num_bytes)


def _split(text: bytes, schema: Schema, bad: dict[int, str]) -> pa.Table:
    """Split lines into fields of bytes; leave out lines with another number of fields."""
    skipped: list[csv.InvalidRow] = []

    def skip(row: csv.InvalidRow) -> str:
        skipped.append(row)
        return "skip"

    names = [f"-{n}" if name == LEFT_OUT else name for n, name in enumerate(schema.fields)]
    kept = list(schema.kinds)
    if not text:
        return pa.table({name: pa.array([], pa.binary()) for name in kept})
    table = csv.read_csv(
        pa.BufferReader(text),
        csv.ReadOptions(use_threads=False, column_names=names, block_size=len(text) + 1),
        csv.ParseOptions(
            delimiter=schema.delimiter,
            quote_char=False,
            ignore_empty_lines=False,
            invalid_row_handler=skip,
        ),
        csv.ConvertOptions(
            column_types=dict.fromkeys(kept, pa.binary()),
            include_columns=kept,
            null_values=[""],
            strings_can_be_null=True,
        ),
    )
    # Row numbers are line numbers only while no line is missing from the text.
    at = np.delete(np.arange(table.num_rows + len(skipped) + len(bad)), sorted(bad))
    for row in skipped:
        bad[int(at[row.number - 1])] = (
            f"expected {row.expected_columns} fields, found {row.actual_columns}"
        )
    return table


def _without_lone_returns(text: bytes, bad: dict[int, str]) -> bytes:
    """Leave out lines with a carriage return inside: the parser would end the line there."""
    if b"\r" not in text or text.count(b"\r") == text.count(b"\r\n"):
        return text
    kept = []
    for number, line in enumerate(text.split(b"\n")):
        if b"\r" in line[:-1]:
            bad[number] = "a carriage return inside the line"
        else:
            kept.append(line)
    return b"\n".join(kept)


def _one_array(column: pa.ChunkedArray) -> pa.BinaryArray:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _label(fields: pa.BinaryArray) -> tuple[pa.Array, NDArray[np.bool_]]:
    is_right = pc.fill_null(pc.is_in(fields, value_set=pa.array([b"0", b"1"])), False)
    is_one = pc.equal(fields, pa.scalar(b"1", fields.type))
    return pc.cast(is_one, pa.int64()), ~np.asarray(is_right)


def _integers(fields: pa.BinaryArray) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Parse whole numbers; fields that all look right are checked together, without a regex."""
    text = fields.view(pa.string())
    if not (_made_of(fields, b"0123456789-") and _longest(fields) <= _INTEGER_DIGITS):
        return _checked_integers(text)
    try:
        return text.cast(pa.int64()), np.zeros(len(fields), dtype=bool)
    except pa.ArrowInvalid:
        return _checked_integers(text)


def _checked_integers(text: pa.StringArray) -> tuple[pa.Array, NDArray[np.bool_]]:
    wrong = _not_matching(text, f"^-?[0-9]{{1,{_INTEGER_DIGITS}}}$")
    return pc.if_else(pa.array(wrong), None, text).cast(pa.int64()), wrong


def _categories(fields: pa.BinaryArray) -> tuple[pa.Array, NDArray[np.bool_]]:
    text = fields.view(pa.string())
    starts = _offsets(fields)
    lengths = np.diff(starts)
    has_right_lengths = bool(((lengths == _CATEGORY_BYTES) | (lengths == 0)).all())
    if has_right_lengths and _made_of(fields, b"0123456789abcdefABCDEF"):
        return text, np.zeros(len(fields), dtype=bool)
    wrong = _not_matching(text, f"^[0-9a-fA-F]{{{_CATEGORY_BYTES}}}$")
    return pc.if_else(pa.array(wrong), None, text), wrong


def _not_matching(text: pa.StringArray, pattern: str) -> NDArray[np.bool_]:
    matches = pc.match_substring_regex(text.view(pa.binary()), pattern)
    return ~np.asarray(pc.fill_null(matches, True))


def _offsets(fields: pa.BinaryArray) -> NDArray[np.int32]:
    all_offsets = np.frombuffer(fields.buffers()[1], dtype=np.int32)
    return all_offsets[fields.offset : fields.offset + len(fields) + 1]


def _made_of(fields: pa.BinaryArray, allowed: bytes) -> bool:
    """Tell whether the fields have only these bytes."""
    data = fields.buffers()[2]
    if data is None or len(fields) == 0:
        return True
    offsets = _offsets(fields)
    text = memoryview(data)[offsets[0] : offsets[-1]]
    return not bytes(text).translate(None, delete=allowed)


def _longest(fields: pa.BinaryArray) -> int:
    return int(np.diff(_offsets(fields)).max(initial=0))


def _shown(field: bytes | None) -> str:
    if field is None:
        return "nothing"
    text = re.sub(r"^b", "", repr(field[:_SHOWN_BYTES]))
    return text if len(field) <= _SHOWN_BYTES else f"{text}..."


_TYPED: dict[Kind, Callable[[pa.BinaryArray], tuple[pa.Array, NDArray[np.bool_]]]] = {
    "label": _label,
    "integer": _integers,
    "category": _categories,
}
_REASONS: dict[Kind, str] = {
    "label": "column {name}: expected 0 or 1, found {found}",
    "integer": f"column {{name}}: expected a whole number of at most {_INTEGER_DIGITS} digits, "
    "or nothing, found {found}",
    "category": f"column {{name}}: expected {_CATEGORY_BYTES} hexadecimal digits, or nothing, "
    "found {found}",
}

"""Turns blocks of lines into columns, and reports the lines that are not records."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from elasticdl.packages.data_tools.lines.schema import Kind, Schema
from elasticdl.packages.data_tools.lines.source import Block

_SHOWN_BYTES = 40
_CATEGORY_BYTES = 8
_INTEGER_DIGITS = 18


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
    lines = pa.array(
        [line.removesuffix(b"\r") for line in block.lines.split(b"\n")[: block.num_lines]],
        pa.binary(),
    )
    split = pc.split_pattern(lines, schema.delimiter)
    lengths = np.asarray(pc.list_value_length(split))
    bad = {
        int(number): f"expected {len(schema.fields)} fields, found {lengths[number]}"
        for number in np.flatnonzero(lengths != len(schema.fields))
    }
    # Whoever wrote it may have meant the end of a line, and then half of a record is missing.
    for number in np.flatnonzero(pc.match_substring(lines, "\r")):
        bad[int(number)] = "a carriage return inside the line"
    numbers = np.delete(np.arange(block.num_lines), sorted(bad))
    fields = split.take(pa.array(numbers)).flatten()
    starts = np.arange(len(numbers)) * len(schema.fields)
    columns = []
    for name, kind in schema.kinds.items():
        texts = fields.take(pa.array(starts + schema.fields.index(name)))
        wrong = _is_wrong(texts, kind)
        for row in np.flatnonzero(wrong):
            reason = _REASONS[kind].format(name=name, found=_shown(texts[row].as_py()))
            bad.setdefault(int(numbers[row]), reason)
        columns.append(_typed(texts, wrong, kind))
    table = pa.table(columns, names=list(schema.kinds))
    is_good = ~np.isin(numbers, list(bad))
    bad_lines = [BadLine(block.path, block.first_line + n, bad[n]) for n in sorted(bad)]
    return ParsedBlock(
        table.filter(pa.array(is_good)),
        numbers[is_good] + block.first_row,
        bad_lines,
        block.num_bytes,
    )


def _is_wrong(texts: pa.BinaryArray, kind: Kind) -> NDArray[np.bool_]:
    """Tell of each field whether it cannot be a value of its kind."""
    return ~np.asarray(pc.match_substring_regex(texts, _PATTERNS[kind]))


def _typed(texts: pa.BinaryArray, wrong: NDArray[np.bool_], kind: Kind) -> pa.Array:
    """Return the values of a column; null for fields that are empty or wrong."""
    is_empty = pc.equal(pc.binary_length(texts), 0)
    values = pc.if_else(pc.or_(is_empty, pa.array(wrong)), None, texts).cast(pa.string())
    return values if kind == "category" else values.cast(pa.int64())


def _shown(field: bytes) -> str:
    if not field:
        return "nothing"
    text = repr(field[:_SHOWN_BYTES])[1:]
    return text if len(field) <= _SHOWN_BYTES else f"{text}..."


_PATTERNS: dict[Kind, str] = {
    "label": "^[01]$",
    "integer": f"^(-?[0-9]{{1,{_INTEGER_DIGITS}}})?$",
    "category": f"^([0-9a-fA-F]{{{_CATEGORY_BYTES}}})?$",
}
_REASONS: dict[Kind, str] = {
    "label": "column {name}: expected 0 or 1, found {found}",
    "integer": f"column {{name}}: expected a whole number of at most {_INTEGER_DIGITS} digits, "
    "or nothing, found {found}",
    "category": f"column {{name}}: expected {_CATEGORY_BYTES} hexadecimal digits, or nothing, "
    "found {found}",
}

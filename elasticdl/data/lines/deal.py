"""Turns blocks of lines into records of each output; any thread can do it for any block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from elasticdl._core import Examples, LineEncoder
from elasticdl.data.lines.parse import BadLine, parse
from elasticdl.data.lines.schema import LEFT_OUT, Schema
from elasticdl.data.lines.source import Block
from elasticdl.data.lines.split import Split

TRAINING, VALIDATION, ALL = "train", "val", ""


@dataclass(frozen=True, slots=True)
class Messages:
    """Some of the records of a block, which are `tf.train.Example` messages already."""

    examples: Examples
    start: int
    end: int

    @property
    def num_rows(self) -> int:
        """The number of records."""
        return self.end - self.start

    def slice(self, offset: int, length: int) -> Messages:
        """Return some of them; fewer than `length` at the end."""
        start = self.start + offset
        return Messages(self.examples, start, min(self.end, start + length))


Rows: TypeAlias = "pa.Table | Messages"


@dataclass(frozen=True, slots=True)
class Dealt:
    """The records of a block, by the name of their output."""

    rows: Mapping[str, Rows]
    bad: list[BadLine]
    num_bytes: int


def dealer(schema: Schema, split: Split | None, makes_messages: bool) -> Callable[[Block], Dealt]:
    """Return a function that parses a block and gives its records to the outputs.

    A block in which every line is a record becomes messages in one pass in Rust. Other blocks go
    through columns, which show what is wrong with a line. So do all blocks if columns are wanted.

    Args:
        schema: The fields of the lines.
        split: Chooses the records for validation.
        makes_messages: Whether the records are wanted as messages.
    """
    encoder = _line_encoder(schema) if makes_messages else None

    def deal(block: Block) -> Dealt:
        messages = None if encoder is None else _messages(block, split, encoder)
        return messages or _tables(block, split, schema)

    return deal


def _line_encoder(schema: Schema) -> LineEncoder | None:
    """Return an encoder of lines; None if their delimiter may be part of a value."""
    delimiter = schema.delimiter.encode()
    if len(delimiter) != 1:
        return None
    fields = [(name, schema.kinds.get(name, LEFT_OUT)) for name in schema.fields]
    try:
        return LineEncoder(fields, delimiter[0])
    except ValueError:
        return None


def _messages(block: Block, split: Split | None, encoder: LineEncoder) -> Dealt | None:
    rows = np.arange(block.first_row, block.first_row + block.num_lines)
    chosen = split.is_validation(rows) if split else np.zeros(len(rows), dtype=np.bool_)
    parts = encoder.encode(block.lines, chosen)
    if parts is None:
        return None
    names = (TRAINING, VALIDATION) if split else (ALL,)
    found = {
        name: Messages(examples, 0, len(examples))
        for name, examples in zip(names, parts, strict=False)
    }
    return Dealt(found, [], block.num_bytes)


def _tables(block: Block, split: Split | None, schema: Schema) -> Dealt:
    parsed = parse(block, schema)
    rows = {ALL: parsed.table}
    if split:
        chosen = split.is_validation(parsed.rows)
        rows = {
            TRAINING: parsed.table.filter(pa.array(~chosen)),
            VALIDATION: parsed.table.filter(pa.array(chosen)),
        }
    return Dealt(rows, parsed.bad, parsed.num_bytes)

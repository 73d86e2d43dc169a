"""Takes a bounded sample of a data set, from places all over it, with its columns as words."""

from __future__ import annotations

import csv
import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from elasticdl.data.base import DataReader, HasHoles, Metadata, Records
from elasticdl.job import Shard
from elasticdl.packages.data_tools.example import decode_example

Words = list[str | None]
"""The values of a column as text; None: a value is missing."""

_MOST_RECORDS = 2048
_NUM_PIECES = 8
_MOST_SECONDS = 1.0
_MOST_WORD_BYTES = 256  # of text no more is looked at
_MOST_JSON_BYTES = 32 << 20  # which are parsed in a fraction of a second
_WHOLE = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?|nan)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Sample:
    """Some records of a data set.

    num_records: The number of records of the data set.
    pieces: Consecutive records, each piece from another place.
    are_positions: Whether shards count positions, some of which have no record (a topic).
    """

    num_records: int
    pieces: tuple[tuple[Shard, tuple[Records, ...]], ...]
    columns: Mapping[str, Words] = field(default_factory=dict)
    are_positions: bool = False

    @property
    def num_looked_at(self) -> int:
        """The number of records in the sample."""
        if self.are_positions:
            return sum(len(chunk) for _, chunks in self.pieces for chunk in chunks)
        return sum(shard.num_records for shard, _ in self.pieces)

    @property
    def is_all(self) -> bool:
        """Return whether the sample has all records of the data set."""
        return sum(shard.num_records for shard, _ in self.pieces) == self.num_records

    @property
    def size(self) -> str:
        """The size of the data set, in words."""
        return f"{self.num_records:,} {'positions' if self.are_positions else 'records'}"


def take_sample(reader: DataReader, names: Sequence[str] = ()) -> Sample:
    """Read a sample: a few thousand records at most, for a second or two.

    Args:
        reader: The reader of the data.
        names: The names of a line's columns, if the reader does not know them.

    Raises:
        DataError: A record cannot be read.
    """
    shards = reader.shards()
    num_records = sum(shard.num_records for shard in shards)
    deadline = time.monotonic() + _MOST_SECONDS
    pieces = []
    for piece in places(shards, num_records):
        pieces.append((piece, tuple(chunk for chunk in reader.read(piece) if len(chunk))))
        # The first piece is always read whole, however long it takes.
        if time.monotonic() > deadline:
            break
    chunks = [chunk for _, chunks in pieces for chunk in chunks]
    columns = columns_of(chunks, reader.metadata, names)
    return Sample(num_records, tuple(pieces), columns, isinstance(reader, HasHoles))


def places(shards: Sequence[Shard], num_records: int) -> Iterator[Shard]:
    """Yield pieces of shards, in order, spread evenly over all records."""
    size = min(_MOST_RECORDS // _NUM_PIECES, math.ceil(num_records / _NUM_PIECES))
    wanted = [number * num_records // _NUM_PIECES for number in range(_NUM_PIECES)]
    before = 0
    for shard in shards:
        end = before + shard.num_records
        inside = [at for at in wanted if before <= at < end]
        free = shard.start  # what comes before is taken
        for at in inside:
            start = max(free, min(shard.start + at - before, shard.end - size))
            free = min(start + size, shard.end)
            if start < free:
                yield Shard(shard.name, start, free)
        before = end


def columns_of(
    chunks: Sequence[Records], metadata: Metadata, names: Sequence[str] = ()
) -> dict[str, Words]:
    """Return the columns of records as words: of a table, of lines of CSV or JSON, or of Examples.

    Records without visible columns have none. Lists and long bytes are left out.
    """
    if not chunks:
        return {}
    if chunks[0].columns:
        return _of_columns(chunks)
    values = [value for chunk in chunks for value in chunk.values]
    fields = tuple(metadata.column_names) or tuple(names)
    if fields:
        return _of_lines(values, fields, metadata.delimiter)
    return _of_json(values) or _of_examples(values)


def _of_columns(chunks: Sequence[Records]) -> dict[str, Words]:
    found: dict[str, Words] = {}
    for name in chunks[0].columns:
        parts = [np.asarray(chunk.columns[name]) for chunk in chunks]
        values = [value for part in parts if part.ndim == 1 for value in part.tolist()]
        words = [_word(value) for value in values]
        if len(words) == sum(map(len, parts)) and False not in words:
            found[name] = [word if isinstance(word, str) else None for word in words]
    return found


def _of_lines(lines: Sequence[bytes], names: Sequence[str], delimiter: str) -> dict[str, Words]:
    found: dict[str, Words] = {name: [] for name in names}
    for line in lines:
        try:
            row = next(csv.reader([line.decode()], delimiter=delimiter), [])
        except (UnicodeDecodeError, csv.Error):
            continue  # whoever parses it says so
        if len(row) == len(names):
            for name, word in zip(names, row, strict=True):
                found[name].append(word or None)
    return {name: _without_nan(words) for name, words in found.items()}


def _without_nan(words: Words) -> Words:
    """Return the values; in a column of numbers NaN is missing, as it is in other formats."""
    if kind_of(words) != "numbers":
        return words
    return [
        None if word is not None and word.strip(" \t+-").lower() == "nan" else word
        for word in words
    ]


def _of_json(values: Sequence[bytes]) -> dict[str, Words]:
    """Return the keys of lines of JSON, if each line is an object."""
    is_json = bool(values) and values[0].lstrip().startswith(b"{")
    if not is_json or sum(map(len, values)) > _MOST_JSON_BYTES:
        return {}
    try:
        rows = [json.loads(value) for value in values]
    except (ValueError, RecursionError):  # whoever parses it says so
        return {}
    if not all(isinstance(row, dict) for row in rows):
        return {}
    found: dict[str, Words] = {}
    for name in sorted({name for row in rows for name in row}):
        words = [_word(row.get(name)) for row in rows]
        if False not in words:
            found[name] = [word if isinstance(word, str) else None for word in words]
    return found


def _of_examples(values: Sequence[bytes]) -> dict[str, Words]:
    if not values or decode_example(values[0]) is None:
        return {}
    rows = [decode_example(value) or {} for value in values]
    names = sorted({name for row in rows for name in row})
    found: dict[str, Words] = {}
    for name in names:
        words = [_word(row[name][0]) if len(row.get(name, ())) == 1 else None for row in rows]
        is_list = any(len(row.get(name, ())) > 1 for row in rows)
        if not is_list and False not in words:
            found[name] = [word if isinstance(word, str) else None for word in words]
    return found


def _word(value: Any) -> str | bool | None:
    """Return a value as a word; None if it is missing, False if it is not a single value."""
    if value is None or (isinstance(value, float | np.floating) and value != value):
        return None
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            if len(value) > _MOST_WORD_BYTES:
                return False  # an image or the like
            value = value.decode(errors="replace")
    if not isinstance(value, str | int | float):
        return False
    return str(value)[:_MOST_WORD_BYTES] or None


def kind_of(words: Words) -> str:
    """Return the kind of a column's values: whole numbers, numbers or text; "": all are missing."""
    present = [word.strip() for word in islice(words, _MOST_RECORDS) if word is not None]
    if not present:
        return ""
    if all(map(_WHOLE.fullmatch, present)):
        return "whole numbers"
    return "numbers" if all(map(_NUMBER.fullmatch, present)) else "text"

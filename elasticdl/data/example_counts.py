"""Statistics of `tf.train.Example` records, counted in Rust: one pass, and no record in Python.

What cannot be counted so is left to `elasticdl.data.analyze`, which gives the same statistics: it
copies the records to disk, and needs little memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from elasticdl._core import CountedColumn, ExampleCounts, RecordReader, TFRecordReader
from elasticdl.data.base import DataReader
from elasticdl.data.files import FileReader
from elasticdl.data.in_order import in_order
from elasticdl.data.summary import SummaryLimits, number_statistics, vocabulary_of
from elasticdl.statistics import Column, Distinct, Source, Statistics

RANGE_RECORDS = 1 << 15
MOST_BYTES = 2 << 30
"""What different values and their counts may take, or a quarter of the memory if that is less."""

_Range = tuple[RecordReader | TFRecordReader, int, int]
_KINDS = {"int64": "int64", "float": "float", "bytes": "text"}


def count_examples(
    reader: DataReader,
    path: str,
    limits: SummaryLimits,
    num_threads: int,
    on_progress: Callable[[int], None],
) -> Statistics | None:
    """Return the statistics of all columns, or None if they are not to be had in this way.

    That is so where records are no plain messages or have values of several kinds in a column, or
    there are too many different values for the limit or for the memory.

    Args:
        reader: Has the records.
        path: What the data was called on the command line.
        limits: How much is told of a column.
        num_threads: How many count.
        on_progress: Told how many records more are counted.

    Raises:
        DataError: The data cannot be read.
    """
    counts = ExampleCounts(limits.distinct_limit, _bytes_limit())
    shards = reader.shards()

    def count(part: _Range) -> int | None:
        file, start, end = part
        return end - start if counts.add(file, start, end) else None

    with ThreadPoolExecutor(num_threads, "count") as pool:
        for counted in in_order(pool, count, _ranges(reader)):
            if counted is None:
                return None
            on_progress(counted)
        num_records = sum(shard.num_records for shard in shards)
        columns = counts.columns()
        found = pool.map(
            lambda number: _statistics(counts, number, columns[number], num_records, limits),
            range(len(columns)),
        )
        named = dict(zip([column.name for column in columns], found, strict=True))
    if not named:
        return None
    source = Source(path=path, num_files=len({shard.name for shard in shards}))
    return Statistics(source=source, num_records=num_records, columns=named)


def holds_examples(reader: DataReader) -> bool:
    """Tell whether the files are of a kind that `count_examples` reads."""
    return isinstance(reader, FileReader) and all(
        isinstance(reader.file(shard.name), RecordReader | TFRecordReader)
        for shard in reader.shards()[:1]
    )


def _ranges(reader: DataReader) -> Iterator[_Range]:
    assert isinstance(reader, FileReader), "holds_examples was asked"
    for shard in reader.shards():
        file = reader.file(shard.name)
        assert isinstance(file, RecordReader | TFRecordReader), "files are of one kind"
        for start in range(shard.start, shard.end, RANGE_RECORDS):
            yield file, start, min(shard.end, start + RANGE_RECORDS)


def _bytes_limit() -> int:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(MOST_BYTES, memory // 4)


def _statistics(
    counts: ExampleCounts,
    number: int,
    column: CountedColumn,
    num_records: int,
    limits: SummaryLimits,
) -> Column:
    present = column.num_records if column.is_list else column.num_values
    common: dict[str, Any] = {
        "kind": _KINDS[column.kind],
        "count": present,
        "missing": num_records - present,
        "num_values": column.num_values,
    }
    if column.kind != "bytes":
        return number_statistics(common, *counts.numbers(number), limits)
    values, occurrences = counts.most_frequent(
        number, limits.vocabulary_threshold, limits.vocabulary_limit + 1
    )
    return Column(
        **common,
        distinct=Distinct(count=column.num_distinct),
        vocabulary=vocabulary_of(values, occurrences, limits, is_all=True),
    )

"""Statistics of `tf.train.Example` records, counted by Rust in one pass, with no record in Python.

`elasticdl.data.analyze` gives the same statistics for the data that cannot be counted here. It
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
"""The bytes that distinct values and their counts may take; at most a quarter of the memory."""

_Range = tuple[RecordReader | TFRecordReader, int, int]
_KINDS = {"int64": "int64", "float": "float", "bytes": "text"}


def count_examples(
    reader: DataReader,
    path: str,
    limits: SummaryLimits,
    num_threads: int,
    on_progress: Callable[[int], None],
) -> Statistics | None:
    """Return the statistics of all columns, or None if they cannot be counted in this way.

    This happens if records are no plain messages, if a column has values of several kinds, or if
    there are too many distinct values for the limit or for the memory.

    Args:
        reader: Has the records.
        path: The name of the data on the command line.
        limits: How much the statistics of a column contain.
        num_threads: The number of threads that count.
        on_progress: Called with the number of records that were counted.

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
    """Return whether `count_examples` can read files of this kind."""
    return isinstance(reader, FileReader) and all(
        isinstance(reader.file(shard.name), RecordReader | TFRecordReader)
        for shard in reader.shards()[:1]
    )


def _ranges(reader: DataReader) -> Iterator[_Range]:
    assert isinstance(reader, FileReader), "holds_examples was asked"
    for shard in reader.shards():
        file = reader.file(shard.name)
        assert isinstance(file, RecordReader | TFRecordReader), "files are of one kind"
        # Ranges are small, so that all threads finish at about the same time.
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

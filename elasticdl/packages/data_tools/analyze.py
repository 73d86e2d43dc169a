"""Statistics of the columns of any data, by DuckDB: exact up to a limit of distinct values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from elasticdl.errors import ConfigError, DataError
from elasticdl.packages.data_tools.statistics import (
    Column,
    Distinct,
    Source,
    Statistics,
    Vocabulary,
)
from elasticdl.packages.data_tools.summary import (
    NUM_QUANTILES,
    SummaryLimits,
    boundaries,
    number_statistics,
    quantiles,
    vocabulary_of,
)
from elasticdl.packages.data_tools.tables import TABLE, Database

SAMPLE_RECORDS = 200_000
HYPERLOGLOG_ERROR = 0.026
"""Standard error of DuckDB's HyperLogLog, as a test measures it."""
_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
_LARGE_INTEGERS = ("UBIGINT", "HUGEINT", "UHUGEINT")
_TEXTS = ("VARCHAR", "DATE", "UUID", "JSON", "ENUM", "INTERVAL")


def analyze(
    database: Database, path: str, limits: SummaryLimits, on_progress: Callable[[int], None]
) -> Statistics:
    """Return the statistics of all columns.

    Args:
        database: Has the records.
        path: The name of the data on the command line.
        limits: How much the statistics of a column contain.
        on_progress: Called with the number of columns that were finished.

    Raises:
        ConfigError: A column has a type without values, such as a struct.
        DataError: The data cannot be read.
    """
    (num_records,) = database.ask(f"SELECT count(*) FROM {TABLE}").fetchone()
    columns = {}
    for name, type_name in database.columns.items():
        try:
            values = _values(database, name, type_name)
            columns[name] = _column(database, values, num_records, limits)
        except DataError as error:
            raise DataError(f"{path}: column {name!r}: {error}") from error
        on_progress(1)
    source = Source(path=path, num_files=database.num_files)
    return Statistics(source=source, num_records=num_records, columns=columns)


@dataclass(frozen=True, slots=True)
class _Values:
    """The query for the values of a column.

    source: A query in brackets: values as `v` (null if there is none), the row's number as `r`.
    present: The condition that a row's list has a value; "" for a column without lists.
    """

    kind: Literal["int64", "float", "text"]
    source: str
    present: str = ""

    @property
    def is_list(self) -> bool:
        return self.present != ""


def _values(database: Database, name: str, type_name: str) -> _Values:
    is_list = type_name.endswith("]") and type_name.count("[") == 1
    element = type_name.partition("[")[0] if is_list else type_name
    place = database.places[name]
    column = f"{place}::{element}[]" if is_list else place
    value = f"unnest({column})" if is_list else column
    inner = f"SELECT {value} AS x, {database.row} AS r FROM {TABLE}"
    base = element.partition("(")[0]
    kind: Literal["int64", "float", "text"]
    if base in _INTEGERS or base == "BOOLEAN":
        kind, v = "int64", "x::BIGINT"
    elif base in _LARGE_INTEGERS or (base == "DECIMAL" and element.endswith(",0)")):
        query = f"SELECT coalesce(max(x), 0), coalesce(min(x), 0) FROM ({inner})"
        largest, least = database.ask(query).fetchone()
        # The type can hold more than int64, so the values decide.
        is_int64 = int(least) >= -(2**63) and int(largest) < 2**63
        # Ids that are too large for int64 stay text: as floats, several ids would become one.
        kind, v = ("int64", "x::BIGINT") if is_int64 else ("text", "x::VARCHAR")
    elif base in ("FLOAT", "DOUBLE", '"NULL"'):  # readers give missing numbers for no value at all
        kind, v = "float", "CASE WHEN isnan(x::DOUBLE) THEN NULL ELSE x::DOUBLE END"
    elif base == "DECIMAL":
        kind, v = "float", "x::VARCHAR::DOUBLE"  # the nearest, which a cast by itself may miss
    elif element.startswith("TIMESTAMP"):
        kind, v = "text", _time_word(element)
    elif base.startswith("TIME"):  # of day: with six decimals, or without any
        micros = "replace(rpad(x::VARCHAR, 15, '0'), '.000000', '')"
        kind, v = "text", f"CASE WHEN x::VARCHAR LIKE '%.%' THEN {micros} ELSE x::VARCHAR END"
    elif base == "BLOB":
        kind, v = "text", "CASE WHEN octet_length(x) > 0 THEN x END"
    elif base.startswith(_TEXTS):
        kind, v = "text", "nullif(x::VARCHAR, '')"
    else:
        raise ConfigError(
            f"column {name!r} is {type_name}, a type without statistics; "
            "choose other columns by --data_reader_params=columns=..."
        )
    present = f"len(list_filter({column}, lambda x: ({v}) IS NOT NULL)) > 0" if is_list else ""
    return _Values(kind, f"(SELECT {v} AS v, r FROM ({inner}))", present)


def _time_word(type_name: str) -> str:
    """Return a time stamp as text, as `docs/data.md` and `preprocessing/words.py` write it."""
    is_zoned = type_name.endswith("WITH TIME ZONE")
    x = "make_timestamp(epoch_us(x))" if is_zoned else "x"  # of UTC
    micros = f"strftime({x}, '.%f')"
    fraction = f"CASE WHEN epoch_us({x}) % 1000000 = 0 THEN '' ELSE {micros} END"
    if type_name == "TIMESTAMP_NS":
        is_micro = f"epoch_ns({x}) % 1000 = 0"
        fraction = f"CASE WHEN {is_micro} THEN {fraction} ELSE strftime({x}, '.%n') END"
    zone = " || '+00:00'" if is_zoned else ""
    return f"strftime({x}, '%Y-%m-%d %H:%M:%S') || {fraction}{zone}"


def _column(database: Database, values: _Values, num_records: int, limits: SummaryLimits) -> Column:
    # An exact count of too many distinct values would fill the memory or the disk.
    estimate = _estimate(database, values, num_records, limits)
    if estimate is not None:
        return _estimated(database, values, num_records, estimate, limits)
    if values.kind == "text":
        return _exact_text(database, values, num_records, limits)
    return _exact_numbers(database, values, num_records, limits)


def _estimate(
    database: Database, values: _Values, num_records: int, limits: SummaryLimits
) -> int | None:
    """Return about how many values are different, if they are too many to count exactly."""
    # A column cannot have more distinct values than records; a list column can.
    if num_records <= limits.distinct_limit and not values.is_list:
        return None
    query = f"SELECT approx_count_distinct(v) FROM {values.source}"
    (estimate,) = database.ask(query).fetchone()
    return estimate if estimate > limits.distinct_limit else None


def _how_many(
    database: Database, values: _Values, num_records: int, num_values: int, infinite: int = 0
) -> dict[str, Any]:
    present = num_values
    # A record counts as present if its list has any value.
    if values.is_list:
        query = f"SELECT count_if({values.present}) FROM {TABLE}"
        (present,) = database.ask(query).fetchone()
    return {
        "kind": values.kind,
        "count": present,
        "missing": num_records - present,
        "num_values": num_values,
        "infinite": infinite,
    }


def _exact_numbers(
    database: Database, values: _Values, num_records: int, limits: SummaryLimits
) -> Column:
    found = database.ask(
        f"SELECT v, count(*) AS n FROM {values.source} WHERE v IS NOT NULL GROUP BY v ORDER BY v"
    ).fetchnumpy()
    numbers, counts = np.asarray(found["v"]), np.asarray(found["n"], dtype=np.int64)
    common = _how_many(database, values, num_records, int(counts.sum()))
    return number_statistics(common, numbers, counts, limits)


def _exact_text(
    database: Database, values: _Values, num_records: int, limits: SummaryLimits
) -> Column:
    database.ask(
        f"CREATE OR REPLACE TEMP TABLE counts AS SELECT v, count(*) AS n FROM {values.source} "
        "WHERE v IS NOT NULL GROUP BY v"
    )
    answer = database.ask("SELECT count(*), coalesce(sum(n), 0) FROM counts").fetchone()
    num_distinct, num_values = (int(number) for number in answer)
    return Column(
        **_how_many(database, values, num_records, num_values),
        distinct=Distinct(count=num_distinct),
        vocabulary=_counted(database, limits, is_all=True),
    )


def _estimated(
    database: Database, values: _Values, num_records: int, num_distinct: int, limits: SummaryLimits
) -> Column:
    is_infinite = "isinf(v)" if values.kind == "float" else "false"
    query = f"SELECT count(v), count_if({is_infinite}) FROM {values.source}"
    num_values, infinite = database.ask(query).fetchone()
    common = _how_many(database, values, num_records, num_values, infinite)
    common["distinct"] = Distinct(
        count=num_distinct, is_exact=False, relative_error=HYPERLOGLOG_ERROR
    )
    sample = _sample(values, num_values, is_infinite)
    if values.kind != "float":
        common["vocabulary"] = _frequent(database, values.source, sample, limits)
    if values.kind == "text":
        return Column(**common)
    low, high, mean, deviation = database.ask(
        f"SELECT min(v), max(v), avg(v), stddev_pop(v) FROM {values.source} WHERE NOT {is_infinite}"
    ).fetchone()
    # Quantiles need sorted values. Sorting a sample is enough, and its error is reported.
    found = database.ask(f"{sample} ORDER BY v").fetchnumpy()
    numbers, counts = np.asarray(found["v"]), np.asarray(found["n"], dtype=np.int64)
    middle = quantiles(numbers, counts, np.linspace(0, 1, NUM_QUANTILES))[1:-1]
    return Column(
        **common,
        min=low,
        max=high,
        mean=mean,
        stddev=deviation,
        quantiles=[low, *middle, high],
        quantile_error=sampling_error(int(counts.sum())),
        boundaries=boundaries(numbers, counts, limits.num_buckets),
    )


def _frequent(
    database: Database, source: str, sample: str, limits: SummaryLimits
) -> Vocabulary | None:
    """Count the values that are frequent in a sample: exactly, but rare values may lack."""
    # A value may be missing in the sample by chance. Twice as many candidates as needed make it
    # unlikely that a frequent one is lost.
    database.ask(
        f"CREATE OR REPLACE TEMP TABLE candidates AS {sample} ORDER BY n DESC, v "
        f"LIMIT {2 * limits.vocabulary_limit}"
    )
    database.ask(
        f"CREATE OR REPLACE TEMP TABLE counts AS SELECT v, count(*) AS n FROM {source} "
        "SEMI JOIN candidates USING (v) GROUP BY v"
    )
    return _counted(database, limits, is_all=False)


def _sample(values: _Values, num_values: int, is_infinite: str) -> str:
    """Return a query for the values and counts of a sample, always the same one."""
    # The rows are chosen by a hash of their number: a random sample would give other statistics
    # each time. The values of one list may resemble each other, so each is chosen by itself.
    every = max(1, num_values // SAMPLE_RECORDS)
    chosen = "hash(r, v)" if values.is_list else "hash(r)"
    return (
        f"SELECT v, count(*) AS n FROM {values.source} WHERE v IS NOT NULL AND NOT {is_infinite} "
        f"AND {chosen} % {every} = 0 GROUP BY v"
    )


def _counted(database: Database, limits: SummaryLimits, is_all: bool) -> Vocabulary | None:
    """Return the vocabulary of the values in `counts`; None if they are not text in UTF-8.

    Args:
        database: Has the counts.
        limits: Say which values are left out.
        is_all: Whether there are no other values.
    """
    # One value more than the limit is read: it shows whether any were left out.
    found = database.ask(
        f"SELECT v, n FROM counts WHERE n >= {limits.vocabulary_threshold} "
        f"ORDER BY n DESC, v LIMIT {limits.vocabulary_limit + 1}"
    ).fetchnumpy()
    values, counts = np.asarray(found["v"]).tolist(), np.asarray(found["n"]).tolist()
    return vocabulary_of(values, counts, limits, is_all)


def sampling_error(num_values: int) -> float:
    """Return the bound of Dvoretzky, Kiefer and Wolfowitz on a rank's error, with 99 %.

    Massart, "The tight constant in the Dvoretzky-Kiefer-Wolfowitz inequality", 1990.
    """
    return math.sqrt(math.log(2 / 0.01) / (2 * num_values))

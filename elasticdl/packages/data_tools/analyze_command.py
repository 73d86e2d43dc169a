"""Implements `elasticdl data analyze`, which writes statistics of the columns of data to a file.

Model files read the statistics.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click
from rich.table import Table
from rich.text import Text

from elasticdl.cli.terminal import LocalPath, Terminal
from elasticdl.errors import DataError
from elasticdl.packages.data_tools.amounts import record_progress
from elasticdl.packages.data_tools.convert_command import (
    missing_option,
    parse_types,
    reader_params,
    told_to_end,
    types_option,
)
from elasticdl.runtime.process import write_whole

if TYPE_CHECKING:
    from elasticdl.packages.data_tools.statistics import Column, Number, Statistics
    from elasticdl.packages.data_tools.summary import SummaryLimits


@click.command()
@click.argument("source")
@click.option(
    "--output",
    type=LocalPath(path_type=Path),
    required=True,
    help="JSON file to write; an existing file is replaced. docs/data.md describes its format.",
)
@click.option(
    "--num_buckets",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="How many buckets of about equally many values to find boundaries for.",
)
@click.option(
    "--vocabulary_limit",
    type=click.IntRange(min=0),
    default=100_000,
    show_default=True,
    help="Largest size of a vocabulary; it keeps the most frequent values.",
)
@click.option(
    "--vocabulary_threshold",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Leave out of a vocabulary all values that occur less often.",
)
@click.option(
    "--distinct_limit",
    type=click.IntRange(min=1),
    default=10_000_000,
    show_default=True,
    help="A column with more different values is estimated: their number by HyperLogLog, quantiles "
    "and frequent values from a sample.",
)
@types_option
@missing_option
@reader_params
def analyze(
    source: str,
    output: Path,
    num_buckets: int,
    vocabulary_limit: int,
    vocabulary_threshold: int,
    distinct_limit: int,
    types: str,
    missing: tuple[str, ...],
    params: str,
) -> None:
    """Write statistics of the columns of SOURCE: a JSON file that model files read.

    \b
    Examples:
      elasticdl data analyze dac_records/train --output statistics.json
      elasticdl data analyze 'logs/*.csv' --output logs.json --data_reader_params skip_header=true
    """  # noqa: D301 - the backspace is click's mark for lines that it must not join
    from elasticdl.packages.data_tools.summary import SummaryLimits

    if not output.parent.is_dir():
        raise DataError(f"{output.parent}: no such folder; create it first")
    if output.is_dir():
        raise DataError(f"{output}: is a folder; name a file in it")
    limits = SummaryLimits(num_buckets, distinct_limit, vocabulary_limit, vocabulary_threshold)
    began = time.monotonic()
    statistics = _compute(source, params, parse_types(types), missing, limits)
    try:
        write_whole(output, statistics.model_dump_json(indent=1) + "\n")
    except OSError as error:
        raise DataError(f"{output}: cannot be written: {error.strerror}") from error
    _show(statistics, output, time.monotonic() - began)


def _compute(
    source: str,
    params: str,
    types: Mapping[str, str],
    missing: tuple[str, ...],
    limits: SummaryLimits,
) -> Statistics:
    from elasticdl.data.base import KeepsMissing
    from elasticdl.data.files import num_cores
    from elasticdl.data.open import open_reader
    from elasticdl.packages.data_tools.analyze import analyze as compute
    from elasticdl.packages.data_tools.tables import open_database
    from elasticdl.settings.reader_params import without_password

    reader = open_reader(source, params)
    if isinstance(reader, KeepsMissing):  # whole numbers with null are not floats then
        reader = reader.keeping_missing()
    source = without_password(source)  # it is written to the file, which goes on with the model
    with (
        told_to_end(),  # the copy of the data would stay
        open_database(reader, source, types, missing, num_cores()) as database,
        record_progress("analyzing columns", len(database.columns)) as on_progress,
    ):
        return compute(database, source, limits, on_progress)


def _show(statistics: Statistics, output: Path, seconds: float) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("column", overflow="fold")
    table.add_column("kind")
    for name in ("missing", "distinct", "min", "mean", "max"):
        table.add_column(name, justify="right")
    for name, column in statistics.columns.items():
        table.add_row(Text(name), *_row(column, statistics.num_records))
    console = Terminal()
    console.print(table)
    rate = statistics.num_records / max(seconds, 1e-9)
    console.print(
        f"{statistics.num_records:,} records ({rate:,.0f} records/s): {output}",
        highlight=False,
        soft_wrap=True,
    )


def _row(column: Column, num_records: int) -> list[str]:
    sign = "" if column.distinct.is_exact else "~"
    return [
        column.kind,
        f"{column.missing / max(1, num_records):.1%}",
        f"{sign}{column.distinct.count:,}",
        *(_number(value) for value in (column.min, column.mean, column.max)),
    ]


def _number(value: Number | None) -> str:
    return "" if value is None else f"{value:.6g}"

"""Implements `elasticdl data convert`, which writes records or raw lines in another format."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import rich_click as click
from click.core import ParameterSource

from elasticdl.cli.terminal import LocalPath, Terminal
from elasticdl.errors import ConfigError, DataError
from elasticdl.packages.data_tools.amounts import record_progress, size
from elasticdl.packages.data_tools.lines_command import RECORDS_PER_FILE, convert_raw

if TYPE_CHECKING:  # the commands import what they need, so that --help need not wait
    from elasticdl.data.base import DataReader
    from elasticdl.packages.data_tools.convert import Encode

Format = Literal["recordio", "tfrecord", "parquet"]
_ONLY_RECORDS = {
    "encoding": "--as",
    "types": "--types",
    "missing": "--missing",
    "params": "--data_reader_params",
    "overwrite": "--overwrite",
}
_RAW_NAMES = (
    "schema",
    "validation",
    "seed",
    "on_error",
    "error_limit",
    "records_per_row_group",
)
_ONLY_RAW = {name: f"--{name}" for name in _RAW_NAMES}

types_option = click.option(
    "--types",
    default="",
    help='Types of CSV columns for --as example or analyze: "day=int64;delay=float;x=bytes". The '
    "types of other columns are found by reading the data once more. In other formats, int64 or "
    "float for a column of numbers (--as example).",
)
missing_option = click.option(
    "--missing",
    multiple=True,
    default=("", "NA"),
    show_default='"" and "NA"',
    help="Text of a missing value in a CSV column of numbers; may be given several times.",
)
reader_params = click.option(
    "--data_reader_params",
    "params",
    default="",
    help='Settings of the reader, as for training: "skip_header=true;delimiter=tab;format=csv".',
)


@click.command()
@click.argument("source")
@click.argument("destination", type=LocalPath(path_type=Path))
@click.option(
    "--format",
    "format_name",
    type=click.Choice(["recordio", "tfrecord", "parquet"]),
    help="Format to write. Default: by the extension of DESTINATION, otherwise recordio. parquet "
    "needs --from.",
)
@click.option(
    "--codec",
    type=click.Choice(["none", "zstd", "deflate"]),
    help="Compression of RecordIO blocks or Parquet pages. Default: zstd.",
)
@click.option(
    "--records_per_file",
    type=click.IntRange(min=1),
    help="Records in each file; DESTINATION is then a new folder. Default with --from: "
    f"{RECORDS_PER_FILE:,}.",
)
@click.option(
    "--records_per_row_group",
    type=click.IntRange(min=1),
    help="With --format=parquet: records in a row group. Default: 8192. A task decodes the row "
    "groups that it touches, so they should not be much larger than a task.",
)
@click.option(
    "--as",
    "encoding",
    type=click.Choice(["raw", "example"]),
    default="raw",
    show_default=True,
    help="Write records as they are, or rows of columns (CSV, Parquet, LIBSVM, tables, images) "
    "as tf.train.Example.",
)
@types_option
@missing_option
@reader_params
@click.option(
    "--from",
    "raw_format",
    type=click.Choice(["criteo"]),
    help="Read SOURCE as Criteo's lines: label, 13 numbers and 26 categories with tabs between "
    "them; plain, or compressed by gzip or zstd. DESTINATION is a new folder.",
)
@click.option(
    "--schema",
    type=click.Path(path_type=Path),
    help="With --from: a YAML file that names the columns in the order of the fields.",
)
@click.option(
    "--validation",
    help="With --from: the part of the records that goes to DESTINATION/val, such as 1/20; the "
    "others go to DESTINATION/train.",
)
@click.option(
    "--seed",
    type=int,
    help="With --validation: another seed chooses other records. Default: 0.",
)
@click.option(
    "--on_error",
    type=click.Choice(["stop", "skip"]),
    help="With --from: what to do with a bad line: stop and write nothing (the default), or report "
    "it and leave it out (skip).",
)
@click.option(
    "--error_limit",
    type=click.IntRange(min=1),
    help="With --on_error=skip: how many bad lines may be left out. Default: 1000.",
)
@click.option("--overwrite", is_flag=True, help="Replace DESTINATION if it is an existing file.")
@click.pass_context
def convert(
    context: click.Context,
    /,
    source: str,
    destination: Path,
    raw_format: str | None,
    **words: Any,
) -> None:
    """Write the records of SOURCE to DESTINATION as RecordIO, TFRecord or Parquet.

    \b
    Examples:
      elasticdl data convert train.tfrecord train.recordio --codec zstd
      elasticdl data convert 'logs/*.csv' train --records_per_file 100000 \\
        --as example --data_reader_params skip_header=true
    """  # noqa: D301 - the backspace is click's mark for lines that it must not join
    given = {
        name: flag
        for name, flag in (_ONLY_RECORDS if raw_format else _ONLY_RAW).items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    for flag in given.values():
        raise ConfigError(f"{flag} {'does not go' if raw_format else 'goes only'} with --from")
    for name in _ONLY_RECORDS if raw_format else _ONLY_RAW:
        del words[name]
    with told_to_end():
        if raw_format is None:
            _convert_records(source, destination, **words)
        else:
            convert_raw(source, destination, **words)


@contextmanager
def told_to_end() -> Iterator[None]:
    """Let SIGTERM end a command as an error does: the files written so far are removed."""
    told: list[int] = []

    def end(number: int, _: object) -> None:
        told.append(number)
        # The shell's exit code for a program that a signal has ended.
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except KeyboardInterrupt:
        # DuckDB tells of each signal in one way, see `tables.py`.
        if told:
            raise SystemExit(128 + told[0]) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _convert_records(
    source: str,
    destination: Path,
    *,
    format_name: Format | None,
    codec: str | None,
    records_per_file: int | None,
    encoding: str,
    types: str,
    missing: tuple[str, ...],
    params: str,
    overwrite: bool,
) -> None:
    from elasticdl.data.base import KeepsMissing
    from elasticdl.data.open import open_reader
    from elasticdl.packages.data_tools.convert import Target
    from elasticdl.packages.data_tools.convert import convert as write

    name = format_name or _format_of_destination(destination)
    if name == "parquet":
        raise ConfigError("--format parquet needs --from: other records are not columns of a type")
    if name == "tfrecord" and codec not in (None, "none"):
        raise ConfigError(f"--codec {codec}: TFRecord files are not compressed; write RecordIO")
    _check_destination(destination, records_per_file, overwrite)
    target = Target(destination, name, codec or "zstd", records_per_file)
    reader = open_reader(source, params)
    if encoding == "example" and isinstance(reader, KeepsMissing):
        reader = reader.keeping_missing()
    num_records = 0  # a topic has fewer of them than positions

    def written(count: int) -> None:
        nonlocal num_records
        num_records += count
        on_progress(count)

    at_most = sum(shard.num_records for shard in reader.shards())
    with record_progress("converting", at_most) as on_progress:
        encode = _encoder(reader, encoding, types, missing)
        files = write(reader, encode, target, written)
    num_bytes = sum(file.stat().st_size for file in files)
    Terminal().print(
        f"{num_records:,} records in {len(files):,} {name} file{'s'[: len(files) != 1]}, "
        f"{size(num_bytes)}: {destination}",
        highlight=False,
        soft_wrap=True,
    )


def _format_of_destination(destination: Path) -> Format:
    if destination.suffix in (".parquet", ".pq"):
        return "parquet"
    return "tfrecord" if destination.suffix in (".tfrecord", ".tfrecords") else "recordio"


def _check_destination(destination: Path, records_per_file: int | None, overwrite: bool) -> None:
    if records_per_file is None and destination.is_dir():
        raise DataError(
            f"{destination}: is a folder; name a file in it, or give --records_per_file"
        )
    if records_per_file is None and destination.exists() and not overwrite:
        raise DataError(f"{destination}: exists; give --overwrite to replace it")


def _encoder(reader: DataReader, encoding: str, types: str, missing: tuple[str, ...]) -> Encode:
    from elasticdl.packages.data_tools.convert import as_examples, raw

    if encoding == "raw":
        if types:
            raise ConfigError("--types is for --as example")
        return raw
    num_records = sum(shard.num_records for shard in reader.shards())
    with record_progress("finding types", num_records) as on_progress:
        return as_examples(reader, parse_types(types), frozenset(missing), on_progress)


def parse_types(types: str) -> dict[str, str]:
    """Return the kinds of columns by their names, as --types has them.

    Raises:
        ConfigError: A part is not `column=type`.
    """
    kinds: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in types.split(";"))):
        name, equals, kind = part.partition("=")
        if not equals:
            raise ConfigError(f"--types: expected column=type, found {part!r}")
        kinds[name.strip()] = kind.strip()
    return kinds

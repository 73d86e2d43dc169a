"""Implements `elasticdl data convert --from=...`, which makes files of records of raw lines."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from elasticdl.cli.terminal import Terminal, echo
from elasticdl.errors import ConfigError
from elasticdl.packages.data_tools.amounts import byte_progress, size

if TYPE_CHECKING:
    from elasticdl.packages.data_tools.lines.convert import Converted, Errors

RECORDS_PER_FILE = 400_000
DEFAULT_ERROR_LIMIT = 1000


def convert_raw(
    source: str,
    destination: Path,
    *,
    format_name: Literal["recordio", "tfrecord", "parquet"] | None,
    codec: str | None,
    records_per_file: int | None,
    schema: Path | None,
    validation: str | None,
    seed: int | None,
    on_error: str | None,
    error_limit: int | None,
    records_per_row_group: int | None,
) -> None:
    """Convert lines of Criteo's format, and print how many records there were.

    Raises:
        ConfigError: The settings do not go together.
        DataError: A line or file cannot be read; nothing is written then.
    """
    require_pyarrow()
    from elasticdl.data.paths import expand_paths
    from elasticdl.data.remote import size_of
    from elasticdl.packages.data_tools.convert import RECORDS_PER_ROW_GROUP, Target
    from elasticdl.packages.data_tools.lines.convert import convert_lines
    from elasticdl.packages.data_tools.lines.schema import CRITEO, read_schema
    from elasticdl.packages.data_tools.lines.split import Split, parse_fraction

    name = format_name or "recordio"
    if name == "tfrecord" and codec not in (None, "none"):
        raise ConfigError(f"--codec {codec}: TFRecord files are not compressed; write RecordIO")
    if seed is not None and validation is None:
        raise ConfigError("--seed chooses records for validation: give --validation, such as 1/20")
    fields = read_schema(schema) if schema else CRITEO
    split = Split(parse_fraction(validation), seed or 0) if validation else None
    if records_per_row_group is not None and name != "parquet":
        raise ConfigError("--records_per_row_group goes only with --format=parquet")
    target = Target(
        destination,
        name,
        codec or "zstd",
        records_per_file or RECORDS_PER_FILE,
        records_per_row_group or RECORDS_PER_ROW_GROUP,
    )
    paths = expand_paths(source)
    began = time.monotonic()
    with byte_progress("converting", sum(map(size_of, paths))) as on_progress:
        errors = _errors(on_error, error_limit)
        converted = convert_lines(paths, fields, target, split, errors, on_progress)
    _report(converted, target.path, name, time.monotonic() - began)


def require_pyarrow() -> None:
    """Refuse to go on without pyarrow, and say how to install it.

    Raises:
        ConfigError: pyarrow is not installed.
    """
    from elasticdl.data.parquet import import_pyarrow

    import_pyarrow("lines of fields (--from=criteo)")


def _errors(on_error: str | None, error_limit: int | None) -> Errors:
    from elasticdl.packages.data_tools.lines.convert import Errors
    from elasticdl.packages.data_tools.lines.parse import BadLine

    if on_error != "skip":
        if error_limit is not None:
            raise ConfigError("--error_limit goes only with --on_error=skip")
        return Errors()

    def tell(line: BadLine) -> None:
        echo(f"left out: {line}", err=True)

    return Errors(error_limit or DEFAULT_ERROR_LIMIT, tell)


def _report(converted: Converted, folder: Path, format_name: str, seconds: float) -> None:
    num_bytes = sum(file.stat().st_size for file in folder.rglob("*.*") if file.is_file())
    counts = converted.num_records
    num_records = sum(counts.values())
    by_name = ", ".join(f"{count:,} in {name}" for name, count in counts.items() if name)
    skipped = f"; {converted.num_skipped:,} lines left out" if converted.num_skipped else ""
    Terminal().print(
        f"{num_records:,} records{f' ({by_name})' if by_name else ''} in {converted.num_files:,} "
        f"{format_name} file{'s'[: converted.num_files != 1]}, {size(num_bytes)}: {folder} "
        f"({num_records / max(seconds, 1e-9):,.0f} records/s){skipped}",
        highlight=False,
        soft_wrap=True,
    )

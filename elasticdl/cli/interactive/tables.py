"""Data as a place that workers read: a path or URL as it is, a table in memory as Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.distribution import install
from elasticdl.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

_ROW_GROUP = 65_536


def place_of(data: object, folder: Path, name: str) -> str:
    """Return where data is read; a table is written into a folder, which is made.

    Args:
        data: A path or URL, or a table: of pandas, polars, pyarrow, DuckDB or whatever else has
            Arrow's C data interface (`__arrow_c_stream__`).
        folder: Where tables are written.
        name: Of the argument, for the file and for errors.

    Raises:
        DataError: It is neither, has no rows, or cannot be written.
        ConfigError: pyarrow is not installed.
    """
    if isinstance(data, str | Path):
        return str(data)
    if not hasattr(data, "__arrow_c_stream__"):
        raise DataError(
            f"{name}: expected a path, a URL, or a table of pandas, polars or Arrow, found "
            f"{type(data).__module__}.{type(data).__name__}"
        )
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise ConfigError(f"{name}: a table is read by pyarrow; {install('parquet')}") from error
    table = _table_of(data)
    if not table.num_rows:
        raise DataError(f"{name}: expected a table with rows, found none")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.parquet"
    try:
        # Without Arrow's own types: a word is a word, whatever the library keeps it in.
        parquet.write_table(table, path, row_group_size=_ROW_GROUP, store_schema=False)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    return str(path)


def _table_of(data: Any) -> pa.Table:
    import pyarrow as pa

    if type(data).__module__.partition(".")[0] == "pandas":
        # The index is no column of the data.
        return pa.Table.from_pandas(data, preserve_index=False)
    return pa.table(data)

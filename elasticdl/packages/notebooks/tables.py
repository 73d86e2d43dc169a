"""Gives workers a place to read data from; a table in memory becomes a Parquet file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.data.arrow_columns import TEXTS
from elasticdl.distribution import install
from elasticdl.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

_ROW_GROUP = 8_192
"""Rows that are decoded for one of them; with --shuffle=records a task has some of each group."""


def place_of(data: object, folder: Path, name: str) -> str:
    """Return the place of data; a table is written into a folder, which is made.

    Args:
        data: A path or URL, or a table: of pandas, polars, pyarrow, DuckDB or whatever else has
            Arrow's C data interface (`__arrow_c_stream__`).
        folder: The folder for tables.
        name: The name of the argument, for the file and for errors.

    Raises:
        DataError: The data are neither, have no rows, or cannot be written.
        ConfigError: pyarrow is not installed.
    """
    if isinstance(data, str | Path):
        return str(data)
    if not hasattr(data, "__arrow_c_stream__"):
        raise DataError(
            f"{name}: expected a path, a URL, or a table of pandas, polars or Arrow, found "
            f"{_type_of(data)}"
        )
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise ConfigError(f"{name}: a table is read by pyarrow; {install('parquet')}") from error
    table = _table_of(data, name)
    if not table.num_rows:
        raise DataError(f"{name}: expected a table with rows, found none")
    # The table may hold the user's private data.
    folder.mkdir(0o700, parents=True, exist_ok=True)
    path = folder / f"{name}.parquet"
    # A file without Arrow's schema gives plain strings for the string types of any library. But
    # Parquet has no type for a duration or a vector, so a table with one needs the schema.
    keeps_types = any(map(_is_of_arrow_alone, table.schema.types))
    try:
        parquet.write_table(
            table,
            path,
            row_group_size=_ROW_GROUP,
            store_schema=keeps_types,
            write_page_checksum=True,
        )
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    except (ValueError, NotImplementedError) as error:
        raise _not_written(name, error) from error
    return str(path)


def _table_of(data: Any, name: str) -> pa.Table:
    import pyarrow as pa

    # A program may have a class of its own for tables of a library.
    libraries = {kind.__module__.partition(".")[0] for kind in type(data).__mro__}
    if "polars" in libraries:
        for column, kind in getattr(data, "schema", {}).items():
            if str(kind) == "Object":  # Arrow is given the addresses of the objects
                raise _not_written(name, f"column {column!r} has objects of Python")
    try:
        if "pandas" in libraries:
            # The index is no column of the data.
            table = pa.Table.from_pandas(data, preserve_index=False)
        else:
            table = pa.table(data)
        for number, field in enumerate(table.schema):
            kind = field.type
            if isinstance(kind, pa.BaseExtensionType) and kind.extension_name not in TEXTS:
                raise _not_written(
                    name,
                    f"column {field.name!r} is {kind}, whose meaning a file does not keep",
                )
            if pa.types.is_dictionary(kind):
                table = table.set_column(number, field.name, _decoded(table.column(number)))
    except (AttributeError, OverflowError, TypeError, ValueError, NotImplementedError) as error:
        raise _not_written(name, error) from error
    return table


def _type_of(data: object) -> str:
    kind = type(data)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _is_of_arrow_alone(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_duration(kind) or pa.types.is_fixed_size_list(kind))


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values of a column of categories; Arrow does not write all kinds of them.

    Polars keeps the words as views, and Parquet has no dictionary of views. A dictionary with null
    cannot be written either.
    """
    import pyarrow as pa

    kind = column.type.value_type
    has_null = any(chunk.dictionary.null_count for chunk in column.chunks)
    if not has_null and not pa.types.is_string_view(kind):
        return column
    kind = pa.large_string() if pa.types.is_string_view(kind) else kind
    chunks = [
        pa.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(kind))
        for chunk in column.chunks
    ]
    return pa.chunked_array([chunk.dictionary_decode() for chunk in chunks], kind)


def _not_written(name: str, why: object) -> DataError:
    said = " ".join(map(str, why.args)) if isinstance(why, Exception) else str(why)
    return DataError(
        f"{name}: the table cannot be written as Parquet: {said}; expected columns of numbers, "
        "truth values, text, times or lists of these, each of another name"
    )

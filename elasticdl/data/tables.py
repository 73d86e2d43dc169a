"""Data of any reader as a table that DuckDB can ask questions of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from elasticdl.data.base import DataReader
from elasticdl.data.copies import readable
from elasticdl.data.csv_columns import KINDS, CsvColumns, require_names
from elasticdl.data.parquet import ParquetReader, import_pyarrow
from elasticdl.data.spool import ROW, spool
from elasticdl.data.text import TextReader
from elasticdl.distribution import install
from elasticdl.errors import ConfigError, DataError

TABLE = "data"
_LINES = "lines"
_SQL_KINDS = {"int64": "BIGINT", "float": "DOUBLE", "bytes": "VARCHAR"}


@dataclass(frozen=True, slots=True)
class Database:
    """A connection whose table `data` has the records.

    row: An expression that is a number of each row, the same whenever it is asked for.
    columns: Names and DuckDB's types.
    """

    connection: Any
    row: str
    columns: dict[str, str]
    num_files: int

    def ask(self, query: str) -> Any:
        """Run a query. Its errors are those of the data."""
        return run(self.connection, query)


@contextmanager
def open_database(
    reader: DataReader,
    source: str,
    types: Mapping[str, str],
    missing: tuple[str, ...],
    num_threads: int,
) -> Iterator[Database]:
    """Make a table of some data. Parquet files are read in place, all else is copied to disk.

    Args:
        reader: Has the data.
        source: What the data was called on the command line.
        types: Kinds of CSV columns that are not to be found out.
        missing: Fields of CSV that stand for no value.
        num_threads: How many answer a query.

    Raises:
        ConfigError: The records have no columns, or a setting is wrong.
        DataError: The data cannot be read.
    """
    duckdb = _import_duckdb()
    if types and not isinstance(reader, TextReader):
        raise ConfigError("--types is for CSV; other files have types of their own")
    with TemporaryDirectory(prefix="elasticdl-analyze-") as folder:
        settings = {
            "threads": num_threads,
            "temp_directory": f"{folder}/spill",
            "preserve_insertion_order": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        with duckdb.connect(f"{folder}/data.duckdb", config=settings) as connection:
            row = _fill(connection, reader, source, types, missing, Path(folder), num_threads)
            columns = run(connection, f"DESCRIBE {TABLE}").fetchall()
            kinds = {name: kind for name, kind, *_ in columns if name != row}
            yield Database(connection, row, kinds, len(_names(reader)))


def _names(reader: DataReader) -> list[str]:
    """Return the names of the shards: files, of which a reader may have several ranges."""
    return list(dict.fromkeys(shard.name for shard in reader.shards()))


def quoted(name: str) -> str:
    """Return a name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def run(connection: Any, query: str) -> Any:
    """Run a query.

    Raises:
        DataError: The data does not let it be answered.
    """
    duckdb = _import_duckdb()
    try:
        return connection.execute(query)
    except duckdb.Error as error:
        raise DataError(_first_line(error)) from error


def _import_duckdb() -> Any:
    try:
        import duckdb
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"statistics need DuckDB, which is not installed: {install('statistics')}"
        ) from error
    import_pyarrow("statistics")
    return duckdb


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _fill(
    connection: Any,
    reader: DataReader,
    source: str,
    types: Mapping[str, str],
    missing: tuple[str, ...],
    folder: Path,
    num_threads: int,
) -> str:
    """Make the table; return the expression that numbers its rows."""
    shards = reader.shards()
    if not shards:
        raise DataError(f"{source}: there are no records")
    paths = _names(reader)
    if isinstance(reader, ParquetReader | TextReader):
        paths = [readable(path, by_content=isinstance(reader, TextReader)) for path in paths]
    if isinstance(reader, ParquetReader):
        reader.metadata  # noqa: B018 - compares the files' schemas
        columns = ", ".join(map(quoted, reader.metadata.column_names))
        relation = connection.read_parquet(paths, file_row_number=True)
        relation.select(f"{columns}, file_row_number").create_view(TABLE)
        return "file_row_number"
    if isinstance(reader, TextReader):
        _copy_csv(connection, reader, paths, types, missing)
        return ROW
    connection.register(TABLE, spool(reader, folder, num_threads))
    return ROW


def _copy_csv(
    connection: Any,
    reader: TextReader,
    paths: list[str],
    types: Mapping[str, str],
    missing: tuple[str, ...],
) -> None:
    names = reader.metadata.column_names
    if not names:
        raise ConfigError(
            "statistics need names for the columns: give --data_reader_params=skip_header=true if "
            "the first line has them, or columns=a,b,c"
        )
    require_names(names)
    for name, kind in types.items():
        if name not in names or kind not in KINDS:
            raise ConfigError(
                f"--types: {name}={kind}: expected a column ({', '.join(names)}) and "
                f"a type ({', '.join(KINDS)})"
            )
    duckdb = _import_duckdb()
    try:
        lines = connection.read_csv(
            paths,
            header=reader.has_header,
            names=list(names),
            sep=reader.delimiter,
            quotechar='"',
            escapechar='"',
            na_values=list(missing),
            all_varchar=True,
            null_padding=False,
            ignore_errors=False,
        )
        lines.create(_LINES)
    except duckdb.Error as error:
        _require_lines(reader, names)
        raise DataError(_csv_message(error)) from error
    _require_as_many(connection, reader)
    kinds = {name: _SQL_KINDS[kind] for name, kind in types.items()}
    columns = [_typed(connection, name, kinds.get(name)) for name in names]
    run(
        connection,
        f"CREATE VIEW {TABLE} AS SELECT {', '.join(columns)}, rowid AS {ROW} FROM {_LINES}",
    )


def _require_lines(reader: TextReader, names: tuple[str, ...]) -> None:
    """Find the line that does not parse: its number and reason are what a user can act on."""
    lines = CsvColumns(names, reader.delimiter, frozenset())
    for shard in reader.shards():
        for records in reader.read(shard):
            lines.parse(records, shard.name)


def _require_as_many(connection: Any, reader: TextReader) -> None:
    """Refuse quoted line feeds of which the reader does not know: training would cut records."""
    num_lines = sum(shard.num_records for shard in reader.shards())
    (num_rows,) = run(connection, f"SELECT count(*) FROM {_LINES}").fetchone()
    if num_rows < num_lines:
        name = reader.shards()[0].name
        raise DataError(
            f"{name}: {num_lines:,} records by its lines, {num_rows:,} by its quotes: fields have "
            "line feeds; give --data_reader_params=quoted_newlines=true, for training too"
        )


def _typed(connection: Any, name: str, kind: str | None) -> str:
    """Return the column with the narrowest type that all its values have, or the one given."""
    column = quoted(name)
    narrowest = "BIGINT" if kind == "VARCHAR" else _narrowest(connection, column, kind)
    order = list(_SQL_KINDS.values())
    if kind is not None and order.index(kind) < order.index(narrowest):
        given = KINDS[order.index(kind)]
        raise DataError(
            f"column {name!r}: expected {given} (--types), but it has values that are none"
        )
    return f"{column}::{kind or narrowest} AS {column}"


def _narrowest(connection: Any, column: str, asked_for: str | None) -> str:
    present = f"FROM {_LINES} WHERE {column} IS NOT NULL"
    # Most columns of text show it at once; the others' different values are looked at.
    for values in (
        f"(SELECT {column} AS v {present} LIMIT 1000)",
        f"(SELECT DISTINCT {column} AS v {present})",
    ):
        digits, whole, real = run(
            connection,
            "SELECT bool_and(regexp_full_match(v, '[+-]?[0-9]+')), "
            "bool_and(regexp_full_match(v, '[+-]?[0-9]{1,19}') AND TRY_CAST(v AS BIGINT) IS NOT "
            f"NULL), bool_and(TRY_CAST(v AS DOUBLE) IS NOT NULL) FROM {values}",
        ).fetchone()
        if real is False:
            return "VARCHAR"
    if (
        digits and not whole and asked_for != "DOUBLE"
    ):  # ids that are too large: of DOUBLE several would be one
        return "VARCHAR"
    return "BIGINT" if whole is not False else "DOUBLE"


def _csv_message(error: Exception) -> str:
    """What DuckDB says of a line, without its advice, which is of its own settings."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    facts = [line for line in lines[:4] if not line.startswith(("Possible", "*"))]
    places = [line for line in lines[4:] if line.startswith("file =")]
    return "; ".join([*facts, *places])

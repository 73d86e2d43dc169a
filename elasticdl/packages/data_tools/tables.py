"""Makes data of any reader a table that DuckDB can query."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TYPE_CHECKING

from elasticdl.data.base import DataReader, Records
from elasticdl.data.copies import readable
from elasticdl.data.csv_columns import find_kinds, require_kinds, require_names
from elasticdl.data.parquet import ParquetReader, import_pyarrow
from elasticdl.data.text import TextReader
from elasticdl.distribution import install
from elasticdl.errors import ConfigError, DataError
from elasticdl.packages.data_tools.spool import ROW as SPOOLED_ROW
from elasticdl.packages.data_tools.spool import spool

if TYPE_CHECKING:
    import duckdb
    import pyarrow


TABLE = "data"
ROW = "row_number"
_FILE_ROW = "file_row_number"
_FILE_NAME = "filename"
_INTERRUPTED = "Query interrupted"


@dataclass(frozen=True, slots=True)
class Database:
    """A connection whose table `data` has the records.

    row: An expression for the number of each row; it gives the same number each time.
    columns: Names and DuckDB's types.
    places: The name of each column in the table. SQL does not distinguish a and A.
    """

    connection: duckdb.DuckDBPyConnection
    row: str
    columns: dict[str, str]
    places: dict[str, str]
    num_files: int

    def ask(self, query: str) -> duckdb.DuckDBPyConnection:
        """Run a query; its errors are errors of the data."""
        return run(self.connection, query)


@contextmanager
def open_database(
    reader: DataReader,
    source: str,
    types: Mapping[str, str],
    missing: tuple[str, ...],
    num_threads: int,
) -> Iterator[Database]:
    """Make a table of some data; Parquet files are read in place, other data is copied to disk.

    Args:
        reader: Has the data.
        source: The name of the data on the command line.
        types: The kinds of CSV columns that need not be found.
        missing: Fields of CSV that stand for no value.
        num_threads: The number of threads that answer a query.

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
            # Every query that needs an order asks for it; keeping it costs memory.
            "preserve_insertion_order": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        with duckdb.connect(f"{folder}/data.duckdb", config=settings) as connection:
            try:
                with _copying(folder):
                    names = _fill(
                        connection, reader, source, types, missing, Path(folder), num_threads
                    )
                described = run(connection, f"DESCRIBE {TABLE}").fetchall()
                kinds = {place: kind for place, kind, *_ in described}
                places = {name: _place(number) for number, name in enumerate(names)}
                columns = {name: kinds[place] for name, place in places.items()}
                yield Database(connection, ROW, columns, places, len(_names(reader)))
            except duckdb.Error as error:  # also of what is fetched later
                raise DataError(_first_line(error)) from error
            except RuntimeError as error:
                # A signal ends a query by this error, in place of what its handler has raised.
                if str(error) == _INTERRUPTED:
                    raise KeyboardInterrupt from None
                raise


@contextmanager
def _copying(folder: str) -> Iterator[None]:
    """Tell that the copy of the data cannot be written."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{folder}: the copy of the data cannot be written: {error.strerror or error}; TMPDIR "
            "names another folder for it"
        ) from error


def _names(reader: DataReader) -> list[str]:
    """Return the names of the shards, which are files; a reader may list several ranges of one."""
    return list(dict.fromkeys(shard.name for shard in reader.shards()))


def _place(number: int) -> str:
    """Return the name of a column in the table."""
    return f"c{number}"


def quoted(name: str) -> str:
    """Return a name in quotes of SQL."""
    return '"' + name.replace('"', '""') + '"'


def run(connection: duckdb.DuckDBPyConnection, query: str) -> duckdb.DuckDBPyConnection:
    """Run a query.

    Raises:
        DataError: The query fails because of the data.
    """
    module = _import_duckdb()
    try:
        return connection.execute(query)
    except module.Error as error:
        raise DataError(_first_line(error)) from error


def _import_duckdb() -> ModuleType:
    try:
        import duckdb
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"statistics need DuckDB, which is not installed: {install('statistics')}"
        ) from error
    import_pyarrow("statistics")
    module: ModuleType = duckdb
    return module


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _fill(
    connection: duckdb.DuckDBPyConnection,
    reader: DataReader,
    source: str,
    types: Mapping[str, str],
    missing: tuple[str, ...],
    folder: Path,
    num_threads: int,
) -> Sequence[str]:
    """Make the table, with `ROW` as the number of each row; return the names of its columns."""
    shards = reader.shards()
    if not shards:
        raise DataError(f"{source}: there are no records")
    if isinstance(reader, ParquetReader):
        names = reader.metadata.column_names  # compares the files' schemas
        found = _in_place(connection, reader, names)
        if found is not None:
            found.create_view(TABLE)
            return names
    if isinstance(reader, TextReader):
        table = _spool_csv(reader, types, missing, folder, num_threads)
    else:
        table = spool(reader, folder, num_threads)
    spooled = [name for name in table.column_names if name != SPOOLED_ROW]
    places = [*map(_place, range(len(spooled))), ROW]
    ordered = table.select([*spooled, SPOOLED_ROW])
    connection.register(TABLE, ordered.rename_columns(places))
    return spooled


def _in_place(
    connection: duckdb.DuckDBPyConnection, reader: ParquetReader, names: Sequence[str]
) -> duckdb.DuckDBPyRelation | None:
    """Return a relation that reads Parquet files in place; None if SQL would read other columns."""
    paths = [readable(path) for path in _names(reader)]
    known = {name.lower() for name in reader.file_columns}
    # SQL takes `a` and `A` for one name, and has a column of its own for the row's number.
    is_taken = known & {"", _FILE_ROW, _FILE_NAME}
    if not reader.is_one_table or len(known) < len(reader.file_columns) or is_taken:
        return None
    columns = [f"{quoted(name)} AS {_place(number)}" for number, name in enumerate(names)]
    relation = connection.read_parquet(
        paths, file_row_number=True, filename=True, hive_partitioning=False
    )
    row = _FILE_ROW
    # A number in a file alone would choose the same rows of each file for a sample.
    if len(paths) > 1:
        # The same data may lie elsewhere, so what all names begin with does not count.
        start = len(os.path.commonprefix(paths)) + 1  # noqa: RUF071 - of text, as meant
        row = f"hash({_FILE_NAME}[{start}:], {_FILE_ROW})"
    return relation.select(", ".join([*columns, f"{row} AS {ROW}"]))


def _spool_csv(
    reader: TextReader,
    types: Mapping[str, str],
    missing: tuple[str, ...],
    folder: Path,
    num_threads: int,
) -> pyarrow.Table:
    """Return a table of typed columns, each with the narrowest type for all its values."""
    names = reader.metadata.column_names
    if not names:
        raise ConfigError(
            "statistics need names for the columns: give --data_reader_params=skip_header=true if "
            "the first line has them, or columns=a,b,c"
        )
    require_names(names)
    require_kinds(types, names)
    lines = reader.columns(missing)
    kinds = find_kinds(reader, lines, num_threads) | dict(types)
    arrow, _ = import_pyarrow("statistics")

    def columns(records: Records, source: str) -> Mapping[str, object]:
        return lines.arrow(arrow, lines.fields(records, source), kinds, records, source)

    return spool(reader, folder, num_threads, columns)

"""Finds the reader for data: the user's own function, or by format, extension or first bytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from elasticdl import registry
from elasticdl.data import remote
from elasticdl.data.base import DataReader
from elasticdl.data.copies import unpacked_name
from elasticdl.data.custom import make_custom_reader
from elasticdl.data.in_order import of_files
from elasticdl.data.kinds import DataSource, FileFormat
from elasticdl.data.params import Params
from elasticdl.data.parquet import ParquetReader
from elasticdl.data.paths import expand_paths
from elasticdl.data.recordio import MAGIC as RECORDIO_MAGIC
from elasticdl.data.recordio import RecordIOReader
from elasticdl.data.sources import source_at
from elasticdl.data.text import TextReader
from elasticdl.data.tfrecord import HEADER_BYTES, TFRecordReader, starts_like_tfrecord
from elasticdl.errors import ConfigError, DataError
from elasticdl.settings.reader_params import FLAG

_MAGICS = ((RECORDIO_MAGIC, "recordio"), (b"PAR1", "parquet"))
_NOT_READ = (
    (
        b"\x1f\x8b",
        "gzip, and its name does not say the format of its content; rename it, for example to "
        "NAME.csv.gz",
    ),
    (b"BZh", "bzip2; unpack it, or compress it by gzip or zstd"),
    (b"\xfd7zXZ", "xz; unpack it, or compress it by gzip or zstd"),
    (b"PK\x03\x04", "zip; unpack it, or read it by a custom_data_reader (docs/data.md)"),
)
_OWN: dict[str, FileFormat] = {
    "recordio": FileFormat(
        re.compile(r"\.(recordio|rio)$"), lambda paths, params: RecordIOReader(paths)
    ),
    "tfrecord": FileFormat(
        re.compile(r"\.tfrecords?(-\d+-of-\d+)?$"), lambda paths, params: TFRecordReader(paths)
    ),
    "csv": FileFormat(
        re.compile(r"\.(csv|tsv)$"),
        lambda paths, params: TextReader.from_params(paths, params, is_csv=True),
    ),
    "text": FileFormat(
        re.compile(r"\.(txt|text|jsonl)$"),
        lambda paths, params: TextReader.from_params(paths, params, is_csv=False),
    ),
    "parquet": FileFormat(
        re.compile(r"\.(parquet|pq)$"),
        lambda paths, params: ParquetReader(paths, params.names("columns")),
    ),
}


def open_reader(
    path_expression: str,
    params: str = "",
    custom_data_reader: Callable[..., object] | None = None,
) -> DataReader:
    """Return the reader for files, folders and globs, or for the URL of a table or a database.

    Args:
        path_expression: The place of the data; a custom reader may read it in its own way.
        params: Settings of the reader, `name=value;name=value`. `format` overrides what the
            files' extensions and first bytes say; `docs/designs/recordio.md` has the others.
        custom_data_reader: The function of this name of the user's model file.

    Raises:
        DataError: There are no such files, or they have an unknown format, or several formats.
        ConfigError: The reader has no such setting.
        ModelError: The custom function returned no reader.
    """
    settings = Params(params)
    if custom_data_reader is not None:
        return make_custom_reader(custom_data_reader, path_expression, settings.all())
    name, reader = _open(path_expression, settings)
    settings.finish(f"the {name} reader")
    return reader


def _open(place: str, settings: Params) -> tuple[str, DataReader]:
    """Return the name of a format and the reader."""
    name = settings.text("format", "")
    if found := source_at(place, name):
        source_name, source = found
        return source_name, source.reader(place, settings)
    paths = expand_paths(place)
    name = name or format_of(paths)
    formats = _file_formats()
    if name not in formats:
        raise ConfigError(f"{FLAG}: format={name}: expected one of {', '.join(_formats())}")
    return name, formats[name].reader(paths, settings)


def format_of_whole(place: str, params: str = "") -> str:
    """Return the name of a source that is no list of files (database, topic, images), or ""."""
    found = source_at(place, Params(params).text("format", ""))
    return found[0] if found else ""


def _file_formats() -> dict[str, FileFormat]:
    """Return all formats of files; a package adds some, and replaces none."""
    return {**_OWN, **registry.brought("formats"), **_OWN}


def _formats() -> list[str]:
    sources: dict[str, DataSource] = registry.brought("sources")
    own = [source.format for source in sources.values() if source.format]
    return [*_file_formats(), *own]


def format_of(paths: Sequence[str]) -> str:
    """Return the single format of some files.

    Raises:
        DataError: A file has an unknown format, or another format than the first.
    """
    formats = _file_formats()
    each = of_files(lambda path: _format_of_file(path, formats), paths)
    first = next(each)
    for path, found in zip(paths[1:], each, strict=True):
        if found != first:
            raise DataError(
                f"{path} is {found}, but {paths[0]} is {first}: give files of one format, "
                "for example by a glob"
            )
    return first


def _format_of_file(path: str, formats: Mapping[str, FileFormat]) -> str:
    start = _first_bytes(path)
    for magic, name in _MAGICS:
        if start.startswith(magic):
            return name
    # The first bytes are more reliable than the name. CSV, text and LIBSVM have no mark, so the
    # name decides.
    name_of_file = unpacked_name(remote.without_query(path).lower())
    for name, each in formats.items():
        if each.extension.search(name_of_file):
            return name
    if starts_like_tfrecord(start):
        return "tfrecord"
    for magic, what in _NOT_READ:
        if start.startswith(magic):
            raise DataError(f"{path}: compressed by {what}")
    raise DataError(
        f"{path}: its name has no known format ({', '.join(_formats())}); name the format by "
        f"{FLAG}=format=NAME, or read it by a custom_data_reader (docs/data.md)"
    )


def _first_bytes(path: str) -> bytes:
    if remote.is_url(path):
        return remote.read_range(path, 0, min(HEADER_BYTES, remote.size_of(path)))
    try:
        with open(path, "rb") as file:
            return file.read(HEADER_BYTES)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error

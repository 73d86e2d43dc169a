"""Finds the reader for data: the user's own function, or by format, extension or first bytes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence

from elasticdl.data import remote
from elasticdl.data.base import DataReader
from elasticdl.data.copies import unpacked_name
from elasticdl.data.custom import make_custom_reader
from elasticdl.data.images import ImageFolderReader, is_image_folder
from elasticdl.data.kafka_reader import KafkaReader
from elasticdl.data.libsvm import LibsvmReader
from elasticdl.data.maxcompute import MaxComputeReader, is_maxcompute
from elasticdl.data.params import Params
from elasticdl.data.parquet import ParquetReader
from elasticdl.data.paths import expand_paths
from elasticdl.data.recordio import MAGIC as RECORDIO_MAGIC
from elasticdl.data.recordio import RecordIOReader
from elasticdl.data.sql import SqlReader, is_database
from elasticdl.data.text import TextReader
from elasticdl.data.tfrecord import HEADER_BYTES, TFRecordReader, starts_like_tfrecord
from elasticdl.data.topic import is_topic
from elasticdl.errors import ConfigError, DataError
from elasticdl.settings.reader_params import FLAG

_MAGICS = ((RECORDIO_MAGIC, "recordio"), (b"PAR1", "parquet"))
_EXTENSIONS = (
    (re.compile(r"\.(recordio|rio)$"), "recordio"),
    (re.compile(r"\.tfrecords?(-\d+-of-\d+)?$"), "tfrecord"),
    (re.compile(r"\.(csv|tsv)$"), "csv"),
    (re.compile(r"\.(txt|text|jsonl)$"), "text"),
    (re.compile(r"\.(parquet|pq)$"), "parquet"),
    (re.compile(r"\.(libsvm|svm|svmlight)$"), "libsvm"),
)
_GZIP_MAGIC = b"\x1f\x8b"
_MAKERS: dict[str, Callable[[Sequence[str], Params], DataReader]] = {
    "recordio": lambda paths, params: RecordIOReader(paths),
    "tfrecord": lambda paths, params: TFRecordReader(paths),
    "csv": lambda paths, params: TextReader.from_params(paths, params, is_csv=True),
    "text": lambda paths, params: TextReader.from_params(paths, params, is_csv=False),
    "parquet": lambda paths, params: ParquetReader(paths, params.names("columns")),
    "libsvm": lambda paths, params: LibsvmReader(paths),
}
_IMAGES = "images"
FORMATS = (*_MAKERS, _IMAGES)


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
    if is_database(place):
        return "SQL", SqlReader.from_params(place, settings)
    if is_maxcompute(place):
        return "MaxCompute", MaxComputeReader.from_params(place, settings)
    if is_topic(place):
        return "Kafka", KafkaReader.from_params(place, settings)
    name = settings.text("format", "")
    if name == _IMAGES and remote.is_url(place):
        raise ConfigError(
            f"{place}: folders of images are read from the file system alone; mount it, or make "
            "records of the images: elasticdl data convert FOLDER images.recordio --as example"
        )
    if name == _IMAGES or (not name and is_image_folder(place)):
        return _IMAGES, ImageFolderReader(os.path.abspath(os.path.expanduser(place)))
    paths = expand_paths(place)
    name = name or format_of(paths)
    make = _MAKERS.get(name)
    if make is None:
        raise ConfigError(f"{FLAG}: format={name}: expected one of {', '.join(FORMATS)}")
    return name, make(paths, settings)


def format_of_whole(place: str, params: str = "") -> str:
    """Return the name of a source that is no list of files (database, tables, images), or ""."""
    if is_database(place):
        return "SQL"
    if is_maxcompute(place):
        return "MaxCompute"
    if is_topic(place):
        return "Kafka"
    given = Params(params).text("format", "")
    return _IMAGES if given == _IMAGES or (not given and is_image_folder(place)) else ""


def format_of(paths: Sequence[str]) -> str:
    """Return the single format of some files.

    Raises:
        DataError: A file has an unknown format, or another format than the first.
    """
    first = _format_of_file(paths[0])
    for path in paths[1:]:
        found = _format_of_file(path)
        if found != first:
            raise DataError(
                f"{path} is {found}, but {paths[0]} is {first}: give files of one format, "
                "for example by a glob"
            )
    return first


def _format_of_file(path: str) -> str:
    start = _first_bytes(path)
    for magic, name in _MAGICS:
        if start.startswith(magic):
            return name
    # The first bytes are more reliable than the name. CSV, text and LIBSVM have no mark, so the
    # name decides.
    for pattern, name in _EXTENSIONS:
        if pattern.search(unpacked_name(remote.without_query(path).lower())):
            return name
    if starts_like_tfrecord(start):
        return "tfrecord"
    if start.startswith(_GZIP_MAGIC):
        raise DataError(
            f"{path}: compressed by gzip, and its name does not say what it holds; "
            "name it so, for example .csv.gz"
        )
    raise DataError(
        f"{path}: of no known format (.recordio, .tfrecord, .csv, .txt, .parquet, .libsvm); "
        f"say which it is by {FLAG}=format={'|'.join(FORMATS)}"
    )


def _first_bytes(path: str) -> bytes:
    if remote.is_url(path):
        return remote.read_range(path, 0, min(HEADER_BYTES, remote.size_of(path)))
    try:
        with open(path, "rb") as file:
            return file.read(HEADER_BYTES)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error

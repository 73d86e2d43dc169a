"""Reads TFRecord files. They have no index, so one is kept beside each as `FILE.idx`."""

from __future__ import annotations

from collections.abc import Sequence

from elasticdl._core import TFRecordReader as TFRecordFile
from elasticdl._core import crc32c
from elasticdl.data.copies import readable
from elasticdl.data.files import FileReader
from elasticdl.data.remote import is_url
from elasticdl.errors import DataError

_CRC_MASK_DELTA = 0xA282EAD8
HEADER_BYTES = 12


class TFRecordReader(FileReader):
    """Reads TFRecord files; files that are compressed by gzip or zstd are unpacked first."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(paths, lambda path: TFRecordFile(unpacked(path)))


def unpacked(path: str) -> str:
    """Return the file, or its uncompressed copy; a name from TensorFlow does not tell which."""
    return readable(path, by_content=is_url(path) or not _is_plain(path))


def _is_plain(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return starts_like_tfrecord(file.read(HEADER_BYTES))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def starts_like_tfrecord(start: bytes) -> bool:
    """Return whether a file begins with a record's length and its masked checksum."""
    if len(start) < HEADER_BYTES:
        return False
    # The format has no mark at its start, but a wrong checksum of the length is very unlikely by
    # chance.
    crc = crc32c(start[:8])
    masked = ((crc >> 15 | crc << 17) + _CRC_MASK_DELTA) & 0xFFFFFFFF
    return masked == int.from_bytes(start[8:12], "little")

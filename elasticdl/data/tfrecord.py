"""TFRecord files. They have no index, so one is kept beside each as `FILE.idx`."""

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
    """Reads TFRecord files. Those compressed by gzip or zstd are unpacked first."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(paths, lambda path: TFRecordFile(unpacked(path)))


def unpacked(path: str) -> str:
    """Return the file, or its copy that is not compressed: TensorFlow's names do not tell."""
    return readable(path, by_content=is_url(path) or not _is_plain(path))


def _is_plain(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return starts_like_tfrecord(file.read(HEADER_BYTES))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def starts_like_tfrecord(start: bytes) -> bool:
    """Tell whether a file's first bytes are a record's length and the masked checksum of it."""
    if len(start) < HEADER_BYTES:
        return False
    crc = crc32c(start[:8])
    masked = ((crc >> 15 | crc << 17) + _CRC_MASK_DELTA) & 0xFFFFFFFF
    return masked == int.from_bytes(start[8:12], "little")

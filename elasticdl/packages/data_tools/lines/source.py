"""Blocks of whole lines of text files, plain or compressed by gzip or zstd."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow

from elasticdl.data.remote import open_binary, size_of
from elasticdl.errors import DataError

BLOCK_BYTES = 4 << 20
MAX_LINE_BYTES = 16 << 20
_MAGICS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines that follow one another in a file.

    first_line: The number of its first line in the file, from 1.
    first_row: The number of its first line in all files together, from 0, without header lines.
    num_bytes: The bytes of the file, as it is on the disk, that were read for it.
    """

    path: str
    first_line: int
    first_row: int
    lines: bytes
    num_lines: int
    num_bytes: int


def read_blocks(
    paths: Sequence[str], has_header: bool, on_header: Callable[[str, bytes], None]
) -> Iterator[Block]:
    """Read files one after the other.

    Args:
        paths: Text files, plain or compressed.
        has_header: Whether the first line of each file is no record.
        on_header: Called with the file and that line, before the file's first block.

    Raises:
        DataError: A file cannot be read, is cut short, or has no lines.
    """
    row = 0
    for path in paths:
        line = 1
        for text, num_bytes in _texts(path):
            # Some programs begin a text file with a byte order mark. It is no part of the first
            # field.
            lines = text.removeprefix(codecs.BOM_UTF8) if line == 1 else text
            if line == 1 and has_header:
                header, _, lines = lines.partition(b"\n")
                on_header(path, header.rstrip(b"\r"))
                line = 2
            num_lines = lines.count(b"\n") + (not lines.endswith(b"\n") and lines != b"")
            yield Block(path, line, row, lines, num_lines, num_bytes)
            line += num_lines
            row += num_lines
        if line == 1:
            raise DataError(f"{path}: is empty; expected lines of fields")


def _texts(path: str) -> Iterator[tuple[bytes, int]]:
    """Yield the file's text, cut after line feeds, with the bytes that were read for it."""
    try:
        size = size_of(path)
        with open_binary(path) as file:
            yield from _cut(path, file, size)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _cut(path: str, file: BinaryIO, size: int) -> Iterator[tuple[bytes, int]]:
    stream = _decompressed(file)
    rest = b""
    told = 0
    while chunk := stream.read(BLOCK_BYTES):
        end = chunk.rfind(b"\n") + 1
        # A file without line ends is probably not text; it would be read into memory as one line.
        if end == 0 and len(rest) + len(chunk) > MAX_LINE_BYTES:
            raise DataError(
                f"{path}: {len(rest) + len(chunk):,} bytes without the end of a line at byte "
                f"{file.tell():,}; is it a text file?"
            )
        if end:
            at = min(file.tell(), size)
            yield rest + chunk[:end], at - told
            told, rest = at, b""
        rest += chunk[end:]
    if file.tell() < size:
        raise DataError(
            f"{path}: ended at byte {file.tell():,} of {size:,}; was it changed while it was read?"
        )
    if rest:
        yield rest, size - told


def _decompressed(file: BinaryIO) -> BinaryIO:
    start = file.read(4)
    file.seek(0)
    for magic, codec in _MAGICS.items():
        if start.startswith(magic):
            stream: BinaryIO = pyarrow.CompressedInputStream(
                pyarrow.PythonFile(file, mode="r"), codec
            )
            return stream
    return file

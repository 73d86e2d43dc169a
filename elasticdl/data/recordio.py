"""RecordIO files, the format of `docs/designs/recordio.md`."""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence

from elasticdl._core import RecordReader
from elasticdl.data import remote
from elasticdl.data.copies import readable
from elasticdl.data.files import FileReader

MAGIC = b"\x89EDLRIO\n"
_FOOTER = struct.Struct("<Q4sI")
_INDEX = struct.Struct("<4sIQ")
_log = logging.getLogger(__name__)


class RecordIOReader(FileReader):
    """Reads RecordIO files; the index at the end of a file tells where its records are."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(paths, _open, count=_count)


def _count(path: str) -> int:
    """Count the records of a file; for a URL only the index is fetched."""
    if remote.is_url(path):
        size = remote.size_of(path)
        offset, magic, _ = _FOOTER.unpack(
            remote.read_range(path, max(0, size - 16), size).ljust(16)
        )
        # A file that was not closed has no index at its end. Then it is opened, which rebuilds one.
        if magic == b"EEND" and offset + _INDEX.size < size:
            start, _, num_records = _INDEX.unpack(
                remote.read_range(path, offset, offset + _INDEX.size)
            )
            if start == b"EIDX":
                return int(num_records)
    return _open(path).num_records


def _open(path: str) -> RecordReader:
    reader = RecordReader(readable(path))
    if reader.index_state == "rebuilt":
        _log.warning(
            "%s: its writer has not closed it; %d whole records are read "
            "(`elasticdl data repair` gives it an index)",
            path,
            reader.num_records,
        )
    return reader

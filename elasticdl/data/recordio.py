"""RecordIO files, the format of `docs/designs/recordio.md`."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from elasticdl._core import RecordReader
from elasticdl.data.copies import readable
from elasticdl.data.files import FileReader

MAGIC = b"\x89EDLRIO\n"
_log = logging.getLogger(__name__)


class RecordIOReader(FileReader):
    """Reads RecordIO files; a record is found through the index at the end of its file."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(paths, _open)


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

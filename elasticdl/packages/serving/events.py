"""The kinds of events of an export that goes on."""

from __future__ import annotations

from typing import Annotated, ClassVar

from elasticdl.observe.kind import Kind


class VersionExported(Kind):
    """A version of the export that goes on is written."""

    event: ClassVar[str] = "version exported"
    version: Annotated[int, "updates of the model that it has"]
    number: Annotated[int, "of the version of the export"]
    is_base: Annotated[bool, "whether it has all rows; else what has changed since the one before"]
    num_rows: Annotated[int, "rows in it"]
    num_gone: Annotated[int, "ids that have gone since"]
    num_bytes: Annotated[int, "bytes of its files"]
    is_current: Annotated[bool, "whether it is to be served; else another version is held"]


class ExportFailed(Kind):
    """A version of the export could not be written; the next one brings what it would have had."""

    event: ClassVar[str] = "export failed"
    version: Annotated[int, "updates of the model that it would have had"]

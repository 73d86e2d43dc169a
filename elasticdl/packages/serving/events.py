"""The kinds of events of continuous exports (`--export_dir`)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from elasticdl.observe.kind import Kind


class VersionExported(Kind):
    """A version of the model was exported to `--export_dir`."""

    event: ClassVar[str] = "version exported"
    version: Annotated[int, "number of updates of the exported model"]
    number: Annotated[int, "number of the exported version"]
    is_base: Annotated[bool, "true: it has all rows; false: the changes since the version before"]
    num_rows: Annotated[int, "number of its rows"]
    num_gone: Annotated[int, "number of ids whose rows were removed since the version before"]
    num_bytes: Annotated[int, "bytes of its files"]
    is_current: Annotated[bool, "whether servers use it; false if another version is held"]


class ExportFailed(Kind):
    """A version could not be exported; the next one also has its changes."""

    event: ClassVar[str] = "export failed"
    version: Annotated[int, "number of updates of the model that was to be exported"]

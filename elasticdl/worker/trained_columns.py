"""Keeps the columns that a model was trained on in a file beside it, to compare other data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from elasticdl.data.base import Metadata

FILE = "trained_columns.json"


def write_trained_columns(folder: Path, metadata: Metadata) -> None:
    """Write names and types of columns into the folder of a model; write nothing if there are none.

    Raises:
        OSError: The file cannot be written.
    """
    if not metadata.column_names and not metadata.column_dtypes:
        return
    types = {name: str(kind) for name, kind in metadata.column_dtypes.items()}
    names, kinds = list(metadata.column_names), metadata.column_kinds
    content = {"names": names, "types": types, "kinds": kinds}
    (folder / FILE).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read_trained_columns(folder: Path) -> Metadata | None:
    """Return what was written; None: there is no such file, or it has other content."""
    try:
        found = json.loads((folder / FILE).read_text())
        types = {str(name): np.dtype(kind) for name, kind in found["types"].items()}
        # A file of an earlier version does not tell whole numbers with null from real numbers.
        unknown = {name: "" for name, kind in types.items() if kind.kind == "f"}
        kinds = {str(k): str(v) for k, v in found.get("kinds", unknown).items()}
        return Metadata(tuple(map(str, found["names"])), types, column_kinds=kinds)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None

"""Columns from folders: rows of a file below `day=2026-11-01/` have a column `day`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias
from urllib.parse import unquote

from elasticdl.data import remote
from elasticdl.errors import DataError

Value: TypeAlias = "int | str | None"

_FOLDER = re.compile(r"([^=]+)=(.*)")
_WHOLE = re.compile(r"-?\d{1,18}")
_NULL = "__HIVE_DEFAULT_PARTITION__"


def is_of_column(folder: str) -> bool:
    """Return whether the name of a folder is a column and its value."""
    return _FOLDER.fullmatch(folder) is not None


def folder_columns(paths: Sequence[str]) -> dict[str, dict[str, Value]]:
    """Return the columns of the folders above files, and the value for each file.

    The values of a column are whole numbers if all of them are, else text, as Hive and Spark read
    them.

    Raises:
        DataError: The folders above the files have different columns.
    """
    found = {path: _columns_of(path) for path in paths}
    first = list(found[paths[0]])
    for path, columns in found.items():
        if list(columns) != first:
            raise DataError(
                f"{path} is below folders of the columns {_said(columns)}, and {paths[0]} is below "
                f"those of {_said(first)}; expected files of one layout"
            )
    return {name: _typed({path: found[path][name] for path in paths}) for name in first}


def _columns_of(path: str) -> dict[str, str]:
    folders = remote.without_query(path).split("/")[:-1]
    matches = filter(None, map(_FOLDER.fullmatch, folders))
    return {unquote(match[1]): unquote(match[2]) for match in matches}


def _typed(words: dict[str, str]) -> dict[str, Value]:
    # All values decide together: a column must have one type in all files.
    is_whole = all(word == _NULL or _WHOLE.fullmatch(word) for word in words.values())
    return {
        path: None if word == _NULL else int(word) if is_whole else word
        for path, word in words.items()
    }


def _said(names: Sequence[str] | dict[str, str]) -> str:
    return ", ".join(names) or "none"

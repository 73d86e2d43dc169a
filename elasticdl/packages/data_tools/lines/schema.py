"""Describes the fields of a line: those of Criteo's files, or those of a schema file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

from elasticdl.data.params import delimiter_named
from elasticdl.errors import ConfigError

Kind = Literal["label", "integer", "category"]
LEFT_OUT = "-"
"""Marks a field in a schema file that is not converted."""

_INTEGERS = tuple(f"I{number}" for number in range(1, 14))
_CATEGORIES = tuple(f"C{number}" for number in range(1, 27))
_KINDS: dict[str, Kind] = {
    "label": "label",
    **dict.fromkeys(_INTEGERS, "integer"),
    **dict.fromkeys(_CATEGORIES, "category"),
}


@dataclass(frozen=True, slots=True)
class Schema:
    """The fields of a line, in their order.

    fields: A name for each field; `LEFT_OUT` for fields that are not converted.
    kinds: The kind of each column, in the order in which columns are written. `label` is 0 or 1,
        `integer` may be empty, `category` is empty or 8 hexadecimal digits.
    """

    fields: tuple[str, ...]
    kinds: dict[str, Kind]
    delimiter: str = "\t"
    header: bool = False


CRITEO = Schema(tuple(_KINDS), _KINDS)
"""The files of the Kaggle display advertising challenge: label, I1 to I13, C1 to C26."""


def read_schema(path: Path) -> Schema:
    """Read a schema file: YAML with `columns` and perhaps `delimiter` and `header`.

    Raises:
        ConfigError: The file cannot be read, or does not name each column of Criteo's once.
    """
    document = _load(path)
    unknown = set(document) - {"columns", "delimiter", "header"}
    if unknown:
        raise ConfigError(
            f"{path}: unknown setting {sorted(unknown)[0]!r}; expected columns, delimiter, header"
        )
    header = document.get("header", False)
    if not isinstance(header, bool):
        raise ConfigError(f"{path}: header: expected true or false, found {header!r}")
    delimiter = delimiter_named(str(document.get("delimiter", "tab")), f"{path}: ")
    fields = _fields(document.get("columns"), path)
    return Schema(fields, {n: k for n, k in _KINDS.items() if n in fields}, delimiter, header)


def _load(path: Path) -> dict[str, object]:
    try:
        document = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not YAML: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: expected `columns: [label, I1, ...]`, found {document!r}")
    return document


def _fields(columns: object, path: Path) -> tuple[str, ...]:
    if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
        raise ConfigError(f"{path}: columns: expected a list of names, found {columns!r}")
    kept = [name for name in columns if name != LEFT_OUT]
    for name in kept:
        if name not in _KINDS:
            raise ConfigError(
                f"{path}: columns: {name!r} is none of label, I1 to I13, C1 to C26; "
                f"a field that is to be left out is {LEFT_OUT!r}"
            )
        if kept.count(name) > 1:
            raise ConfigError(f"{path}: columns: {name!r} is named twice")
    missing = [name for name in (*_INTEGERS, *_CATEGORIES) if name not in kept]
    if missing:
        raise ConfigError(f"{path}: columns: {', '.join(missing)} missing; name every field")
    return tuple(columns)

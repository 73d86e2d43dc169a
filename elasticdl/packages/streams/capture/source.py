"""The contract of a source that can be captured, and the checks of a user's own source."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from elasticdl.data.base import Records
from elasticdl.data.strings import Column
from elasticdl.errors import DataError, ModelError


class CapturedSource(Protocol):
    """Records that are read once, in order; `custom_data_reader` of a model file may return one.

    `state()` returns the position of the source in values that JSON can hold. It is called after
    each item that `read` yields. A new object that gets this value by `restore`, before `read`,
    continues at the same position.
    """

    def read(self) -> Iterator[Any]:
        """Yield records to the end: bytes, text, a list of these, or `Records`."""
        ...

    def state(self) -> Any:
        """Return the position behind the last item that was yielded."""
        ...

    def restore(self, state: Any) -> None:
        """Continue behind the items that had been yielded when `state` was returned."""
        ...


def as_source(reader: object) -> CapturedSource:
    """Return the result of a user's `custom_data_reader`, if it is a source.

    Raises:
        ModelError: It is not a source.
    """
    missing = [n for n in ("read", "state", "restore") if not callable(getattr(reader, n, None))]
    if missing:
        raise ModelError(
            f"--reader_state=true: custom_data_reader returned {type(reader).__name__} without "
            f"{' and '.join(f'{name}()' for name in missing)}: expected an object with read(), "
            "which yields records, state(), and restore(state)"
        )
    found: CapturedSource = reader  # type: ignore[assignment]
    return found


def records_in(item: object, reader: str) -> Records:
    """Return an item of a source as records, which have no numbers yet.

    Args:
        item: The item that the source yielded.
        reader: The name of the source in an error.

    Raises:
        ModelError: A source must not yield this type.
    """
    if isinstance(item, Records) and item.columns:
        lengths = {name: len(column) for name, column in item.columns.items()}
        if len(set(lengths.values())) > 1:
            raise ModelError(f"{reader}.read yields columns of other lengths: {lengths}")
        return replace(item, columns={n: _as_column(c) for n, c in item.columns.items()})
    if isinstance(item, Records):
        item = item.values
    values = [item] if isinstance(item, bytes | str) else item
    if not isinstance(values, Sequence) or not all(isinstance(v, bytes | str) for v in values):
        raise ModelError(
            f"{reader}.read yields {_described(item)}: expected bytes, text, a list of them, or "
            "elasticdl.data.base.Records"
        )
    return Records(values=[v.encode() if isinstance(v, str) else v for v in values])


def _as_column(column: Any) -> Column:
    """Return a column that may be a list as an array."""
    if not isinstance(column, list):
        found: Column = column
        return found
    is_text = any(isinstance(value, bytes | str) for value in column)
    return np.array(column, dtype=object if is_text else None)


def state_as_json(state: object, reader: str) -> str:
    """Return a state as JSON text.

    Raises:
        ModelError: JSON cannot hold it.
    """
    try:
        text = json.dumps(state)
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"{reader}.state() returned {_described(state)}, which JSON cannot hold ({error}): "
            "expected numbers, text, lists and dicts of them"
        ) from error
    # It would be seen only when the source is read again, perhaps after hours.
    if (key := next(_keys_not_text(state), None)) is not None:
        raise ModelError(
            f"{reader}.state() returned a dict with the key {key}, which JSON turns into text, "
            "so that restore() would get another state: expected text as keys, such as str(key)"
        )
    return text


def _keys_not_text(state: object) -> Iterator[str]:
    """Yield the keys in dicts, at any depth, that come back from JSON as something else."""
    if isinstance(state, dict):
        yield from (repr(key) for key in state if not isinstance(key, str))
    if isinstance(state, dict | list | tuple):
        for value in state.values() if isinstance(state, dict) else state:
            yield from _keys_not_text(value)


def join(parts: Sequence[Records]) -> Records:
    """Join records of one kind."""
    from elasticdl.data.strings import concatenate

    if not parts[0].columns:
        return Records(values=[value for part in parts for value in part.values])
    names = parts[0].columns
    return Records(columns={n: concatenate([part.columns[n] for part in parts]) for n in names})


def are_alike(one: Records, other: Records) -> bool:
    """Return whether records can be in one chunk: both are bytes, or have the same columns."""
    if one.columns.keys() != other.columns.keys():
        return False
    return all(_form(column) == _form(other.columns[name]) for name, column in one.columns.items())


def check_columns(first: Iterable[str], records: Records, reader: str) -> None:
    """Refuse records with other columns than the first ones.

    Raises:
        DataError: The columns differ.
    """
    if set(first) != set(records.columns):
        raise DataError(
            f"{reader}.read yields records of the columns {sorted(records.columns)}, after others "
            f"of {sorted(first)}: expected the same columns",
            is_certain=True,
        )


def _form(column: Any) -> tuple[object, ...]:
    # Text of NumPy has another type for each width; joined it is as wide as the longest.
    kind = column.dtype.kind
    return (kind if kind in "SU" else column.dtype, *column.shape[1:])


def _described(item: object) -> str:
    inner = f" of {type(item[0]).__name__}" if isinstance(item, list) and item else ""
    return type(item).__name__ + inner

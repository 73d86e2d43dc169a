"""What can be captured: the contract of a source, and how a user's own is held to it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from elasticdl.data.base import Records
from elasticdl.errors import DataError, ModelError


class CapturedSource(Protocol):
    """Records that are read once, in order; `custom_data_reader` of a model file may return one.

    `state()` says where the source is: what JSON can hold. It is asked after each thing that
    `read` yields. A new object that is given it by `restore`, before `read`, goes on right there.
    """

    def read(self) -> Iterator[Any]:
        """Yield records to the end: bytes, text, a list of these, or `Records`."""
        ...

    def state(self) -> Any:
        """Return where the source is, behind what was yielded last."""
        ...

    def restore(self, state: Any) -> None:
        """Go on behind what had been yielded when `state` was returned."""
        ...


def as_source(reader: object) -> CapturedSource:
    """Return what a user's `custom_data_reader` has returned, if it is a source.

    Raises:
        ModelError: It is none.
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
    """Return what a source has yielded as records, with no numbers so far.

    Args:
        item: What it is.
        reader: What the source is called in an error.

    Raises:
        ModelError: It is nothing that a source may yield.
    """
    if isinstance(item, Records):
        return item
    values = [item] if isinstance(item, bytes | str) else item
    if not isinstance(values, Sequence) or not all(isinstance(v, bytes | str) for v in values):
        raise ModelError(
            f"{reader}.read yields {_described(item)}: expected bytes, text, a list of them, or "
            "elasticdl.data.base.Records"
        )
    return Records(values=[v.encode() if isinstance(v, str) else v for v in values])


def state_as_json(state: object, reader: str) -> str:
    """Return a state as text, as which it lasts.

    Raises:
        ModelError: JSON cannot hold it.
    """
    try:
        return json.dumps(state)
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"{reader}.state() returned {_described(state)}, which JSON cannot hold ({error}): "
            "expected numbers, text, lists and dicts of them"
        ) from error


def join(parts: Sequence[Records]) -> Records:
    """Join records of one kind."""
    from elasticdl.data.strings import concatenate

    if not parts[0].columns:
        return Records(values=[value for part in parts for value in part.values])
    names = parts[0].columns
    return Records(columns={n: concatenate([part.columns[n] for part in parts]) for n in names})


def are_alike(one: Records, other: Records) -> bool:
    """Tell whether records can be in one chunk: both are bytes, or have the same columns."""
    if one.columns.keys() != other.columns.keys():
        return False
    return all(_form(column) == _form(other.columns[name]) for name, column in one.columns.items())


def check_columns(first: Iterable[str], records: Records, reader: str) -> None:
    """Refuse records whose columns are others than those of the first ones.

    Raises:
        DataError: They are.
    """
    if set(first) != set(records.columns):
        raise DataError(
            f"{reader}.read yields records of the columns {sorted(records.columns)}, after others "
            f"of {sorted(first)}: expected the same columns",
            is_certain=True,
        )


def _form(column: Any) -> tuple[object, ...]:
    return (column.dtype, *column.shape[1:])


def _described(item: object) -> str:
    inner = f" of {type(item[0]).__name__}" if isinstance(item, list) and item else ""
    return type(item).__name__ + inner

"""Readers of the user: `custom_data_reader` of a model file."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from numbers import Integral
from typing import Any

import numpy as np

from elasticdl.data.arrow_columns import WHOLE_BELOW
from elasticdl.data.base import DataReader, Metadata, Records, all_of
from elasticdl.data.files import CHUNK_RECORDS
from elasticdl.data.strings import Array
from elasticdl.errors import DataError, ElasticdlError, ModelError
from elasticdl.job import Shard

_SHOWN_CHARACTERS = 100


def make_custom_reader(
    function: Callable[..., Any], data_path: str, params: Mapping[str, Any]
) -> DataReader:
    """Call a user's `custom_data_reader` and check that it returns a reader of ranges.

    Raises:
        ModelError: The function does not take these arguments, or does not return a reader.
    """
    name = getattr(function, "__name__", "custom_data_reader")
    return adapt_reader(call_custom_reader(function, data_path, params), name)


def call_custom_reader(
    function: Callable[..., Any], data_path: str, params: Mapping[str, Any]
) -> Any:
    """Call a user's `custom_data_reader(data_path=..., **params)`; return what it returns.

    A first argument of another name (`data_origin` in older files) gets the path as well.

    Raises:
        ModelError: The function does not take these arguments.
    """
    name = getattr(function, "__name__", "custom_data_reader")
    try:
        # The arguments are only bound here, so that a TypeError in the user's code is not taken for
        # a wrong signature.
        call = inspect.signature(function).bind(data_path=data_path, **params)
    # Older model files call the first parameter `data_origin`.
    except TypeError as keyword_error:
        try:
            call = inspect.signature(function).bind(data_path, **params)
        except TypeError:
            raise ModelError(
                f"{name}(data_path=..., {', '.join(params)}): {keyword_error}; the further "
                "arguments are those of --data_reader_params"
            ) from keyword_error
    return _called(name, function, *call.args, **call.kwargs)


def adapt_reader(reader: Any, name: str = "custom_data_reader") -> DataReader:
    """Return an object as a `DataReader`.

    The object has `shards()` and `read(shard)`, and perhaps `metadata`. In the older style it has
    `create_shards() -> {name: (start, count)}` and `read_records(task)`, a generator of records.

    Raises:
        ModelError: The object has neither; says what it is.
    """
    if _has(reader, "shards", "read"):
        return OwnReader(reader)
    if _has(reader, "create_shards", "read_records"):
        return OlderReader(reader)
    if _has(reader, "read", "state", "restore"):
        raise ModelError(
            f"{name} returned {type(reader).__name__}, which is read once, in order (it has "
            "state() and restore()): expected --reader_state=true, and only as --training_data; "
            "other data needs a reader with shards() and read(shard)"
        )
    raise ModelError(
        f"{name} returned {type(reader).__name__}: expected an object with shards() and "
        "read(shard), or with create_shards() and read_records(task)"
    )


def _has(reader: Any, *methods: str) -> bool:
    return all(callable(getattr(reader, method, None)) for method in methods)


def _called(what: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of the user; report its error in one line."""
    try:
        return function(*args, **kwargs)
    except ElasticdlError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise ModelError(
            f"{what} raised {type(error).__name__}: {error} ({last.filename}:{last.lineno})"
        ) from error


class OwnReader:
    """Wraps a user's reader with `shards` and `read`, and reports its mistakes."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._name = type(reader).__name__
        self._times: dict[str, tuple[np.dtype[Any], str]] = {}  # by column, and where it was seen

    @property
    def metadata(self) -> Metadata:
        """The reader's own description of its columns, if it has one."""
        found = getattr(self._reader, "metadata", None)
        if found is not None and not isinstance(found, Metadata):
            raise ModelError(
                f"{self._name}.metadata is {type(found).__name__}: expected "
                "elasticdl.data.base.Metadata, or no metadata"
            )
        return found or Metadata()

    def shards(self) -> list[Shard]:
        """List the shards; their ranges do not overlap."""
        found: list[Shard] = _called(f"{self._name}.shards()", lambda: list(self._reader.shards()))
        for shard in found:
            if not isinstance(shard, Shard):
                raise ModelError(
                    f"{self._name}.shards() has {shard!r}: expected "
                    "elasticdl.job.Shard(name, start, end)"
                )
        return found

    def read(self, shard: Shard) -> Iterator[Records]:
        """Yield the reader's records for a range; check that they are all of it."""
        return all_of(self._records(shard), shard, self._name)

    def _records(self, shard: Shard) -> Iterator[Records]:
        for records in self._reader.read(shard):
            if not isinstance(records, Records):
                raise ModelError(
                    f"{self._name}.read yields {type(records).__name__}: expected "
                    "elasticdl.data.base.Records(start, values=[...]) or "
                    "Records(start, columns={...})"
                )
            lengths = {name: len(column) for name, column in records.columns.items()}
            if len(set(lengths.values())) > 1:
                raise ModelError(
                    f"{self._name}.read yields columns of other lengths for "
                    f"[{shard.start}, {shard.end}) of {shard.name}: {lengths}"
                )
            self._check_times(records, shard)
            yield records

    def _check_times(self, records: Records, shard: Shard) -> None:
        """Refuse times in another unit than before: a feed takes them as numbers in one unit."""
        for name, column in records.columns.items():
            found = np.asarray(column).dtype if isinstance(column, list) else column.dtype
            if found.kind not in "mM":
                continue
            # The first unit that was seen counts: the reader declares none.
            first, where = self._times.setdefault(name, (found, shard.name))
            if found != first:
                raise DataError(
                    f"{shard.name}: column {name!r} is {found}, in {where} it is {first}: expected "
                    f"one unit, such as column.astype({str(first)!r})"
                )


@dataclass(frozen=True, slots=True)
class OlderTask:
    """The argument of `read_records`: `task.shard.name`, or `task.shard_name`, and the range."""

    shard: Shard

    @property
    def shard_name(self) -> str:
        """Name of the shard."""
        return self.shard.name

    @property
    def start(self) -> int:
        """First record."""
        return self.shard.start

    @property
    def end(self) -> int:
        """One past the last record."""
        return self.shard.end


class OlderReader:
    """A reader with `create_shards` and `read_records`.

    Its records are bytes, text or rows. A row has one value for each column of the metadata; rows
    become columns.
    """

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    @property
    def metadata(self) -> Metadata:
        """The column names and types that the reader knows, in this or the older form."""
        found = getattr(self._reader, "metadata", None)
        names = tuple(getattr(found, "column_names", None) or ())
        dtypes = getattr(found, "column_dtypes", None) or {}
        return Metadata(names, {name: np.dtype(kind) for name, kind in dict(dtypes).items()})

    def shards(self) -> list[Shard]:
        """List the shards of `create_shards`."""
        name = f"{type(self._reader).__name__}.create_shards()"
        shards = _called(name, self._reader.create_shards)
        if not isinstance(shards, Mapping):
            raise DataError(
                f"{name} returned {type(shards).__name__}: expected a dict of name -> "
                "(start, count)"
            )
        try:
            return [
                Shard(str(shard), int(start), int(start) + int(count))
                for shard, (start, count) in shards.items()
            ]
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{name} returned {str(dict(shards))[:_SHOWN_CHARACTERS]}: expected a dict of name "
                f"-> (start, count): {error}"
            ) from error

    def read(self, shard: Shard) -> Iterator[Records]:
        """Yield the records of `read_records` for the range; check that they are all of it."""
        if shard.num_records == 0:
            return
        records = iter(self._reader.read_records(OlderTask(shard)))
        next_record = shard.start
        while chunk := list(islice(records, min(CHUNK_RECORDS, shard.end - next_record))):
            yield self._to_records(next_record, chunk, shard)
            next_record += len(chunk)
        # One more record is asked for: a reader that ignores the range gives too many.
        if next_record != shard.end or next(records, None) is not None:
            number = next_record - shard.start
            raise DataError(
                f"{shard.name}: {type(self._reader).__name__}.read_records gave "
                f"{number if number < shard.num_records else 'more'} records for "
                f"[{shard.start}, {shard.end}), expected {shard.num_records}"
            )

    def _to_records(self, start: int, chunk: Sequence[Any], shard: Shard) -> Records:
        if all(isinstance(record, bytes) for record in chunk):
            return Records(start, values=list(chunk))
        if all(isinstance(record, str) for record in chunk):
            return Records(start, values=[record.encode() for record in chunk])
        names, dtypes = self.metadata.column_names, self.metadata.column_dtypes
        rows = [self._row(record, names, shard, start + i) for i, record in enumerate(chunk)]
        columns: dict[str, Array] = {}
        for name, values in zip(names, zip(*rows, strict=True), strict=True):
            try:
                columns[name] = _column(values, dtypes.get(name))
            except (TypeError, ValueError, OverflowError, DataError) as error:
                raise DataError(
                    f"{shard.name}: column {name!r} of records [{start}, {start + len(rows)}) is "
                    f"not an array: {error}"
                ) from error
        return Records(start, columns=columns)

    def _row(self, record: Any, names: Sequence[str], shard: Shard, number: int) -> tuple[Any, ...]:
        is_row = isinstance(record, Iterable) and not isinstance(record, bytes | str | Mapping)
        values = tuple(record) if is_row else ()
        if not is_row or len(values) != len(names):
            raise DataError(
                f"{shard.name}: record {number} is {type(record).__name__} of {len(values)} "
                f"values: expected bytes, text, or a row of the {len(names)} columns of "
                f"{type(self._reader).__name__}.metadata"
            )
        return values


def _column(values: Sequence[Any], dtype: np.dtype[Any] | None) -> Array:
    found = np.asarray(values, dtype=dtype)
    if dtype is None and found.dtype.kind == "f":
        whole = {kind for kind in set(map(type, values)) if issubclass(kind, Integral)}
        for value in values if whole else ():
            if type(value) in whole and abs(int(value)) > WHOLE_BELOW:
                raise DataError(
                    f"it has {value} beside real numbers, so all become {found.dtype}, in which "
                    "different whole numbers may be equal: expected one type, or text"
                )
    kind = {"S": bytes, "U": str}.get(found.dtype.kind)
    if kind is None or not all(isinstance(value, kind) for value in values):
        return found
    # NumPy's own strings would lose zero bytes at their ends, and all be as wide as the longest.
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out

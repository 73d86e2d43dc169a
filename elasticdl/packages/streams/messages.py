"""Turns messages of a topic into records: lines of CSV, JSON, Arrow, `tf.train.Example`s.

A message in another format is unreadable. This depends on its bytes alone, so every process that
reads it decides alike.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from elasticdl._core import CsvFields, check_csv, decode_examples, json_columns
from elasticdl.data.base import Aside, Metadata, Records
from elasticdl.data.csv_columns import KINDS, CsvColumns, require_names
from elasticdl.data.params import Params
from elasticdl.data.strings import Array, Column
from elasticdl.errors import ConfigError, DataError
from elasticdl.packages.streams import arrow_messages
from elasticdl.packages.streams.event_time import seconds_of, shown

_FORMATS = ("bytes", "csv", "json", "arrow", "example")
_OF_COLUMNS = ("csv", "json", "arrow")
_MISSING = [b""]
_NUMPY = {"int64": np.dtype(np.int64), "float": np.dtype(np.float64), "bytes": np.dtype(object)}


class ParsedMessages(NamedTuple):
    """The result of a format for messages. Unreadable messages are only in `why`.

    columns: The columns, if the format has any.
    why: The reasons for unreadable messages, by their place.
    times: The values of the field with the event time, if it is asked for.
    """

    columns: Mapping[str, Column]
    why: Mapping[int, str]
    times: Sequence[object] = ()


@dataclass(frozen=True, slots=True)
class Lateness:
    """Decides which messages of a range are late, and what happens to them.

    before: Messages with an earlier event time are late.
    action: train, drop or aside.
    """

    before: float = 0.0
    action: str = "train"


NOTHING_IS_LATE = Lateness()


@dataclass(frozen=True, slots=True)
class Format:
    """The format of messages.

    parse: Returns columns of messages; none if a record is the message itself.
    parse_many: The same if a message can have many records; also returns their numbers.
    event_time: The field with the time of a record; "": the time stamp of its message.
    """

    metadata: Metadata
    parse: Callable[[Sequence[bytes]], ParsedMessages] = lambda values: ParsedMessages({}, {})
    parse_many: Callable[[Sequence[bytes]], arrow_messages.Table] | None = None
    event_time: str = ""

    def records(
        self,
        values: list[bytes],
        positions: list[int],
        stamps: Sequence[float] = (),
        late: Lateness = NOTHING_IS_LATE,
    ) -> Records:
        """Return the records of messages; unreadable and late messages are set beside them.

        Args:
            values: The values of the messages.
            positions: The positions of the messages.
            stamps: The time stamps of the messages, in seconds since 1970; 0: there is none.
            late: Decides which messages are late, by the messages alone.
        """
        counts: Sequence[int] | None = None
        said: Sequence[object]
        if self.parse_many is not None:
            columns, why, counts, said = self.parse_many(values)
        else:
            columns, why, said = self.parse(values)
        bad = [Aside(positions[i], words, values[i]) for i, words in sorted(why.items())]
        if bad:
            good = [i for i in range(len(values)) if i not in why]
            values, positions = [values[i] for i in good], [positions[i] for i in good]
            stamps = [stamps[i] for i in good] if stamps else ()
        of_message = np.repeat(np.arange(len(values)), 1 if counts is None else counts)
        is_kept = np.ones(len(of_message), bool)
        if self.event_time:
            times, why = seconds_of(said, self.event_time)
            # The event time may be invalid in one record of a message. The whole message is set
            # aside then, since a position is trained as a whole or not at all.
            words_of = {int(of_message[i]): words for i, words in why.items()}
            bad += [Aside(positions[i], words, values[i]) for i, words in words_of.items()]
            if words_of:  # of many records of a message all are left out
                is_kept = ~np.isin(of_message, list(words_of))
        else:
            times = np.array(stamps or np.zeros(len(values)), np.float64)[of_message]
        is_late = is_kept & (times > 0.0) & (times < late.before)
        num_late = int(np.count_nonzero(is_late))
        if num_late and late.action != "train":
            is_kept &= ~is_late
            if late.action == "aside":
                for at in np.unique(of_message[is_late]).tolist():
                    words = _late_words(times[is_late & (of_message == at)], late.before)
                    bad.append(Aside(positions[at], words, values[at], is_late=True))
        order = np.array(positions, np.int64)[of_message]
        if not is_kept.all():
            order, times = order[is_kept], times[is_kept]
            columns = {name: _chosen(column, is_kept) for name, column in columns.items()}
            if not columns:
                values = [values[i] for i in np.flatnonzero(is_kept).tolist()]
        return Records(
            int(order[0]) if len(order) else 0,
            [] if columns else values,
            columns if len(order) else {},
            order,
            tuple(sorted(bad, key=lambda each: each.position)),
            times,
            num_late,
        )


def _chosen(column: Column, is_kept: NDArray[np.bool_]) -> Column:
    chosen: Column = column[np.flatnonzero(is_kept)]
    return chosen


def _late_words(times: NDArray[np.float64], before: float) -> str:
    """Return words about how late a message is, or its late records."""
    time = float(times.min())
    many = f" ({len(times)} of its records are late)" if len(times) > 1 else ""
    return f"late: its event time is {time:.3f}, {before - time:.3f} s before what is in time{many}"


def format_of(params: Params) -> Format:
    """Return the format that the settings of a reader ask for.

    Raises:
        ConfigError: There is no format of that name, or it needs columns.
    """
    name = params.text("format", "bytes")
    if name not in _FORMATS:
        raise ConfigError(f"format={name}: messages are one of {', '.join(_FORMATS)}")
    kinds = _kinds(params.names("columns"))
    event_time = params.text("event_time", "")
    metadata = Metadata(tuple(kinds), delimiter=params.delimiter(","))
    if event_time and name == "bytes":
        raise ConfigError(
            f"event_time={event_time}: of format=bytes the job knows no fields: expected another "
            f"format ({', '.join(_FORMATS[1:])}); without event_time the time stamps of the "
            "messages are taken"
        )
    if name not in _OF_COLUMNS and set(kinds.values()) - {"bytes"}:
        raise ConfigError(f"columns=...: format={name} has no kinds of columns: give their names")
    if name in _OF_COLUMNS and not kinds:
        raise ConfigError(
            f"format={name} needs the columns: expected columns=NAME,NAME:KIND,..., each KIND one "
            f"of {', '.join(KINDS)} (bytes, if none is given, which are text)"
        )
    if name == "csv":
        if event_time and event_time not in kinds:
            raise ConfigError(f"event_time={event_time}: expected one of {', '.join(kinds)}")
        return Format(metadata, _csv(metadata, kinds, event_time), event_time=event_time)
    typed = Metadata(metadata.column_names, {n: _NUMPY[kind] for n, kind in kinds.items()})
    if name == "json":
        return Format(typed, _json(kinds, event_time), event_time=event_time)
    if name == "arrow":
        parse_many = arrow_messages.parser(kinds, event_time)
        return Format(typed, parse_many=parse_many, event_time=event_time)
    if name == "example":
        return Format(metadata, _examples(event_time), event_time=event_time)
    return Format(metadata)


def _kinds(columns: Sequence[str]) -> dict[str, str]:
    """Return the kind of each column from `name` or `name:kind`."""
    found: dict[str, str] = {}
    pairs = [_name_and_kind(column) for column in columns if column]
    try:
        require_names([name for name, _ in pairs])
    except DataError as error:
        raise ConfigError(f"columns={','.join(columns)}: {error}") from error
    found.update(pairs)
    return found


def _name_and_kind(column: str) -> tuple[str, str]:
    name, colon, kind = column.rpartition(":")
    if not colon:
        return column, "bytes"
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(
            f"columns={column}: unknown kind {kind!r}: expected {', '.join(KINDS)}{hint}"
        )
    return name, kind


# --- CSV -----------------------------------------------------------------------------------------


def _csv(
    metadata: Metadata, kinds: Mapping[str, str], event_time: str
) -> Callable[[Sequence[bytes]], ParsedMessages]:
    delimiter = CsvColumns(metadata.column_names, metadata.delimiter).delimiter_byte
    numbers = [None if kind == "bytes" else kind for kind in kinds.values()]

    def parse(values: Sequence[bytes]) -> ParsedMessages:
        why: dict[int, str] = {}
        try:
            # All messages are checked together first; only if one is bad, each is checked alone to
            # find it.
            check_csv(values, delimiter, len(numbers), numbers, _MISSING, [])
        except ValueError:
            for place, value in enumerate(values):
                try:
                    check_csv([value], delimiter, len(numbers), numbers, _MISSING, [])
                except ValueError as error:
                    _, number, what = error.args
                    column = "" if number is None else _column(metadata.column_names, number)
                    why[place] = f"{column}{what}"
        if not event_time:
            return ParsedMessages({}, why)
        good = [value for place, value in enumerate(values) if place not in why]
        fields = CsvFields(good, delimiter, len(numbers))
        return ParsedMessages({}, why, _pieces(*fields.text(place_of_time)))

    place_of_time = metadata.column_names.index(event_time) if event_time else -1
    return parse


def _pieces(data: bytes, offsets: NDArray[np.int64]) -> list[bytes]:
    edges = offsets.tolist()
    return [data[start:end] for start, end in pairwise(edges)]


def _column(names: Sequence[str], number: int) -> str:
    return f"column {names[number]!r}: " if number < len(names) else f"field {number + 1}: "


# --- JSON ----------------------------------------------------------------------------------------


def _json(kinds: Mapping[str, str], event_time: str) -> Callable[[Sequence[bytes]], ParsedMessages]:
    guesses = ["float", "bytes"] if event_time and event_time not in kinds else [""]

    def parse(values: Sequence[bytes]) -> ParsedMessages:
        for guess in guesses:
            parsed = _at_once(values, kinds, event_time, guess)
            if parsed is not None:
                guesses.sort(key=lambda each: each != guess)  # so are the next ones, most likely
                return parsed
        return _one_by_one(values, kinds, event_time)

    return parse


def _at_once(
    values: Sequence[bytes], kinds: Mapping[str, str], event_time: str, guess: str
) -> ParsedMessages | None:
    """Return the columns of messages that are all regular; None: check them one by one.

    Args:
        values: The messages.
        kinds: The kinds of the columns.
        event_time: A field, or "".
        guess: The kind of that field, if it is no column.
    """
    asked = {**kinds, event_time: guess} if guess else kinds
    found = json_columns(values, list(asked), list(asked.values()))
    if found is None:
        return None
    said = dict(zip(asked, found, strict=True))
    columns = {name: _array(said[name], kind) for name, kind in kinds.items()}
    if not event_time:
        return ParsedMessages(columns, {})
    times = said[event_time]
    if isinstance(times, list):
        return None if "" in times else ParsedMessages(columns, {}, times)
    return None if np.isnan(times).any() else ParsedMessages(columns, {}, times.tolist())


def _times(rows: Sequence[Mapping[str, object]], event_time: str) -> list[object]:
    return [row.get(event_time) for row in rows] if event_time else []


def _one_by_one(
    values: Sequence[bytes], kinds: Mapping[str, str], event_time: str
) -> ParsedMessages:
    rows: list[dict[str, object]] = []
    found: list[Mapping[str, object]] = []
    why: dict[int, str] = {}
    for place, value in enumerate(values):
        try:
            row = _object(value)
        except (ValueError, RecursionError) as error:
            why[place] = f"no JSON object: {error}"
            continue
        try:
            rows.append({name: _typed(row.get(name), kind, name) for name, kind in kinds.items()})
        except ValueError as error:
            why[place] = str(error)
        else:
            found.append(row)
    columns = {name: _array([row[name] for row in rows], kind) for name, kind in kinds.items()}
    return ParsedMessages(columns, why, _times(found, event_time))


def _object(value: bytes) -> dict[str, object]:
    found = _DECODER.decode(value.decode())
    if not isinstance(found, dict):
        raise ValueError(f"expected an object, found {shown(found)}")
    return found


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number of JSON")


_DECODER = json.JSONDecoder(
    parse_constant=_refuse_constant
)  # to make one takes as long as to use it


def _array(values: Sequence[object] | Array, kind: str) -> Column:
    if isinstance(values, np.ndarray):
        return values
    array = np.empty(len(values), _NUMPY[kind])
    array[:] = values
    return array


def _typed(value: object, kind: str, name: str) -> object:
    """Return a value in the form of its column.

    Raises:
        ValueError: The value has another kind.
    """
    if kind == "int64":
        if type(value) is int and -(2**63) <= value < 2**63:
            return value
        raise ValueError(f"{name!r}: expected a whole number of int64, found {shown(value)}")
    if kind == "float":
        return _real(value, name)
    if value is None:
        return ""
    if isinstance(value, str | bool | int | float):
        word = str(value)
        try:
            word.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{name!r}: {shown(value)} is not text: {error.reason}") from error
        return word
    raise ValueError(f"{name!r}: expected text, found {shown(value)}")


def _real(value: Any, name: str) -> float:
    if value is None:
        return math.nan
    try:
        if type(value) in (int, float) and math.isfinite(number := float(value)):
            return number
    except OverflowError:
        pass
    raise ValueError(f"{name!r}: expected a number of float64, found {shown(value)}")


# --- tf.train.Example ----------------------------------------------------------------------------


def _examples(event_time: str) -> Callable[[Sequence[bytes]], ParsedMessages]:
    def parse(values: Sequence[bytes]) -> ParsedMessages:
        why: dict[int, str] = {}
        try:
            decode_examples(values, [])
        except ValueError:
            for place, value in enumerate(values):
                try:
                    decode_examples([value], [])
                except ValueError as error:
                    why[place] = f"no tf.train.Example: {str(error).removeprefix('record 0: ')}"
        if not event_time:
            return ParsedMessages({}, why)
        good = [value for place, value in enumerate(values) if place not in why]
        return ParsedMessages({}, why, _feature_times(good, event_time))

    return parse


def _feature_times(values: Sequence[bytes], name: str) -> list[object]:
    """Return the one value of a feature of each Example; None for an Example without one value.

    A feature of floats is not accepted: 32 bits resolve a time of today to two minutes.
    """
    for kind in ("int64", "bytes"):
        try:
            ((_, found, splits),) = decode_examples(values, [(name, kind, None, None)])
        except ValueError:
            continue
        pieces = _pieces(*found) if isinstance(found, tuple) else found.tolist()
        return [
            pieces[start] if end == start + 1 else None for start, end in pairwise(splits.tolist())
        ]
    # One message has another kind of feature, or none. Each message is read alone to find it.
    if len(values) == 1:
        return ["a feature of floats"]
    return [time for value in values for time in _feature_times([value], name)]

"""Finds in a sample of the data what to show before training, or a reason to refuse the job.

The functions are pure: `data_check.py` takes the samples. If nothing can be seen, nothing is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl.data.base import Metadata
from elasticdl.data.wanted import WantedColumn, WantedTable
from elasticdl.errors import DataError
from elasticdl.packages.data_tools.sample import Sample, Words, kind_of

_FEW_CLASSES = 4  # whose shares are shown
_MOST_CLASSES = 1000
_NAMES_SHOWN = 8
_VALUES_SHOWN = 3
_FEW_FOUND = 0.05  # a vocabulary that has less of a column is worth a warning
_FAR_FROM_ZERO = 10.0  # of a number's mean size: it outweighs those that are scaled
_FEW_WORDS = 100  # a column of no more different words is one of categories
_WORDS_OF_KINDS = {
    "whole": "whole numbers (7)",
    "real": "real numbers (7.0)",
    "truth": "True, False",
}
_KINDS_OF_DTYPES = {"b": "truth", "i": "whole", "u": "whole", "f": "real"}


@dataclass(frozen=True, slots=True)
class Fed:
    """The result of `feed` for a sample.

    labels: The labels by output; "" for a model with one output.
    words: The values of features that are text or whole numbers.
    label_problem: The label that the model has no class for.
    not_a_number: For each feature, how many values are NaN, and how many values there are.
    problem: The reason why some of the records were not fed.
    """

    labels: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    words: Mapping[str, Words] = field(default_factory=dict)
    label_problem: str = ""
    not_a_number: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True, slots=True)
class DataSet:
    """One of the data sets of a job. kind: "training", "validation" or "prediction"."""

    kind: str
    metadata: Metadata
    sample: Sample
    fed: Fed

    @property
    def flag(self) -> str:
        """The flag that names this data set."""
        return f"--{self.kind}_data"

    @property
    def has_labels(self) -> bool:
        """Whether its records have to have labels."""
        return self.kind != "prediction"


def findings(
    main: DataSet,
    others: Sequence[DataSet],
    table: WantedTable | None,
    reads_by_name: bool,
    looked_up: Sequence[WantedColumn] = (),
) -> list[str]:
    """Return the lines to show.

    Args:
        main: The data set that the command reads first of all.
        others: The other data sets of the job.
        table: The columns that the model file names, if it does.
        reads_by_name: Whether `feed` asked for the names of the columns of lines.
        looked_up: Features with a vocabulary that the model itself shows.

    Raises:
        DataError: The job cannot give a useful result; the text says what was expected and found.
    """
    sets = [main, *others]
    words = [column for column in (table.columns if table else ()) if column.vocabulary]
    named = {column.name for column in words}
    words += [column for column in looked_up if column.vocabulary and column.name not in named]
    for each in sets:
        _check_vocabularies(each, words)
        if table is not None:
            _check_columns(each, table)
            _check_positive(each, table)
        _check_labels(each)
    for other in others:
        _check_order(main, other, reads_by_name)
    lines = [_size(main), *(_schema(main, other) for other in others)]
    lines += filter(None, [_labels(sets), _vocabularies(sets, words), _missing(sets, table)])
    return [*lines, *(f"warning: {text}" for text in _warnings(main, others, table, words))]


def of_trained(
    data: DataSet, trained_on: Metadata, reads_by_name: bool, table: WantedTable | None = None
) -> list[str]:
    """Return what to show about data for a model that was trained elsewhere, on these columns.

    Raises:
        DataError: The lines have their fields in another order, and `feed` reads fields by place;
            or a column has other words, all of which would get the ids of others.
    """
    training = DataSet("training", trained_on, Sample(0, ()), Fed())
    if set(trained_on.column_names) & set(data.metadata.column_names):  # else they were renamed
        _check_order(training, data, reads_by_name)
    for said in _other_kinds(training, data, table).values():
        raise DataError(f"{said}: write it in one type (of pandas, 'Int64' has nulls too)")
    if reads_by_name:
        return []
    return [f"warning: {text}" for text in _other_units(training, data)]


# --- refusals ------------------------------------------------------------------------------------


def _check_columns(data: DataSet, table: WantedTable) -> None:
    """Refuse a column that no record has."""
    columns = data.sample.columns
    if not columns:
        return
    wanted = [column.name for column in table.columns]
    wanted += [table.label] if data.has_labels else []
    lacking = [name for name in wanted if name not in columns]
    known = data.metadata.column_names or data.metadata.column_dtypes or table.file_columns
    if lacking and not known:  # features of Examples, which stand for themselves
        raise DataError(
            f"{data.flag}: none of the {data.sample.num_looked_at:,} records that were looked at "
            f"has the feature {', '.join(map(repr, lacking))}, so all values would be missing; "
            f"they have {_listed(columns)}"
        )


def _check_vocabularies(data: DataSet, columns: Sequence[WantedColumn]) -> None:
    """Refuse training data in which no word of a vocabulary is found."""
    for column in columns:
        share, found = _share(data, column.name, column.vocabulary, column.sep)
        if share == 0.0 and data.kind == "training":
            raise DataError(
                f"{data.flag}: column {column.name!r}: no value is a word of its vocabulary "
                f"({_some(column.vocabulary)}), of {data.sample.num_looked_at:,} records that were "
                f"looked at; found {_some(found)}. All would get the id of unknown words: give "
                "the vocabulary as the values are written"
            )


def _check_positive(data: DataSet, table: WantedTable) -> None:
    """Refuse a label whose positive words are not there."""
    words = data.sample.columns.get(table.label)
    if not table.positive or not data.has_labels or not words:
        return
    present = [word.strip() for word in words if word is not None and word != table.missing]
    found = list(dict.fromkeys(present))
    if not found:
        raise DataError(
            f"{data.flag}: the label {table.label!r} is empty in all "
            f"{data.sample.num_looked_at:,} records that were looked at"
        )
    if _has_positive(data, table, found):
        return
    near = {_plain(word) for word in found} & {_plain(word) for word in table.positive}
    if near or data.sample.is_all:
        raise DataError(
            f"{data.flag}: the label {table.label!r} is never {_some(table.positive, ' or ')}, "
            f"which positive= says, in {data.sample.num_looked_at:,} records that were looked at; "
            f"found {_some(found)}. Every label would be 0: give positive= as it is written in "
            "the data"
        )


def _check_labels(data: DataSet) -> None:
    if data.fed.label_problem:
        raise DataError(f"{data.flag}: {data.fed.label_problem}")
    for name, labels in data.fed.labels.items():
        if labels.dtype.kind == "f" and labels.size and np.isnan(labels).all():
            raise DataError(
                f"{data.flag}: the labels{_of(name)} that feed gives are all NaN, of "
                f"{len(labels):,} records; is the right column the label, and is it a number?"
            )


def _check_order(main: DataSet, other: DataSet, reads_by_name: bool) -> None:
    """Refuse lines with other fields, if `feed` reads fields by place."""
    ours, theirs = main.metadata.column_names, other.metadata.column_names
    is_lines = not main.metadata.column_dtypes and not other.metadata.column_dtypes
    if not is_lines or not ours or not theirs or reads_by_name:
        return
    if [name.strip().lower() for name in ours] == [name.strip().lower() for name in theirs]:
        return
    kept = tuple(name for name in ours if name in theirs)
    if theirs[: len(ours)] == ours or (not other.has_labels and theirs == kept):
        return  # more of them at the end, or no label to predict: feed was asked, and took it
    raise DataError(
        f"{other.flag}: its lines have the fields {','.join(theirs)}, those of {main.flag} have "
        f"{','.join(ours)}, and feed takes fields by their place: it did not ask for "
        "metadata.column_names. Write the same fields in the same order, or read them by name"
    )


# --- lines ---------------------------------------------------------------------------------------


def _size(data: DataSet) -> str:
    sample = data.sample
    looked = "all" if sample.is_all else f"{sample.num_looked_at:,}"
    names = list(data.metadata.column_names or data.metadata.column_dtypes)
    columns = f", columns {_listed(names)}" if names else ""
    looked += " records" if sample.are_positions else ""
    return f"{data.kind}: {sample.size}, {looked} looked at{columns}"


def _schema(main: DataSet, other: DataSet) -> str:
    text = f"{other.kind}: {other.sample.size}"
    ours = list(main.metadata.column_names or main.sample.columns)
    theirs = list(other.metadata.column_names or other.sample.columns)
    if not ours or not theirs:
        return text
    lacking = [name for name in ours if name not in theirs]
    extra = [name for name in theirs if name not in ours]
    parts = []
    if lacking:
        parts.append(f"without {_listed(lacking)}")
    if extra:
        parts.append(f"with {_listed(extra)} too")
    if not parts:
        is_same = ours == theirs
        parts.append("the same columns" if is_same else "the same columns in another order")
    return f"{text}, {', '.join(parts)}"


def _labels(sets: Sequence[DataSet]) -> str:
    """Return the range and balance of the labels, for each data set and output."""
    parts = []
    for data in sets:
        described = [
            f"{name + ' ' if name else ''}{_balance(labels)}"
            for name, labels in data.fed.labels.items()
            if labels.size
        ]
        if described:
            fed = min(labels.size for labels in data.fed.labels.values() if labels.size)
            of = f", of {fed:,}" if fed < data.sample.num_looked_at else ""
            parts.append(f"{', '.join(described)} ({data.kind}{of})")
    return f"labels: {'; '.join(parts)}" if parts else ""


def _balance(labels: NDArray[Any]) -> str:
    known = labels[~np.isnan(labels)] if labels.dtype.kind == "f" else labels
    if not known.size:
        return "all NaN"
    values, counts = np.unique(known, return_counts=True)
    shares = counts / known.size
    if len(values) <= _FEW_CLASSES:
        each = zip(values.tolist(), shares.tolist(), strict=True)
        return ", ".join(f"{_number(value)} in {_percent(share)}" for value, share in each)
    if labels.dtype.kind in "iu" and len(values) <= _MOST_CLASSES:
        return (
            f"{values[0]} to {values[-1]}, {len(values)} classes of {_percent(shares.min())} to "
            f"{_percent(shares.max())}"
        )
    spread = "" if labels.dtype.kind in "iu" else f", mean {known.mean():.4g}"
    return f"{_number(values[0])} to {_number(values[-1])}{spread}"


def _vocabularies(sets: Sequence[DataSet], columns: Sequence[WantedColumn]) -> str:
    parts = []
    for column in columns:
        shares = [_share(data, column.name, column.vocabulary, column.sep)[0] for data in sets]
        if shares[0] is not None:
            rest = [f"{data.kind} {_percent(s)}" for data, s in zip(sets, shares, strict=True) if s]
            others = f" ({', '.join(rest[1:])})" if rest[1:] else ""
            parts.append(f"{column.name} {_percent(shares[0])}{others}")
    return f"words in vocabularies: {_listed(parts)}" if parts else ""


def _missing(sets: Sequence[DataSet], table: WantedTable | None) -> str:
    """Return which columns lack values; for a table, only the columns that are used."""
    used = None if table is None else {*(column.name for column in table.columns), table.label}
    parts, is_seen = [], False
    for data in sets:
        columns = data.sample.columns
        empty = "" if table is None else table.missing
        is_seen = is_seen or bool(columns) or bool(data.fed.not_a_number)
        shares = {
            name: sum(word is None or (word == empty and word != "") for word in words) / len(words)
            for name, words in columns.items()
            if words and (used is None or name in used)
        }
        shares |= {
            name: bad / count
            for name, (bad, count) in data.fed.not_a_number.items()
            if count and name not in shares
        }
        said = [f"{name} {_percent(share)}" for name, share in shares.items() if share]
        if said:
            parts.append(f"{_listed(said)} ({data.kind})")
    if not is_seen:
        return ""
    return f"missing values: {'; '.join(parts) or 'none'}"


# --- warnings ------------------------------------------------------------------------------------


def _warnings(
    main: DataSet,
    others: Sequence[DataSet],
    table: WantedTable | None,
    words: Sequence[WantedColumn],
) -> Iterator[str]:
    for data in (main, *others):
        if data.fed.problem:
            yield f"{data.flag}: some records were not fed: {data.fed.problem}"
        yield from _label_warnings(data)
        yield from _vocabulary_warnings(data, words)
        if table is not None:
            yield from _positive_warnings(data, table)
            yield from _scale_warnings(data, table)
    for other in others:
        yield from _differences(main, other, table, {column.name for column in words})
        if table is None:  # which takes the words of times, the same in each unit
            yield from _other_units(main, other)


def _label_warnings(data: DataSet) -> Iterator[str]:
    for name, labels in data.fed.labels.items():
        bad = int(np.isnan(labels).sum()) if labels.dtype.kind == "f" else 0
        if bad:
            yield f"{data.flag}: {bad:,} of {labels.size:,} labels{_of(name)} are NaN"
        known = labels[~np.isnan(labels)] if labels.dtype.kind == "f" else labels
        if known.size > 1 and (known == known.flat[0]).all():
            yield (
                f"{data.flag}: all {known.size:,} labels{_of(name)} that were looked at are "
                f"{_number(known.flat[0])}"
            )


def _positive_warnings(data: DataSet, table: WantedTable) -> Iterator[str]:
    words = data.sample.columns.get(table.label)
    if not data.has_labels or not words:
        return
    # In a label of words, the word for a missing number is a word like others.
    none = "" if table.positive else table.missing
    num_missing = sum(word is None or word == none for word in words)
    if num_missing:
        yield (
            f"{data.flag}: the label {table.label!r} is missing in {num_missing:,} of "
            f"{len(words):,} records that were looked at, and a task with such a record fails: "
            "leave them out of the data"
        )
    present = {word.strip() for word in words if word is not None}
    if table.positive and present and not _has_positive(data, table, present):
        yield (
            f"{data.flag}: the label {table.label!r} is never {_some(table.positive, ' or ')} "
            f"in {data.sample.num_looked_at:,} records that were looked at; found "
            f"{_some(sorted(present))}"
        )


def _scale_warnings(data: DataSet, table: WantedTable) -> Iterator[str]:
    """Yield the numbers that the model uses unscaled and that are far from 0."""
    if data.kind != "training":
        return
    found = []
    for column in table.columns:
        words = data.sample.columns.get(column.name, [])
        present: Words = [w for w in words if w is not None and w != table.missing]
        if column.is_as_it_is and kind_of(present) not in ("", "text"):
            values = np.array(present, np.float64)
            if np.abs(values).mean() > _FAR_FROM_ZERO:
                found.append(f"{column.name} ({values.min():g} to {values.max():g})")
    if found:
        yield (
            f"numbers that nothing scales: {_listed(found)}. A model learns more from numbers near "
            "0: give --statistics=FILE, which elasticdl data analyze writes, or mean and stddev of "
            "each Number"
        )


def _vocabulary_warnings(data: DataSet, columns: Sequence[WantedColumn]) -> Iterator[str]:
    for column in columns:
        share, found = _share(data, column.name, column.vocabulary, column.sep)
        if share is not None and share < _FEW_FOUND:
            yield (
                f"{data.flag}: column {column.name!r}: {_percent(share)} of the values are words "
                f"of its vocabulary ({_some(column.vocabulary)}); found {_some(found)}"
            )


def _differences(
    main: DataSet, other: DataSet, table: WantedTable | None, vocabularies: Container[str]
) -> Iterator[str]:
    """Yield the differences between the columns of two data sets that may be mistakes."""
    used = None if table is None else {column.name for column in table.columns}
    missing = "" if table is None else table.missing
    of_other_kind = _other_kinds(main, other, table)
    yield from of_other_kind.values()
    for name, words in main.sample.columns.items():
        theirs = other.sample.columns.get(name)
        if theirs is None or name in of_other_kind or (used is not None and name not in used):
            continue
        kinds = [kind_of([word for word in each if word != missing]) for each in (words, theirs)]
        if all(kinds) and kinds[0] != kinds[1] and "text" in kinds:
            yield (
                f"column {name!r} is {kinds[0]} in {main.flag} ({_some(_distinct(words))}) and "
                f"{kinds[1]} in {other.flag} ({_some(_distinct(theirs))})"
            )
        elif name not in vocabularies and _are_other_words(words, theirs):
            yield (
                f"column {name!r}: no value of {other.flag} ({_some(_distinct(theirs))}) is one "
                f"of {main.flag} ({_some(_distinct(words))})"
            )
    if not main.metadata.column_names and main.sample.columns and other.sample.columns:
        # These are features of Examples, or keys of JSON. One is reported if all records of one
        # data set have it and none of the other.
        labels = set() if other.has_labels or table is None else {table.label}
        lacking = [
            name
            for name, words in main.sample.columns.items()
            if None not in words and name not in other.sample.columns and name not in labels
        ]
        if lacking and other.has_labels:
            yield f"{other.flag}: no record has {_listed(lacking)}, which all of {main.flag} have"


def _other_kinds(main: DataSet, other: DataSet, table: WantedTable | None) -> dict[str, str]:
    """Return the hashed columns that have no word in common, by the types of their values."""
    found = {}
    for name in [column.name for column in table.columns if column.is_hashed] if table else ():
        kinds = [_WORDS_OF_KINDS.get(_kind(data.metadata, name)) for data in (main, other)]
        is_empty = all(word is None for word in other.sample.columns.get(name, ()))
        if all(kinds) and kinds[0] != kinds[1] and not is_empty:
            found[name] = (
                f"column {name!r} is {kinds[0]} in {main.flag} and {kinds[1]} in {other.flag}, "
                "which are different words, with different ids"
            )
    return found


def _kind(metadata: Metadata, name: str) -> str:
    """Return the kind of a column's values, as in `Metadata.column_kinds`; "" if not known."""
    dtype = metadata.column_dtypes.get(name)
    of_dtype = "" if dtype is None else _KINDS_OF_DTYPES.get(dtype.kind, "")
    return metadata.column_kinds.get(name, of_dtype)


def _other_units(main: DataSet, other: DataSet) -> Iterator[str]:
    """Yield the columns of times in other units: `feed` sees them as numbers in their unit."""
    for name, ours in main.metadata.column_dtypes.items():
        theirs = other.metadata.column_dtypes.get(name, ours)
        if ours != theirs and "m" in (ours.kind + theirs.kind).lower():
            yield (
                f"column {name!r} is {ours} in {main.flag} and {theirs} in {other.flag}: to a feed "
                "that takes it as a number the same time is another one. Write both in one unit, "
                "or convert them by metadata.column_dtypes"
            )


def _are_other_words(ours: Words, theirs: Words) -> bool:
    """Return whether both columns have few different words, and none in common."""
    mine, others = set(_distinct(ours)), set(_distinct(theirs))
    is_few = 0 < len(mine) <= _FEW_WORDS and 20 * len(mine) <= len(ours) and others
    return bool(is_few) and kind_of(ours) != "numbers" and mine.isdisjoint(others)


# --- words ---------------------------------------------------------------------------------------


def _share(
    data: DataSet, name: str, vocabulary: Sequence[str], sep: str
) -> tuple[float | None, list[str]]:
    """Return which share of a column's values is in its vocabulary, and values that are not.

    The share is None if the column has no vocabulary, or if no value was seen.
    """
    words = data.fed.words.get(name)
    if not vocabulary or not words:
        return None, []
    values = [
        word for text in words if text for word in (text.split(sep) if sep else [text]) if word
    ]
    if not values:
        return None, []
    known = set(vocabulary)
    counts = Counter(values)
    found = sum(count for word, count in counts.items() if word in known)
    unknown = [word for word, _ in counts.most_common() if word not in known]
    return found / len(values), unknown


def _has_positive(data: DataSet, table: WantedTable, found: Iterable[str]) -> bool:
    """Return whether a label is 1: a word of the data is positive, or `feed` gave a 1.

    In a column of numbers or truth values, `feed` writes the words as `positive` has them: True is
    "1" then, or "true".
    """
    is_fed = any((labels == 1).any() for labels in data.fed.labels.values())
    return is_fed or not set(table.positive).isdisjoint(found)


def _distinct(words: Words) -> list[str]:
    return list(dict.fromkeys(word for word in words if word is not None))


def _plain(word: str) -> str:
    """Return a word without differences in spelling: case, blanks, quotes, `.0`."""
    text = word.strip().strip("'\"").strip().lower()
    try:
        return repr(float(text))
    except ValueError:
        return {"true": "1.0", "false": "0.0"}.get(text, text)


def _some(values: Sequence[str], between: str = ", ") -> str:
    """Return at most three values, as they are written."""
    shown = between.join(repr(value) for value in values[:_VALUES_SHOWN])
    return shown + (", ..." if len(values) > _VALUES_SHOWN else "")


def _listed(names: Any) -> str:
    names = list(names)
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(map(str, names[:_NAMES_SHOWN])) + more


def _of(output: str) -> str:
    return f" of {output!r}" if output else ""


def _number(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float | np.floating) else str(value)


def _percent(share: float) -> str:
    if 0 < share < 0.001:
        return "less than 0.1 %"
    return f"{100 * share:.1f} %".replace(".0 %", " %")

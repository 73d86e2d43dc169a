"""Records of a table, as lines, `tf.train.Example`s or columns, to scalars of known types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from elasticdl.errors import ModelError

Parse = Callable[[Any], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The type of a column, and what stands for a missing value.

    in_examples: The type that `tf.train.Example`s have, where it is another.
    """

    dtype: str
    missing: Any
    in_examples: str | None = None


def parser_of(
    element_spec: Any,
    types: Mapping[str, ColumnType],
    names: Sequence[str],
    records: str,
    delimiter: str,
    missing: str,
) -> Parse:
    """Return a function of one record, which gives a scalar for each name of `types`.

    Args:
        element_spec: Of the dataset.
        types: The columns that are wanted.
        names: The columns of a line, in its order.
        records: "csv" or "example", where records are strings.
        delimiter: Between the fields of a line.
        missing: A word that stands for a missing number, beside the empty one.

    Raises:
        ModelError: The records do not have the columns.
    """
    if isinstance(element_spec, dict):
        _check_names(types, tuple(element_spec))
        return lambda record: {name: _typed(record[name], kind) for name, kind in types.items()}
    if records == "example":
        return _parser_of_examples(types)
    if not names:
        raise ModelError(
            "Table: the lines have no names of columns; give "
            '--data_reader_params="skip_header=true" for files with a header, '
            '--data_reader_params="columns=a,b,c" otherwise, or file_columns in the model file'
        )
    _check_names(types, names)
    defaults = [
        [tf.constant(types[name].missing, types[name].dtype)] if name in types else [""]
        for name in names
    ]

    def parse(line: Any) -> dict[str, Any]:
        fields = tf.io.decode_csv(line, defaults, delimiter, na_value=missing)
        columns = dict(zip(names, fields, strict=True))
        return {name: columns[name] for name in types}

    return parse


def _parser_of_examples(types: Mapping[str, ColumnType]) -> Parse:
    features = {}
    for name, kind in types.items():
        dtype = kind.in_examples or kind.dtype
        missing = int(kind.missing) if dtype == "int64" else kind.missing
        features[name] = tf.io.FixedLenFeature([], dtype, missing)

    def parse(record: Any) -> dict[str, Any]:
        example = tf.io.parse_single_example(record, features)
        return {name: _typed(example[name], kind) for name, kind in types.items()}

    return parse


def _typed(value: Any, kind: ColumnType) -> Any:
    """Return a value of a column as the type that is wanted."""
    if kind.dtype == "string":
        return value if value.dtype == tf.string else tf.as_string(value)
    if value.dtype == tf.string:
        text = tf.strings.strip(value)
        is_missing = tf.equal(text, "")
        number = tf.strings.to_number(tf.where(is_missing, "0", text), kind.dtype)
        return tf.where(is_missing, tf.constant(kind.missing, kind.dtype), number)
    if value.dtype.is_floating:
        filling = tf.constant(kind.missing, value.dtype)
        value = tf.where(tf.math.is_nan(value), filling, value)
    return tf.cast(value, kind.dtype)


def _check_names(types: Mapping[str, ColumnType], names: Sequence[str]) -> None:
    lacking = [name for name in types if name not in names]
    if lacking:
        others = [mark for mark in (";", "\t", "|") if len(names) == 1 and mark in names[0]]
        hint = (
            f". The fields seem to have {others[0]!r} between them: say delimiter=tab, semicolon "
            "or pipe in --data_reader_params"
            if others
            else ""
        )
        raise ModelError(
            f"Table: the data has no column {', '.join(map(repr, lacking))}; it has "
            f"{', '.join(names)}{hint}"
        )

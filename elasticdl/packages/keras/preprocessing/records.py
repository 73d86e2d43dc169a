"""Parses records of a table (lines, `tf.train.Example`s or columns) into scalars of known types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from elasticdl.data.base import Metadata, Records
from elasticdl.data.csv_columns import CsvColumns
from elasticdl.errors import DataError, ModelError
from elasticdl.packages.keras.preprocessing.words import kind_of, refused, time_unit, words_of

Parse = Callable[[tf.Tensor], dict[str, tf.Tensor]]


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The type of a column, and the value for a missing one.

    in_examples: The type in `tf.train.Example`s, if it differs.
    vocabulary: The words that are looked up; numbers and truth values are written in the same way.
    is_required: Whether a missing value is an error.
    """

    dtype: str
    missing: str | float
    in_examples: str | None = None
    vocabulary: tuple[str, ...] = ()
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class LineCheck:
    """Checks lines before TensorFlow reads them: TensorFlow accepts more text as numbers."""

    lines: CsvColumns
    numbers: dict[str, str]
    required: tuple[str, ...]

    def __call__(self, records: Records) -> None:
        """Raise for the first record that cannot be parsed.

        Raises:
            DataError: The error has the record.
        """
        try:
            self.lines.check(records, "", self.numbers, self.required)
        except DataError as error:
            hint = _HINT if " number" in str(error) else ""
            raise DataError(f"{str(error).removeprefix(': ')}{hint}", error.record) from None


_HINT = (
    ". In a Table, a word for missing numbers is said by missing='NA', a column of words is a "
    "Category, and a label of words has positive= or classes="
)


def parser_of(
    element_spec: tf.TypeSpec,
    types: Mapping[str, ColumnType],
    metadata: Metadata,
    names: Sequence[str],
    records: str,
    delimiter: str,
    missing: str,
) -> Parse:
    """Return a function of one record, which returns a scalar for each name of `types`.

    Args:
        element_spec: The element spec of the dataset.
        types: The wanted columns.
        metadata: The metadata of the data; a check of lines is added to its `checks`.
        names: The columns of a line, in order.
        records: "csv" or "example", if records are strings.
        delimiter: The character between the fields of a line.
        missing: A word for a missing number, besides the empty word.

    Raises:
        ModelError: The records do not have the columns.
        DataError: A column of times is wanted as numbers, or one of lists as values.
    """
    if isinstance(element_spec, dict):
        _check_names(types, tuple(element_spec))
        for name, kind in types.items():
            _refuse_times(name, kind, metadata)
            if element_spec[name].shape.rank:
                raise DataError(
                    f"the column {name!r} is one value in each record here, and has lists or "
                    "vectors: write the words of a list as one text, for Tags, and each number of "
                    "a vector as a column"
                )
        return lambda record: {
            name: typed(name, record[name], kind, metadata) for name, kind in types.items()
        }
    if records == "example":
        return _parser_of_examples(types, metadata)
    if not names:
        raise ModelError(
            "Table: the lines have no names of columns; give "
            '--data_reader_params="skip_header=true" for files with a header, '
            '--data_reader_params="columns=a,b,c" otherwise, or file_columns in the model file; '
            "lines of JSON need a custom_data_reader (docs/data.md)"
        )
    _check_names(types, names)
    _check_lines(types, metadata, names, delimiter, missing)
    # An unused column is read as text, which can always be parsed.
    defaults = [
        _default(types[name], missing) if name in types else tf.constant([""]) for name in names
    ]

    def parse(line: tf.Tensor) -> dict[str, tf.Tensor]:
        fields = tf.io.decode_csv(line, defaults, delimiter)
        columns = dict(zip(names, fields, strict=True))
        return {
            name: typed(name, columns[name], kind, metadata, missing)
            for name, kind in types.items()
        }

    return parse


def _default(kind: ColumnType, missing: str) -> tf.Tensor:
    """Return the value of an empty field; with a word for missing numbers, numbers are text."""
    if kind.dtype == "string" or missing:
        return tf.constant([""])
    return tf.constant([] if kind.is_required else [kind.missing], kind.dtype)


def _check_lines(
    types: Mapping[str, ColumnType],
    metadata: Metadata,
    names: Sequence[str],
    delimiter: str,
    missing: str,
) -> None:
    """Add a check of lines, if a job runs the feed."""
    checks = getattr(metadata, "checks", None)
    numbers = {
        name: "float32" if kind.dtype == "float32" else "int64"
        for name, kind in types.items()
        if kind.dtype != "string"
    }
    required = tuple(name for name, kind in types.items() if kind.is_required)
    lines = CsvColumns(tuple(names), delimiter, frozenset(("", missing)))
    check = LineCheck(lines, numbers, required)
    # The feed may run several times with the same columns, which need one check.
    if checks is not None and check not in checks:
        checks.append(check)


def _parser_of_examples(types: Mapping[str, ColumnType], metadata: Metadata) -> Parse:
    features = {}
    for name, kind in types.items():
        dtype = kind.in_examples or kind.dtype
        missing = int(kind.missing) if dtype == "int64" else kind.missing
        default = None if kind.is_required else missing
        features[name] = tf.io.FixedLenFeature([], dtype, default)

    def parse(record: tf.Tensor) -> dict[str, tf.Tensor]:
        example = tf.io.parse_single_example(record, features)
        return {name: typed(name, example[name], kind, metadata) for name, kind in types.items()}

    return parse


def typed(
    name: str, value: tf.Tensor, kind: ColumnType, metadata: Metadata, missing: str = ""
) -> tf.Tensor:
    """Return a value of a column in the wanted type."""
    if kind.dtype == "string":
        is_kind = kind_of(name, value.dtype, metadata)
        unit = time_unit(name, metadata)
        word = words_of(value, is_kind, unit, kind.vocabulary)
        return _required(name, tf.equal(word, ""), word) if kind.is_required else word
    if value.dtype == tf.string:
        return _number_of(name, value, kind, missing)
    if value.dtype.is_floating:
        is_missing = tf.math.is_nan(value)
        if kind.is_required:
            value = _required(name, is_missing, value)
        value = tf.where(is_missing, tf.constant(kind.missing, value.dtype), value)
        if tf.as_dtype(kind.dtype).is_integer:
            is_wrong = tf.not_equal(tf.round(value), value) | (tf.abs(value) >= 2.0**63)
            said = _not_held(name, kind.dtype, tf.as_string(value, shortest=True))
            value = refused(is_wrong, said, value)
        # A float64 may be too large for float32, and would silently become infinite.
        elif value.dtype.size > tf.as_dtype(kind.dtype).size:
            return _narrowed(name, value, kind.dtype)
    elif value.dtype == tf.uint64 and kind.dtype == "int64":
        said = _not_held(name, kind.dtype, tf.as_string(value))
        value = refused(value > tf.constant(2**63 - 1, tf.uint64), said, value)
    return tf.cast(value, kind.dtype)


def _not_held(name: str, dtype: str, word: tf.Tensor) -> tf.Tensor:
    return tf.strings.join([f"the column {name!r} is {dtype} here, which does not hold ", word])


def _refuse_times(name: str, kind: ColumnType, metadata: Metadata) -> None:
    """Refuse times as numbers, and durations as words: they depend on the unit of the file."""
    dtype = getattr(metadata, "column_dtypes", {}).get(name)
    if dtype is None:
        return
    is_word, is_span = kind.dtype == "string", dtype.kind == "m"
    if is_span or (dtype.kind == "M" and not is_word):
        raise DataError(
            f"the column {name!r} is {'words' if is_word else 'numbers'} here, and has "
            f"{'durations' if is_span else 'dates or time stamps'}, whose numbers depend on the "
            f"unit that the file has them in ({np.datetime_data(dtype)[0]}): write the number that "
            "is meant, such as days since a date, into the files"
            f"{'' if is_span else ', or use a Category'}"
        )


def _narrowed(name: str, value: tf.Tensor, dtype: str) -> tf.Tensor:
    narrow = tf.cast(value, dtype)
    said = _not_held(name, dtype, tf.as_string(value, shortest=True))
    return refused(tf.math.is_finite(value) & ~tf.math.is_finite(narrow), said, narrow)


def _number_of(name: str, text: tf.Tensor, kind: ColumnType, missing: str) -> tf.Tensor:
    """Parse a number by the rule of `docs/data.md`."""
    is_missing = tf.equal(text, "") | tf.equal(text, missing)
    rule = _WHOLE if tf.as_dtype(kind.dtype).is_integer else _REAL
    is_number = tf.strings.regex_full_match(text, rule)
    # to_number fails on this sentence, and its error quotes it.
    said = tf.strings.join([f"the column {name!r} is numbers here, and has '", text, "'"])
    words = tf.where(is_number, tf.strings.strip(text), said)
    number = tf.strings.to_number(tf.where(is_missing, "0", words), kind.dtype)
    if kind.is_required:
        number = _required(name, is_missing, number)
    filling = tf.constant(kind.missing, kind.dtype)
    if number.dtype.is_floating:
        # A written "nan" is a missing value too, as in other formats.
        is_missing |= tf.math.is_nan(number)
    return tf.where(is_missing, filling, number)


def _required(name: str, is_missing: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    return refused(is_missing, f"the label {name!r} is missing: expected a value", value)


# This is the form that `crates/edl-recordio/src/numbers.rs` accepts; TensorFlow also accepts
# hexadecimal.
_WHOLE = r"[ \t]*[+-]?[0-9]+[ \t]*"
_REAL = r"[ \t]*[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|(?i:inf|infinity|nan))[ \t]*"


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

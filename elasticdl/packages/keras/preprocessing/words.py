"""Gives each value its word as a category, a label or a part of a cross; the same for each format.

`docs/data.md` has the rule. Text is its own word. The word of a typed value is the result of
Python's `str`. So a CSV file that pandas has written has the same words as its table.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import numpy as np
import tensorflow as tf

from elasticdl.data.base import Metadata

_NAT = np.iinfo(np.int64).min
_PER_DAY = {"D": 1, "s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_WHOLE_BELOW = 2.0**53


class Spelling(Enum):
    """The way a vocabulary writes numbers and truth values, if all its words are of one kind."""

    AS_IT_IS = "as str does"
    TRUTH = "True and False, or true and false, or 1 and 0"
    WHOLE = "whole numbers: 1"
    REAL = "real numbers: 1.0"


def spelling_of(words: Sequence[str]) -> Spelling:
    """Return the way in which words write numbers; a column's numbers are written so."""
    if words and all(word.lower() in ("true", "false") for word in words):
        return Spelling.TRUTH
    if words and all(_is_whole(word) for word in words):
        return Spelling.WHOLE
    if words and all(_is_real(word) for word in words):
        return Spelling.REAL
    return Spelling.AS_IT_IS


def truth_words(words: Sequence[str]) -> tuple[str, str]:
    """Return the words for false and true in the form of the vocabulary."""
    for false, true in (("False", "True"), ("false", "true"), ("FALSE", "TRUE"), ("0", "1")):
        if words and set(words) <= {false, true}:
            return false, true
    return "False", "True"


def kind_of(name: str, dtype: tf.DType, metadata: Metadata) -> str:
    """Return the kind of a column's values: text, truth, whole, real, date, ..."""
    known: str | None = getattr(metadata, "column_kinds", {}).get(name)
    if known is not None:
        return known
    if dtype == tf.string:
        return "text"
    if dtype == tf.bool:
        return "truth"
    return "real" if dtype.is_floating else "whole"


def words_of(
    value: tf.Tensor, kind: str, unit: str = "D", vocabulary: Sequence[str] = ()
) -> tf.Tensor:
    """Return the words of values.

    Args:
        value: Values of a column, as a tensor of any shape.
        kind: The kind of the values, as in `Metadata.column_kinds`.
        unit: The unit of dates and time stamps, which are whole numbers.
        vocabulary: The words that are looked up; empty for hashes.

    Returns:
        Strings; a missing value is empty.
    """
    if value.dtype == tf.string:
        return _spelled_text(value, vocabulary)
    false, true = truth_words(vocabulary)
    if value.dtype == tf.bool:
        return tf.where(value, true, false)
    if kind == "truth":
        words = tf.where(tf.not_equal(value, 0), true, false)
        # Truth values come as floats if some of them are missing.
        return tf.where(_is_nan(value), "", words) if value.dtype.is_floating else words
    if kind in ("date", "timestamp", "timestamp UTC"):
        return tf.where(tf.equal(value, _NAT), "", _time_words(value, kind, _PER_DAY[unit]))
    if kind.startswith("decimal"):
        return tf.where(_is_nan(value), "", _decimal_words(value, int(kind.partition(" ")[2])))
    spelling = spelling_of(vocabulary)
    if value.dtype.is_floating:
        words = _real_words(value, kind == "whole" or spelling in (Spelling.WHOLE, Spelling.TRUTH))
    else:
        words = tf.as_string(value)
        if spelling is Spelling.REAL:
            words = tf.strings.join([words, ".0"])
    if spelling is Spelling.TRUTH:
        words = tf.where(words == "1", true, tf.where(words == "0", false, words))
    return words


def refused(is_wrong: tf.Tensor, said: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """Return a value; if it is wrong, the running operation fails with the message.

    Unlike `tf.debugging.Assert`, the operation has a form for many records at once.
    """
    # The sentence is no number, so parsing it fails with the sentence in the error.
    number = tf.strings.to_number(tf.where(is_wrong, said, "0"), tf.float32)
    if value.dtype == tf.string:
        # The result must depend on the number, or TensorFlow would not compute the number.
        return tf.strings.join([value, tf.where(tf.equal(number, 0.0), "", " ")])
    return value + tf.cast(number, value.dtype)


def time_unit(name: str, metadata: Metadata) -> str:
    """Return the unit of a column of times."""
    dtype = getattr(metadata, "column_dtypes", {}).get(name)
    return np.datetime_data(dtype)[0] if dtype is not None and dtype.kind in "mM" else "D"


def _spelled_text(value: tf.Tensor, vocabulary: Sequence[str]) -> tf.Tensor:
    if spelling_of(vocabulary) is not Spelling.TRUTH:
        return value
    false, true = truth_words(vocabulary)
    # A text file may write "true" where the vocabulary has "True".
    lower = tf.strings.lower(value)
    return tf.where(lower == "true", true, tf.where(lower == "false", false, value))


def _real_words(value: tf.Tensor, is_whole: bool) -> tf.Tensor:
    """Return the shortest words that read back as the values, as `repr` writes them."""
    if value.dtype not in (tf.float32, tf.float64):
        value = tf.cast(value, tf.float32)
    value = value + tf.zeros((), value.dtype)  # -0.0 and 0.0 are one value
    # Every float32 reads back from 9 digits, and every float64 from 17; most need fewer.
    precisions = (6, 7, 8, 9) if value.dtype == tf.float32 else (15, 16, 17)
    words = tf.as_string(value, precision=precisions[-1], shortest=True)
    for precision in reversed(precisions[:-1]):
        shorter = tf.as_string(value, precision=precision, shortest=True)
        reads_back = tf.equal(tf.strings.to_number(shorter, value.dtype), value)
        words = tf.where(reads_back, shorter, words)
    has_no_fraction = tf.equal(tf.round(value), value)
    is_small = has_no_fraction & (tf.abs(value) < 1e16)
    digits = tf.as_string(tf.cast(tf.where(is_small, value, tf.zeros_like(value)), tf.int64))
    if is_whole:
        words = tf.where(is_small, digits, words)
    else:
        words = tf.where(is_small, tf.strings.join([digits, ".0"]), words)
    return tf.where(_is_nan(value), "", words)


def _decimal_words(value: tf.Tensor, scale: int) -> tf.Tensor:
    too_large = tf.abs(value) * 10.0**scale >= _WHOLE_BELOW
    said = (
        "a decimal with more digits than float64 holds exactly has no word: write the column as "
        "text to use it as a category"
    )
    return tf.as_string(refused(too_large, said, value), precision=scale)


def _time_words(value: tf.Tensor, kind: str, per_day: int) -> tf.Tensor:
    # The division rounds down, so that a time before 1970 is on the right day.
    days = value // per_day
    word = _date_words(days)
    if kind == "date":
        return word
    rest = value - days * per_day
    per_second = per_day // _PER_DAY["s"] if per_day > 1 else 1
    seconds = rest // per_second if per_day > 1 else rest * _PER_DAY["s"]
    parts = [word, " ", _digits(seconds // 3600), ":", _digits(seconds // 60 % 60), ":"]
    parts.append(_digits(seconds % 60))
    if per_second > 1:
        parts.append(_fraction(rest % per_second * (1_000_000_000 // per_second)))
    return tf.strings.join([*parts, "+00:00"] if kind.endswith("UTC") else parts)


def _fraction(nanoseconds: tf.Tensor) -> tf.Tensor:
    micros = tf.strings.join([".", _digits(nanoseconds // 1000, 6)])
    nanos = tf.strings.join([".", _digits(nanoseconds, 9)])
    word = tf.where(tf.equal(nanoseconds % 1000, 0), micros, nanos)
    return tf.where(tf.equal(nanoseconds, 0), "", word)


def _date_words(days: tf.Tensor) -> tf.Tensor:
    """Return year-month-day of days since 1970.

    Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms": `civil_from_days`.
    """
    z = days + 719_468
    era = z // 146_097
    day_of_era = z - era * 146_097
    year_of_era = (
        day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096
    ) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * day_of_year + 2) // 153  # from March
    day = day_of_year - (153 * month + 2) // 5 + 1
    year = year_of_era + era * 400 + tf.cast(month >= 10, tf.int64)
    month = tf.where(month < 10, month + 3, month - 9)
    return tf.strings.join([_digits(year, 4), "-", _digits(month), "-", _digits(day)])


def _digits(number: tf.Tensor, width: int = 2) -> tf.Tensor:
    return tf.as_string(number, width=width, fill="0")


def _is_nan(value: tf.Tensor) -> tf.Tensor:
    return tf.math.is_nan(value)


def _is_whole(word: str) -> bool:
    return word.isascii() and word.removeprefix("-").isdigit() and str(int(word)) == word


def _is_real(word: str) -> bool:
    try:
        return "_" not in word and repr(float(word)) == word
    except ValueError:
        return False

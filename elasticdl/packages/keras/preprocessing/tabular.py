"""A table as a model sees it: the columns that are numbers or ids, and the label.

from elasticdl.preprocessing.tabular import Bucket, Category, Cross, Label, Number, Table

TABLE = Table(
    [
        Number("age"),
        Bucket("age", [18, 25, 35, 50]),
        Category("city", 1000),
        Cross(["age", "city"], 100_000),
    ],
    label=Label("income", positive=">50K"),
)
feed = TABLE.feed

def forward():
    inputs = TABLE.inputs()
    columns = TABLE.encode(inputs)
    deep = keras.layers.Dense(64, activation="relu")(columns.flat(8))
    return keras.Model(inputs, columns.linear() + keras.layers.Dense(1)(deep))
"""

from __future__ import annotations

import importlib
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from elasticdl.data.base import Metadata
from elasticdl.data.wanted import WantedColumn, WantedTable
from elasticdl.errors import ModelError
from elasticdl.job import Mode
from elasticdl.packages.keras.layers.embedding import PLAIN_WEIGHT_LIMIT_BYTES, Embedding
from elasticdl.packages.keras.preprocessing.categories import (
    HashedCross,
    IndexLookup,
    in_order,
    vocabulary_of,
)
from elasticdl.packages.keras.preprocessing.numbers import Normalizer
from elasticdl.packages.keras.preprocessing.records import ColumnType, parser_of
from elasticdl.packages.keras.preprocessing.sparse_embedding import SparseEmbedding
from elasticdl.packages.keras.preprocessing.structures import ConcatenateWithOffset, ToRagged
from elasticdl.packages.keras.preprocessing.words import refused


@dataclass(frozen=True, slots=True)
class Number:
    """A number column; the model gets `(x - mean) / stddev`.

    mean, stddev: None: the values of `--statistics`, and 0 and 1 without it.
    log: Use log(1 + x), and 0 for negative numbers. Then mean and stddev are those of the
        logarithm, and 0 and 1 by default.
    missing: The value for a missing number.
    dtype: "int64" if `tf.train.Example`s have whole numbers.
    """

    name: str
    mean: float | None = None
    stddev: float | None = None
    log: bool = False
    missing: float = 0.0
    dtype: Literal["float32", "int64"] = "float32"


@dataclass(frozen=True, slots=True)
class Bucket:
    """A number column; the model gets the id of the number's bucket.

    boundaries: The ascending boundaries of buckets; None: those of `--statistics`, which is then
        needed.
    dtype: "int64" if `tf.train.Example`s have whole numbers.
    """

    name: str
    boundaries: Sequence[float] | None = None
    missing: float = 0.0
    dtype: Literal["float32", "int64"] = "float32"


@dataclass(frozen=True, slots=True)
class Category:
    """A column of strings or whole numbers; the model gets an id.

    by: The number of hash buckets, or a vocabulary, which has one further id for other values.
    dtype: The type of the value in the data, "string" or "int64".
    """

    name: str
    by: int | Sequence[str] | Sequence[int]
    dtype: Literal["string", "int64"] = "string"


@dataclass(frozen=True, slots=True)
class Cross:
    """A combination of columns as one id below `num_bins`; a number is combined by its bucket."""

    names: Sequence[str]
    num_bins: int

    @property
    def name(self) -> str:
        """The name of the column."""
        return "_X_".join(self.names)


@dataclass(frozen=True, slots=True)
class Tags:
    """A string with several values, cut at `sep`; the values become ids as in a `Category`."""

    name: str
    by: int | Sequence[str]
    sep: str = "|"
    combiner: Literal["sum", "mean", "sqrtn"] = "mean"


Column = Number | Bucket | Category | Cross | Tags


@dataclass(frozen=True, slots=True)
class Label:
    """The label: the column that is predicted.

    A record without a label is an error. So is a word that differs from `positive` only by its
    case.

    positive: The words that mean 1.0; all other words mean 0.0. A number is its word: 1 is "1".
    classes: The words that mean 0, 1, 2, ... (int64); another word is an error.
    dtype: The type of a column of numbers; used without `positive` and `classes`.
    """

    name: str
    positive: str | int | Sequence[str] | Sequence[int] | None = None
    dtype: Literal["float32", "int64"] = "float32"
    classes: Sequence[str] | Sequence[int] | None = None


class Table:
    """The columns of a data set with their forms in the model, and the label.

    Args:
        columns: The model's columns. A number may occur twice, as `Number` and as `Bucket`.
        label: The label.
        file_columns: The names of a CSV file's fields, if neither a header nor
            `--data_reader_params="columns=..."` gives them.
        records: "csv": a record is a line. "example": a record is a serialised `tf.train.Example`.
            Rows of Parquet files and tables are columns already, and need neither.
        delimiter: The character between the fields of a line; None: that of `--data_reader_params`,
            or a comma.
        missing: A word for a missing number in a line, besides the empty word.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        label: Label,
        file_columns: Sequence[str] = (),
        records: Literal["csv", "example"] = "csv",
        delimiter: str | None = None,
        missing: str = "",
    ) -> None:
        self.columns = list(columns)
        self.label = label
        self._types = dict(_types(self.columns))
        words = _label_words(label)
        self._label_type = (
            ColumnType("string", "", vocabulary=words, is_required=True)
            if words
            else ColumnType(label.dtype, 0, is_required=True)
        )
        self._file_columns = tuple(file_columns)
        self._records = records
        self._delimiter = delimiter
        self._missing = missing
        self._check()

    def feed(self, dataset: tf.data.Dataset, mode: Mode, metadata: Metadata) -> tf.data.Dataset:
        """Turn records into (features, label), in predictions into features: a model file's feed.

        Each feature has shape (1,).
        """
        names = tuple(metadata.column_names) or self._file_columns
        types = dict(self._types)
        # Records to predict need no label.
        if mode != Mode.PREDICTION:
            types[self.label.name] = self._label_type
        delimiter = self._delimiter or str(getattr(metadata, "delimiter", ","))
        parse = parser_of(
            dataset.element_spec,
            types,
            metadata,
            names,
            self._records,
            delimiter,
            self._missing,
        )

        def example(record: tf.Tensor) -> object:
            columns = parse(record)
            features = {name: columns[name][None] for name in self._types}
            return features if mode == Mode.PREDICTION else (features, self._label_of(columns))

        dataset = dataset.map(example)
        return dataset.shuffle(1024) if mode == Mode.TRAINING else dataset

    def wanted(self) -> WantedTable:
        """Return the expectations of the data, for checks of the data."""
        described = {
            name: WantedColumn(name, is_hashed=kind.dtype == "string")
            for name, kind in self._types.items()
        }
        for column in self.columns:
            if isinstance(column, Category | Tags) and not isinstance(column.by, int | np.integer):
                words = self._types[column.name].vocabulary
                sep = column.sep if isinstance(column, Tags) else ""
                described[column.name] = WantedColumn(column.name, words, sep)
            elif isinstance(column, Number):
                known = described[column.name]
                described[column.name] = replace(known, is_as_it_is=_is_as_it_is(column))
        words = () if self.label.positive is None else _label_words(self.label)
        return WantedTable(
            tuple(described.values()), self.label.name, words, self._file_columns, self._missing
        )

    def inputs(self) -> dict[str, keras.KerasTensor]:
        """Return a `keras.Input` of shape (1,) for each used column of the data."""
        return {name: _input(name, kind.dtype) for name, kind in self._types.items()}

    def encode(self, inputs: dict[str, keras.KerasTensor]) -> EncodedTable:
        """Return the inputs as numbers, as ids of one range, and as lists of ids."""
        numbers = [_number(c, inputs[c.name]) for c in self.columns if isinstance(c, Number)]
        ids, sizes = [], []
        for column in self.columns:
            if isinstance(column, Bucket | Category | Cross):
                of_column, size = self._ids(column, inputs)
                ids.append(keras.ops.cast(of_column, "int64"))
                sizes.append(size)
        lists = []
        for column in self.columns:
            if isinstance(column, Tags):
                to_lists = ToRagged(column.sep, name=f"{_layer_name(column.name)}_list")
                values = to_lists(inputs[column.name])
                layer, size = _by(column.by, column.name)
                lists.append((column, layer(values), size))
        # All columns share one table, and each has its own range of ids in it.
        offsets = [sum(sizes[:k]) for k in range(len(sizes))]
        return EncodedTable(
            keras.layers.Concatenate(name="numbers")(numbers)
            if len(numbers) > 1
            else numbers[0]
            if numbers
            else None,
            ConcatenateWithOffset(offsets, name="ids")(ids) if ids else None,
            sum(sizes),
            lists,
        )

    def _ids(
        self, column: Bucket | Category | Cross, inputs: dict[str, keras.KerasTensor]
    ) -> tuple[keras.KerasTensor, int]:
        """Return the ids of a column, and the number of possible ids."""
        if isinstance(column, Cross):
            parts = [self._part(name, inputs) for name in column.names]
            return HashedCross(column.num_bins)(parts), column.num_bins
        if isinstance(column, Bucket):
            boundaries = _boundaries(column)
            ids = keras.layers.Discretization(boundaries)(inputs[column.name])
            return ids, len(boundaries) + 1
        layer, size = _by(column.by, column.name)
        return layer(inputs[column.name]), size

    def _part(self, name: str, inputs: dict[str, keras.KerasTensor]) -> keras.KerasTensor:
        buckets = [c for c in self.columns if isinstance(c, Bucket) and c.name == name]
        return self._ids(buckets[0], inputs)[0] if buckets else inputs[name]

    def _label_of(self, columns: dict[str, tf.Tensor]) -> tf.Tensor:
        value, positive = columns[self.label.name], self.label.positive
        if self.label.classes is not None:
            return _class_of(tf.strings.strip(value), list(_label_words(self.label)))[None]
        if positive is None:
            return value[None]
        return _is_positive(tf.strings.strip(value), list(_label_words(self.label)))[None]

    def _check(self) -> None:
        label = self.label
        if label.classes is not None and (label.positive is not None or len(label.classes) < 2):
            raise ModelError(
                f"Label({label.name!r}) has positive={label.positive!r} and classes="
                f"{list(label.classes)}; say either of both, and two classes or more"
            )
        known = [(type(c), c.name) for c in self.columns]
        for kind, name in known:
            if known.count((kind, name)) > 1:
                raise ModelError(f"Table: {kind.__name__}({name!r}) is there more than once")
        if label.name in self._types:
            raise ModelError(f"Table: {label.name!r} is the label, and among the columns, too")
        for column in self.columns:
            for part in column.names if isinstance(column, Cross) else ():
                if self._types[part].dtype == "float32" and (Bucket, part) not in known:
                    raise ModelError(
                        f"Table: {column.name!r} crosses the number {part!r}; say Bucket({part!r}, "
                        "...) beside it, whose ids are crossed"
                    )


@dataclass(frozen=True, slots=True)
class EncodedTable:
    """The columns of a table in the form for a model.

    numbers: (records, n) or None.
    ids: (records, m), int64, or None; each column has its own range below `num_ids`.
    lists: (column, ragged ids, number of possible ids) of each `Tags`.
    """

    numbers: keras.KerasTensor | None
    ids: keras.KerasTensor | None
    num_ids: int
    lists: list[tuple[Tags, keras.KerasTensor, int]]

    def vectors(self, dim: int, name: str = "vectors", **settings: Any) -> keras.KerasTensor:
        """Return a vector for each id, and one for each list: (records, fields, dim).

        Args:
            dim: The width of a vector.
            name: The name of the embedding; lists have embeddings of their own, `NAME_COLUMN`.
            **settings: Arguments of `elasticdl.layers.Embedding`.
        """
        found = []
        if self.ids is not None:
            found.append(Embedding(dim, _rows(self.num_ids, dim), name=name, **settings)(self.ids))
        for column, ids, size in self.lists:
            layer = SparseEmbedding(
                _rows(size, dim),
                dim,
                combiner=column.combiner,
                name=f"{name}_{_layer_name(column.name)}",
                **settings,
            )
            found.append(keras.layers.Reshape((1, dim))(layer(ids)))
        if not found:
            raise ModelError("Table: no column has ids, so there are no vectors of them")
        return keras.layers.Concatenate(axis=1)(found) if len(found) > 1 else found[0]

    def linear(self, name: str = "weights") -> keras.KerasTensor:
        """Return a linear model of all columns: (records, 1)."""
        terms = []
        if self.ids is not None or self.lists:
            weights = self.vectors(1, name, embeddings_initializer="zeros")
            terms.append(keras.ops.sum(weights, axis=1))
        if self.numbers is not None:
            terms.append(keras.layers.Dense(1, name=f"{name}_of_numbers")(self.numbers))
        return terms[0] if len(terms) == 1 else keras.layers.add(terms)

    def flat(self, dim: int, name: str = "vectors", **settings: Any) -> keras.KerasTensor:
        """Return all numbers and vectors of a record beside each other."""
        found = []
        if self.ids is not None or self.lists:
            found.append(keras.layers.Flatten()(self.vectors(dim, name, **settings)))
        if self.numbers is not None:
            found.append(self.numbers)
        return keras.layers.Concatenate()(found) if len(found) > 1 else found[0]


def _types(columns: Sequence[Column]) -> Iterator[tuple[str, ColumnType]]:
    """Yield the type of each column of the data that is used."""
    settings: dict[str, Mapping[str, object]] = {}
    for column in columns:
        if isinstance(column, Number | Bucket):
            of_this = {"missing": column.missing, "dtype": column.dtype}
            if settings.setdefault(column.name, of_this) != of_this:
                raise ModelError(
                    f"Table: Number({column.name!r}) and Bucket({column.name!r}) have "
                    f"{settings[column.name]} and {of_this}; they are of one column, say the same"
                )
            yield column.name, ColumnType("float32", column.missing, column.dtype)
        elif isinstance(column, Category | Tags):
            dtype = column.dtype if isinstance(column, Category) else "string"
            missing = "" if dtype == "string" else -1
            what = f"{type(column).__name__}({column.name!r})"
            words = (
                ()
                if isinstance(column.by, int | np.integer)
                else tuple(vocabulary_of(column.by, what))
            )
            yield column.name, ColumnType(dtype, missing, vocabulary=words)
    named = {column.name for column in columns if not isinstance(column, Cross)}
    for column in columns:
        if isinstance(column, Cross):
            for name in column.names:
                if name not in named:  # only crossed
                    yield name, ColumnType("string", "")


def _number(column: Number, value: keras.KerasTensor) -> keras.KerasTensor:
    mean, stddev = _scale(column)
    if column.log:
        value = keras.ops.log1p(keras.ops.maximum(value, 0.0))
    return Normalizer(mean, stddev or 1.0)(value)  # a column of one value is 0 everywhere


def _scale(column: Number) -> tuple[float, float]:
    """Return the mean and the deviation of a column; (0, 1) if they are unknown."""
    from elasticdl.preprocessing import statistics  # another package has it

    has_statistics = not column.log
    mean, stddev = column.mean, column.stddev
    if mean is None:
        mean = statistics.get_avg(column.name, 0.0) if has_statistics else 0.0
    if stddev is None:
        stddev = statistics.get_stddev(column.name, 1.0) if has_statistics else 1.0
    return mean, stddev


def _is_as_it_is(column: Number) -> bool:
    """Return whether a number is not scaled, and no setting asks for this."""
    is_said = column.log or column.mean is not None or column.stddev is not None
    return not is_said and _scale(column) == (0.0, 1.0)


def _boundaries(column: Bucket) -> list[float]:
    if column.boundaries is not None:
        return [float(boundary) for boundary in column.boundaries]
    from elasticdl.preprocessing import statistics  # another package has it

    found = [float(boundary) for boundary in statistics.get_bucket_boundaries(column.name, [])]
    if not found:
        raise ModelError(
            f"Bucket({column.name!r}) has no boundaries: run elasticdl data analyze and give its "
            "file as --statistics, or write them here"
        )
    return found


def _by(by: int | Sequence[str] | Sequence[int], name: str) -> tuple[keras.layers.Layer, int]:
    """Return the layer that makes ids of values, and the number of possible ids."""
    if isinstance(by, int | np.integer):
        by = int(by)
        return keras.layers.Hashing(by, name=f"{_layer_name(name)}_id"), by
    layer = IndexLookup(by, name=f"{_layer_name(name)}_id")
    return layer, layer.vocab_size()


def _input(column: str, dtype: str) -> keras.KerasTensor:
    """Return an input with the name of a column, although Keras allows no `/` in a layer's name."""
    tensor = keras.Input((1,), dtype=dtype, name=column.replace("/", "_"))
    tensor.name = column  # which Keras compares with the key of a dict
    return tensor


def _layer_name(column: str) -> str:
    """Return a name for a column's layers; TensorFlow allows ASCII letters, digits and _.-."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", column)
    if plain == column:
        return column
    # Several columns may lose all their characters: 年龄 and 城市 leave nothing, so a checksum is
    # added.
    return f"{plain.strip('_') or 'column'}_{zlib.crc32(column.encode()):08x}"


def _class_of(word: tf.Tensor, classes: list[str]) -> tf.Tensor:
    """Return the index of a word among the classes; another word cannot be parsed."""
    is_one = tf.equal(word, classes)
    said = tf.strings.join(["the label '", word, f"' is none of the classes {classes}"])
    place = tf.as_string(tf.argmax(tf.cast(is_one, tf.int32), output_type=tf.int64))
    # The sentence is no number, so parsing it fails with the sentence in the error.
    return tf.strings.to_number(tf.where(tf.reduce_any(is_one), place, said), tf.int64)


def _label_words(label: Label) -> tuple[str, ...]:
    """Return the words of a label; none if it is a number."""
    words = label.positive if label.classes is None else label.classes
    if words is None:
        return ()
    if isinstance(words, str | int | float):
        return (str(words),)
    # Only the classes have numbers, so the words of `positive` may be a set.
    given = list(words) if label.classes is None else words
    return tuple(in_order(given, f"Label({label.name!r}): classes"))


def _is_positive(word: tf.Tensor, positive: list[str]) -> tf.Tensor:
    """Return 1.0 for a positive word and 0.0 for others; a nearly positive word is an error.

    With positive="Yes", the word `yes` would otherwise make every label 0.
    """
    is_one = tf.reduce_any(tf.equal(word, positive))
    is_near = tf.reduce_any(
        tf.equal(tf.strings.lower(word, "utf-8"), [one.lower() for one in positive])
    )
    said = tf.strings.join(["the label '", word, f"' differs from positive={positive} by its case"])
    return refused(is_near & ~is_one, said, tf.cast(is_one, tf.float32))


def _rows(num_ids: int, dim: int) -> int | None:
    """Return `input_dim` if a table of all ids is small enough to be an ordinary weight."""
    return num_ids if num_ids * dim * 4 <= PLAIN_WEIGHT_LIMIT_BYTES else None


# Tables are looked for by this name. A process that loads functions of a program, with their table,
# imports this file alone.
importlib.import_module("elasticdl.preprocessing.tabular")

"""`elasticdl.layers.Embedding`: an embedding table that lives on the ps replicas."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from elasticdl.errors import ModelError
from elasticdl.layers.life_cycle import Admission, Expiry, admission_of, config_of, expiry_of
from elasticdl.layers.row_statistics import RowStatistics, statistics_of, table_name
from elasticdl.packages.frameworks.lookup import Shape, current_count, current_lookup, is_served
from elasticdl.packages.keras.layers.constraint import describe_constraint
from elasticdl.packages.keras.layers.plain_table import PlainTable
from elasticdl.packages.keras.layers.table_variable import TableVariable

COMBINERS = ("sum", "mean", "sqrtn")
WIRE_DTYPES = ("float32", "float16", "bfloat16")
NUM_STRING_IDS = 2**63 - 1
EMPTY_STRING_ID = 0x1AE1_6A3B_2F90_4050  # of ""
PLAIN_WEIGHT_LIMIT_BYTES = 256 * 1024 * 1024
_WHOLE_TABLE = "use keras.layers.Embedding, with a table below --embedding_threshold_bytes"


@keras.saving.register_keras_serializable(package="elasticdl")
class Embedding(keras.layers.Layer):  # type: ignore[misc]  # keras has no types
    """Turns ids into rows of a table that lives on the ps replicas.

    Ids are non-negative integers up to 2**63 - 1. A row is created when its id is first trained, so
    the table needs no size. Ids may also be strings: the id of a string is
    `tf.strings.to_hash_bucket_fast(string, 2**63 - 1)`. Floats are cut off to integers, as
    `keras.layers.Embedding` does. If a layer is called several times, all calls use one table.

    In a job the rows are inputs of the training step, and their gradients go to the ps replicas.
    The layer also works in a plain Python session (a unit test, a notebook). With an `input_dim`
    the layer then owns an ordinary weight, which is trained like any other weight. Without one (or
    if the weight would exceed 256 MiB) rows are created in this process when first used, with the
    initial values of a job with seed 0, and are *not trained*.

    Args:
        output_dim: The width of a row.
        input_dim: The number of rows, if known. Ids are then checked against it, and the export has
            an ordinary table. Otherwise the export has the trained ids and their rows.
        embeddings_initializer: A Keras initializer, or its name, that is a constant, or a
            uniform, normal or truncated normal distribution.
        mask_zero: Id 0, or the empty string, is padding: later layers get a mask, and a combiner
            leaves the padding out.
        input_length: Accepted for models that were written for older Keras; it has no effect.
        combiner: "sum", "mean" or "sqrtn" reduces all rows of one record to one, and the layer
            returns `(batch, output_dim)`. A record without ids gives zeros. A combiner is needed if
            the ids are a `tf.SparseTensor` or `tf.RaggedTensor`.
        wire_dtype: The type of rows and gradients between workers and ps replicas: "float32",
            "float16" or "bfloat16". Rows are stored and updated in float32.
        admission: Which ids get a row: `CountAdmission`, `ProbabilityAdmission` or
            `StatisticAdmission`; None: each id gets one. A plain session trains all ids.
        expiry: When rows are removed, an `Expiry`; None: they stay, as in a plain session.
        keep_names: Store the strings that ids were made of beside the rows, so that exported tables
            show them. The layer is called with strings, or with the results of
            `tf.strings.to_hash_bucket_fast`.
        embeddings_constraint: `NonNeg`, or `UnitNorm`, `MaxNorm` or `MinMaxNorm` with axis=1, of
            `keras.constraints`: a constraint for each row from its creation on.
        statistics: Keep decayed sums of each id beside its row, by `RowStatistics`. A plain session
            keeps none, and reads zeros.
    """

    def __init__(
        self,
        output_dim: int,
        input_dim: int | None = None,
        embeddings_initializer: object = "uniform",
        mask_zero: bool = False,
        input_length: int | None = None,
        combiner: str | None = None,
        wire_dtype: str = "float32",
        admission: Admission | None = None,
        expiry: Expiry | None = None,
        keep_names: bool = False,
        embeddings_constraint: object = None,
        statistics: RowStatistics | None = None,
        **kwargs: object,
    ) -> None:
        super().__init__(**kwargs)
        if not _is_positive(output_dim):
            raise ModelError(
                f"Embedding: output_dim must be a positive integer, not {output_dim!r}"
            )
        if input_dim is not None and not _is_positive(input_dim):
            raise ModelError(f"Embedding: input_dim must be a positive integer, not {input_dim!r}")
        if combiner is not None and combiner not in COMBINERS:
            raise ModelError(
                f"Embedding: combiner must be one of {', '.join(COMBINERS)} or None, "
                f"not {combiner!r}"
            )
        if wire_dtype not in WIRE_DTYPES:
            raise ModelError(
                f"Embedding: wire_dtype must be one of {', '.join(WIRE_DTYPES)}, not {wire_dtype!r}"
            )
        self.output_dim = int(output_dim)
        self.input_dim = None if input_dim is None else int(input_dim)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.mask_zero = bool(mask_zero)
        self.input_length = input_length
        self.combiner = combiner
        self.wire_dtype = wire_dtype
        self.admission = admission_of(admission, "Embedding")
        self.expiry = expiry_of(expiry, "Embedding")
        self.keep_names = bool(keep_names)
        self.embeddings_constraint = keras.constraints.get(embeddings_constraint)
        describe_constraint(self.embeddings_constraint, self.name)
        self.statistics = statistics_of(statistics, "Embedding")
        self.statistics_table: StatisticsTable | None = None
        if self.statistics is not None:
            name = table_name(self.name)
            self.statistics_table = StatisticsTable(self.statistics, name, self.expiry)
        self.supports_masking = self.mask_zero
        self._weight: tf.Tensor = None
        self._plain_table: PlainTable | None = None
        # Ids are passed on unchanged: Keras would cast integers to the layer's float dtype, and
        # does not know sparse and ragged tensors.
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        self.supports_jit = self._fits_a_weight()  # a plain table is looked up outside XLA

    def build(self, input_shape: Shape | None = None) -> None:
        """Create the ordinary weight of a plain session; in a job a `TableVariable` replaces it."""
        if current_lookup() is not None:
            if self.input_dim is not None and not self.variables:
                # Without it, the model's count of parameters would lack the table.
                TableVariable.of(self, _WHOLE_TABLE, takes_rows=False)
        elif self._fits_a_weight() and self._weight is None:
            self._weight = self.add_weight(
                shape=(self.input_dim, self.output_dim),
                initializer=self.embeddings_initializer,
                constraint=self.embeddings_constraint,
                name="embeddings",
            )
        self.built = True

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the rows of `inputs`, combined if the layer has a combiner."""
        if keras.backend.backend() != "tensorflow":
            return self._call_on_arrays(inputs)
        padding = 0
        if _is_string(inputs):
            if self.input_dim is not None:
                raise ModelError(
                    f"Embedding {self.name!r}: ids of strings are any numbers below 2**63; leave "
                    "input_dim out, or hash the strings yourself, for example with "
                    "keras.layers.Hashing"
                )
            inputs, padding = _ids_of_strings(inputs), EMPTY_STRING_ID
        inputs = self._as_integers(inputs)
        if isinstance(inputs, tf.SparseTensor):
            self._need_combiner("tf.SparseTensor")
            counts, records = self._counted(inputs.values, padding), inputs.indices[:, 0]
            rows = self._read(inputs.values, records, counts)
            outputs = self._combine(rows, counts, records, inputs.dense_shape[0])
            batch = inputs.shape[0]
        elif isinstance(inputs, tf.RaggedTensor):
            self._need_combiner("tf.RaggedTensor")
            # A combiner reduces all ids of a record, however deep the record's lists are.
            flat = inputs.merge_dims(1, -1) if inputs.shape.rank > 2 else inputs
            counts, records = self._counted(flat.values, padding), flat.value_rowids()
            rows = self._read(flat.values, records, counts)
            outputs = self._combine(rows, counts, records, flat.nrows(tf.int64))
            batch = inputs.shape[0]
        else:
            counts = self._counted(inputs, padding)
            outputs = self._read(inputs, None, counts)
            if self.combiner is not None:
                outputs = self._combine_dense(outputs, counts)
            batch = inputs.shape[0] if inputs.shape.rank else None
        if self.combiner is not None:
            outputs = tf.ensure_shape(outputs, (batch, self._width))
        return tf.cast(outputs, self.compute_dtype)

    def _call_on_arrays(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        """Return the rows if Keras is not on TensorFlow; ids are a dense array of any integers."""
        ops = keras.ops
        ids = ops.convert_to_tensor(inputs)
        self._check_dtype(ids.dtype)
        rows = self._rows_of_array(ids)
        if not self.trainable:
            rows = ops.stop_gradient(rows)
        if self.combiner is not None:
            axes = list(range(1, len(ids.shape)))
            # Without this a record of padding alone would be divided by zero.
            counts = ops.cast(ops.not_equal(ids, 0), "float32") if self.mask_zero else None
            rows = rows if counts is None else rows * counts[..., None]
            counts = ops.ones(ids.shape, "float32") if counts is None else counts
            divisor = ops.maximum(ops.sum(counts, axes), 1.0)[:, None]
            rows = ops.sum(rows, axes)
            if self.combiner != "sum":
                rows = rows / (divisor if self.combiner == "mean" else ops.sqrt(divisor))
        return ops.cast(rows, self.compute_dtype)

    def _rows_of_array(self, ids: keras.KerasTensor) -> keras.KerasTensor:
        lookup = current_lookup()
        if lookup is not None:
            return lookup(self, ids)
        if self._weight is None:
            raise ModelError(
                f"Embedding {self.name!r}: in a plain session of Keras on "
                f"{keras.backend.backend()} it needs an input_dim, of a table below "
                f"{PLAIN_WEIGHT_LIMIT_BYTES} bytes; in a job it needs none"
            )
        return keras.ops.take(self._weight, keras.ops.cast(ids, "int32"), axis=0)

    def compute_mask(self, inputs: tf.Tensor, previous_mask: tf.Tensor = None) -> tf.Tensor:
        """Return which ids are not padding, when `mask_zero` is set and nothing was combined."""
        if not self.mask_zero or self.combiner is not None:
            return None
        return tf.not_equal(inputs, "") if _is_string(inputs) else keras.ops.not_equal(inputs, 0)

    def compute_output_shape(self, input_shape: Shape) -> tuple[int | None, ...]:
        """Return `(batch, output_dim)` with a combiner, otherwise one row for each id."""
        if self.combiner is not None:
            return (input_shape[0], self._width)
        return (*input_shape, self._width)

    def compute_output_spec(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        """Return the spec of a symbolic call; no row is looked up for it."""
        self._check_dtype(inputs.dtype)
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), self.compute_dtype)

    @property
    def has_own_weight(self) -> bool:
        """Return whether the layer holds its rows itself: it was built in a plain session."""
        return self._weight is not None

    def get_config(self) -> dict[str, object]:
        """Return the arguments that rebuild the layer, without its rows."""
        return {
            **super().get_config(),
            "output_dim": self.output_dim,
            "input_dim": self.input_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "mask_zero": self.mask_zero,
            "input_length": self.input_length,
            "combiner": self.combiner,
            "wire_dtype": self.wire_dtype,
            "admission": config_of(self.admission),
            "expiry": config_of(self.expiry),
            "keep_names": self.keep_names,
            "embeddings_constraint": keras.constraints.serialize(self.embeddings_constraint),
            "statistics": config_of(self.statistics),
        }

    @property
    def _width(self) -> int:
        """The number of floats that the layer returns for an id."""
        return self.output_dim + (self.statistics.num_features if self.statistics else 0)

    def _as_integers(self, ids: tf.Tensor) -> tf.Tensor:
        """Return ids of the same structure as 64-bit integers."""
        if not isinstance(ids, tf.SparseTensor | tf.RaggedTensor):
            ids = tf.convert_to_tensor(ids)
        self._check_dtype(ids.dtype)
        return tf.cast(ids, tf.int64)

    def _read(self, ids: tf.Tensor, records: tf.Tensor | None, weights: tf.Tensor) -> tf.Tensor:
        """Return the rows of ids, followed by the statistics that are features."""
        rows = self._rows(ids)
        if self.statistics_table is None:
            return rows
        features = self.statistics_table.read(ids, records, weights if self.mask_zero else None)
        return rows if features is None else tf.concat([rows, tf.cast(features, rows.dtype)], -1)

    def _rows(self, ids: tf.Tensor) -> tf.Tensor:
        lookup = current_lookup()
        if lookup is not None:
            rows = lookup(self, ids)
        elif self._weight is not None:
            rows = tf.gather(self._weight.value, ids)
        else:
            if self._plain_table is None:
                self._plain_table = PlainTable(
                    self.name,
                    self.output_dim,
                    self.input_dim,
                    self.embeddings_initializer,
                    describe_constraint(self.embeddings_constraint, self.name),
                )
            rows = self._plain_table.lookup(ids)
        # A frozen layer sends no gradients, since its rows must not change.
        return rows if self.trainable else tf.stop_gradient(rows)

    def _combine(
        self, rows: tf.Tensor, counts: tf.Tensor, segments: tf.Tensor, num_segments: tf.Tensor
    ) -> tf.Tensor:
        """Reduce `rows` (n, dim) to one for each of `num_segments` records."""
        if self.mask_zero:
            rows = rows * counts[:, None]
        totals = tf.math.unsorted_segment_sum(rows, segments, num_segments)
        if self.combiner == "sum":
            return totals
        counts = tf.math.unsorted_segment_sum(counts, segments, num_segments)
        return totals / self._divisor(counts)

    def _combine_dense(self, rows: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        """Reduce `rows` (batch, ..., dim) over all axes between the first and the last."""
        axes = list(range(1, counts.shape.rank))
        if self.mask_zero:
            rows = rows * counts[..., None]
        totals = tf.reduce_sum(rows, axes)
        if self.combiner == "sum":
            return totals
        return totals / self._divisor(tf.reduce_sum(counts, axes))

    def _counted(self, ids: tf.Tensor, padding: int) -> tf.Tensor:
        if self.mask_zero:
            return tf.cast(tf.not_equal(ids, tf.constant(padding, ids.dtype)), tf.float32)
        return tf.ones(tf.shape(ids), tf.float32)

    def _divisor(self, counts: tf.Tensor) -> tf.Tensor:
        counts = tf.maximum(counts, 1.0)[:, None]
        return counts if self.combiner == "mean" else tf.sqrt(counts)

    def _fits_a_weight(self) -> bool:
        if self.input_dim is None:
            return False
        return self.input_dim * self.output_dim * 4 <= PLAIN_WEIGHT_LIMIT_BYTES

    def _need_combiner(self, what: str) -> None:
        if self.combiner is None:
            raise ModelError(
                f"Embedding {self.name!r} is called with a {what} and has no combiner; records "
                'have different numbers of ids, so say combiner="sum", "mean" or "sqrtn"'
            )

    def _check_dtype(self, dtype: tf.DType) -> None:
        name = keras.backend.standardize_dtype(dtype)
        if name.startswith("complex"):
            raise ModelError(
                f"Embedding {self.name!r}: ids must be integers or strings, found {name}"
            )


class StatisticsTable(keras.layers.Layer):  # type: ignore[misc]  # keras has no types
    """The table of the statistics of an `Embedding`; only that layer calls it.

    Attributes:
        said: The statistics that are kept.
        expiry_of_rows: The rule by which the rows of the ids are removed.
    """

    embeddings_initializer = "zeros"
    embeddings_constraint = None
    input_dim = None
    has_own_weight = False

    def __init__(self, said: RowStatistics, name: str, expiry: Expiry | None) -> None:
        super().__init__(name=name, trainable=False)
        self.said = said
        self.expiry_of_rows = expiry
        self.output_dim = said.table_dim
        self.built = True

    def read(
        self, ids: tf.Tensor, records: tf.Tensor | None, weights: tf.Tensor | None
    ) -> tf.Tensor | None:
        """Look up the statistics of ids; return them if they are features.

        Args:
            ids: The ids.
            records: The record of each id; None: the first axis of the ids.
            weights: The weight of each id; None: all weights are 1.
        """
        num_features = self.said.num_features
        # A served model has no table of statistics that it does not return.
        if is_served() and not num_features:
            return None
        lookup, count = current_lookup(), current_count()
        if lookup is None:
            zeros = tf.zeros(tf.concat([tf.shape(ids), [num_features]], 0), tf.float32)
            return zeros if num_features else None
        if count is not None:
            # The count is of the next lookup of statistics, so it comes first.
            count(records, weights)
        rows: tf.Tensor = lookup(self, ids)
        # The last float of a row is the period of the sums, which is no feature.
        return tf.stop_gradient(rows[..., :num_features]) if num_features else None


def _is_string(ids: tf.Tensor) -> bool:
    dtype = getattr(ids, "dtype", "int64")
    return str(keras.backend.standardize_dtype(dtype)) == "string"


def _ids_of_strings(strings: tf.Tensor) -> tf.Tensor:
    """Return ids of the same structure; a backend recognises the strings by this operation."""

    def ids_of(values: tf.Tensor) -> tf.Tensor:
        return tf.strings.to_hash_bucket_fast(values, NUM_STRING_IDS)

    if isinstance(strings, tf.SparseTensor):
        return tf.SparseTensor(strings.indices, ids_of(strings.values), strings.dense_shape)
    if isinstance(strings, tf.RaggedTensor):
        return strings.with_flat_values(ids_of(strings.flat_values))
    return ids_of(tf.convert_to_tensor(strings))


def _is_positive(value: object) -> bool:
    # The largest id of a column is a number of NumPy.
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value > 0)

"""Layers that make ids of categories.

Their hash is the hash of string ids in the parameter store: FarmHash's Fingerprint64. TensorFlow
has it as `tf.strings.to_hash_bucket_fast`, and Rust in `crates/edl-store/src/fingerprint.rs`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import keras
import tensorflow as tf

from elasticdl.errors import ModelError
from elasticdl.packages.frameworks.lookup import Shape
from elasticdl.packages.keras.preprocessing.base import (
    ElementLayer,
    RawLayer,
    as_tensor,
    like,
    strings_of,
)
from elasticdl.packages.keras.preprocessing.numbers import positive

SEPARATOR = "_X_"  # what tf.ragged.cross puts between the parts of a cross


@keras.saving.register_keras_serializable(package="elasticdl")
class HashedCross(RawLayer):
    """Makes one id of each combination of two or more features.

    The id is Fingerprint64 of the values as strings, joined by `_X_`, modulo `num_bins`. So
    `keras.layers.Hashing(num_bins)` of that string gives the same id.

    Dense features of one shape give an id for each place. If a feature is sparse or ragged, all
    features are treated as lists of values for each record. A record then gets an id for each
    combination of its values, in a ragged tensor. A record without a value of some feature gets no
    id.

    Args:
        num_bins: The number of ids, up to 2**63 - 1. An `elasticdl.layers.Embedding` without
            `input_dim` has rows only for the ids that occur.
    """

    def __init__(self, num_bins: int, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.num_bins = positive("num_bins", num_bins, self)
        if self.num_bins >= 2**63:
            raise ModelError(
                f"HashedCross {self.name!r}: num_bins must be below 2**63, found {num_bins}"
            )

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the ids, int64."""
        features = [as_tensor(feature) for feature in self._checked(inputs)]
        if any(isinstance(feature, tf.SparseTensor | tf.RaggedTensor) for feature in features):
            # tf.ragged.cross joins the strings; the hash is then the one of dense features.
            crossed = tf.ragged.cross([_lists(feature) for feature in features])
            return crossed.with_flat_values(self._ids(crossed.flat_values))
        return self._ids(tf.strings.join([strings_of(f) for f in features], SEPARATOR))

    def compute_output_spec(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        """Return the spec of a symbolic call."""
        features = self._checked(inputs)
        if any(f.sparse or getattr(f, "ragged", False) for f in features):
            return keras.KerasTensor((features[0].shape[0], None), "int64", ragged=True)
        return keras.KerasTensor(features[0].shape, "int64")

    def compute_output_shape(self, input_shape: Sequence[Shape]) -> Shape:
        """Return the shape of the first feature."""
        return input_shape[0]

    def get_config(self) -> dict[str, object]:
        """Return the arguments that rebuild the layer."""
        return {**super().get_config(), "num_bins": self.num_bins}

    def _ids(self, strings: tf.Tensor) -> tf.Tensor:
        return tf.strings.to_hash_bucket_fast(strings, self.num_bins)

    def _checked(self, inputs: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        if not isinstance(inputs, list | tuple) or len(inputs) < 2:
            raise ModelError(
                f"HashedCross {self.name!r} is called with a list of two or more features, found "
                f"{inputs!r}"
            )
        return inputs


@keras.saving.register_keras_serializable(package="elasticdl")
class IndexLookup(ElementLayer):
    """Gives the index of a string in a vocabulary; other strings come after it.

    A string that is not in the vocabulary gets `len(vocabulary) + Fingerprint64 modulo
    num_oov_tokens`. Integers are looked up as their decimals.

    Args:
        vocabulary: The words, all different, or the path of a file with one word a line. The layer
            stores the words, so that the exported model needs no file.
        num_oov_tokens: The number of ids for other strings.
    """

    def __init__(
        self, vocabulary: str | Path | Iterable[object], num_oov_tokens: int = 1, **kwargs: object
    ) -> None:
        super().__init__(**kwargs)
        self.vocabulary = vocabulary_of(vocabulary, f"IndexLookup {self.name!r}")
        self.num_oov_tokens = positive("num_oov_tokens", num_oov_tokens, self)
        # The table must not become part of a graph that is being traced.
        with tf.init_scope():
            words = tf.lookup.KeyValueTensorInitializer(
                tf.constant(self.vocabulary, tf.string),
                tf.range(len(self.vocabulary), dtype=tf.int64),
            )
            self.table = tf.lookup.StaticVocabularyTable(words, self.num_oov_tokens)

    def vocab_size(self) -> int:
        """Return the number of ids, which is the `input_dim` of an embedding of them."""
        return len(self.vocabulary) + self.num_oov_tokens

    def get_config(self) -> dict[str, object]:
        """Return the arguments that rebuild the layer."""
        return {
            **super().get_config(),
            "vocabulary": list(self.vocabulary),
            "num_oov_tokens": self.num_oov_tokens,
        }

    def compute_output_spec(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        """Return the spec of a symbolic call."""
        return like(inputs, inputs.shape, "int64")

    def _of_values(self, values: tf.Tensor) -> tf.Tensor:
        return self.table.lookup(strings_of(values))

    def _output_dtype(self) -> str:
        return "int64"


def _lists(feature: tf.Tensor) -> tf.Tensor:
    """Return the strings of a feature as one list for each record."""
    if isinstance(feature, tf.SparseTensor):
        return feature.with_values(strings_of(feature.values))
    if isinstance(feature, tf.RaggedTensor):
        return feature.with_flat_values(strings_of(feature.flat_values))
    strings = strings_of(feature)
    return strings[:, None] if strings.shape.rank == 1 else strings


def vocabulary_of(vocabulary: str | Path | Iterable[object], what: str) -> list[str]:
    """Return the words of a vocabulary, or of its file.

    Raises:
        ModelError: It has no words, one word twice, or no order; the error begins with `what`.
    """
    if isinstance(vocabulary, str | Path):
        path = Path(vocabulary)
        if not path.is_file():
            raise ModelError(
                f"{what}: vocabulary is {str(path)!r}, and there is no such file; "
                "give a file of one word a line, or a list of words"
            )
        vocabulary = _lines(path, what)
    words = in_order(vocabulary, f"{what}: vocabulary")
    if not words:
        raise ModelError(f"{what}: vocabulary has no word")
    if len(set(words)) < len(words):
        double = next(word for word, count in Counter(words).items() if count > 1)
        raise ModelError(f"{what}: vocabulary has {double!r} more than once")
    return words


def in_order(words: Iterable[object], what: str) -> list[str]:
    """Return words that are given one by one, as strings.

    Raises:
        ModelError: They have no order of their own, or one is bytes that are no text.
    """
    if isinstance(words, set | frozenset):
        raise ModelError(
            f"{what} is a set, whose words have another order, and so other ids, in each process: "
            "expected a list, such as sorted(words)"
        )
    try:
        # NumPy and TensorFlow give strings as bytes.
        return [word.decode() if isinstance(word, bytes) else str(word) for word in words]
    except UnicodeDecodeError as error:
        raise ModelError(f"{what} has {error.object!r}, which is not text in UTF-8") from None


def _lines(path: Path, what: str) -> list[str]:
    """Return the lines of a file, as `open` does: `splitlines` also cuts inside of words."""
    try:
        # Some programs begin a text file with a byte order mark. It is no part of the first word.
        with path.open(encoding="utf-8-sig") as file:
            return [line.removesuffix("\n") for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(
            f"{what}: vocabulary is {str(path)!r}, which cannot be read: {error}; "
            "give a file of text in UTF-8, one word a line"
        ) from error

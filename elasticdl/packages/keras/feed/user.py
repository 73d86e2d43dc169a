"""The user's `feed` function, called on records, with its complaints put into words."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

import tensorflow as tf

from elasticdl.backends.base import FeedWay, TellFeedWay, tell_nobody
from elasticdl.data.base import Metadata, columns_there_are
from elasticdl.errors import ElasticdlError, ModelError
from elasticdl.job import Mode
from elasticdl.packages.frameworks.user_code import user_code
from elasticdl.packages.keras.feed.compile import as_element
from elasticdl.packages.keras.feed.dataset import OWN_SIZES, Drawing, NotedDataset
from elasticdl.packages.keras.feed.faults import RUN_ERRORS
from elasticdl.packages.keras.feed.methods import foreign
from elasticdl.packages.keras.feed.minibatch import Structure, describe
from elasticdl.packages.keras.feed.records import RecordBatch
from elasticdl.packages.keras.types import Nested, Specs

Feed = Callable[[tf.data.Dataset, Mode, Metadata], Nested]

logger = logging.getLogger(__name__)

_INSTEAD_OF_NONE = (
    "expected labels, such as tf.zeros([1]) for a loss that does not use them",
    "expected sample weights, or a tuple without them",
)


class UserFeed:
    """The user's function for one mode, with its complaints put into words."""

    def __init__(
        self,
        feed: Feed,
        mode: Mode,
        metadata: Metadata,
        minibatch_size: int,
        tell: TellFeedWay = tell_nobody,
    ) -> None:
        self.mode = mode
        self._tell = tell
        self.name = getattr(feed, "__name__", "feed")
        self._feed = feed
        self._metadata = metadata
        self._minibatch_size = minibatch_size

    def say(self, what: str) -> None:
        """Say which way it runs, in the log and to whoever looks at the job."""
        text = f"{self.name} {what}"
        logger.info("%s", text)
        self._tell(FeedWay(text, is_slow=False))

    def say_slow(self, why: str) -> None:
        """Say why it does not run vectorised."""
        text = f"{self.name} runs unvectorised in mode {self.mode}: {why}"
        logger.warning("%s", text)
        self._tell(FeedWay(text, is_slow=True))

    def drawing(self, seed: int = 0) -> Drawing:
        """Return how the plain pipeline runs in this mode."""
        in_order = self._metadata.keeps_order
        return Drawing(seed, self.mode == Mode.PREDICTION, in_order)

    def __call__(self, batch: RecordBatch, drawing: Drawing) -> NotedDataset:
        """Run the function on a dataset of the records of `batch`; nothing is parsed yet."""
        records = batch.tensors()
        tensors = (batch.numbers, records) if drawing.numbered else records
        source = tf.data.Dataset.from_tensor_slices(tensors)
        root = drawing.root(source)

        def hint(error: Exception) -> str:
            return self._fields_hint(error, records) or _columns_hint(error, records)

        with user_code(self.name, f" in mode {self.mode}", hint):
            dataset = self._feed(root, self.mode, self._metadata)
        if not isinstance(dataset, tf.data.Dataset):
            raise ModelError(
                f"{self.name} must return the dataset (dataset.map(...)), "
                f"found {type(dataset).__name__}"
            )
        # Another method has made a dataset of TensorFlow's own, which notes nothing.
        if not isinstance(dataset, NotedDataset):
            raise foreign(self.name, type(dataset).__name__.strip("_"))
        if dataset.batch_size not in (None, OWN_SIZES, self._minibatch_size):
            raise ModelError(
                f"{self.name} makes minibatches of {dataset.batch_size}, the job's "
                f"--minibatch_size is {self._minibatch_size}: leave batch() out of {self.name}"
            )
        return dataset

    def _fields_hint(self, error: Exception, records: Nested) -> str:
        """Say how to make a vector of fields, where `feed` takes a record for one."""
        if isinstance(records, dict):
            is_mistaken = isinstance(error, KeyError | TypeError) and re.search(
                r"unhashable type: 'slice'|^-?\d+$|of type 'dict' instead", str(error)
            )
            made = "record = tf.stack([tf.as_string(value) for value in record.values()])"
            found = f"a dict of the columns {', '.join(records)}"
        else:
            is_mistaken = re.search("slice scalar|slice index .* of dimension|rank 0", str(error))
            made = 'record = tf.strings.split(record, ",")'
            found = "a string, of CSV a line"
        if not is_mistaken:
            return ""
        return f"; a record is {found}; write {made} to have a vector of its fields"

    def batched(self, dataset: NotedDataset) -> tf.data.Dataset:
        """Return the plain pipeline of a dataset that `self` gave, with minibatches made."""
        plain = dataset.plain
        return plain if dataset.batch_size is not None else plain.batch(self._minibatch_size)

    def structure(self, dataset: NotedDataset) -> Structure:
        """Check the elements of the dataset, and return the structure of a minibatch."""
        try:
            spec = self.batched(dataset).element_spec
            spec = spec[1] if self.mode == Mode.PREDICTION else spec
        except (TypeError, ValueError) as error:
            raise ModelError(f"{self.name} gives records that do not batch: {error}") from error
        return self._structure(spec, describe(dataset.element_spec))

    def call(self, records: Nested) -> Nested:
        """Run the function, which is batched, on many records."""
        try:
            made = self._feed(records, self.mode, self._metadata)
            if isinstance(made, tf.data.Dataset):
                raise ModelError(
                    f"{self.name} is batched: it is given records and gives features and labels, "
                    "and no dataset"
                )
            return as_element(made)
        except (ElasticdlError, *RUN_ERRORS):
            raise
        except Exception as error:
            raise ModelError(
                f"{self.name} raised {type(error).__name__} in mode {self.mode}: "
                f"{' '.join(str(error).split())}"
                f"{_columns_hint(error, records)}"
            ) from error

    def structure_of(self, minibatch: Nested) -> Structure:
        """Check the output of a batched function, and return the structure of a minibatch."""

        def spec_of(value: tf.Tensor) -> tf.TypeSpec:
            if isinstance(value, tf.Tensor):
                if value.shape.rank == 0:
                    raise ModelError(
                        f"{self.name} gives a single number, expected one row for each record"
                    )
                return tf.TensorSpec([None, *value.shape[1:]], value.dtype)
            return tf.type_spec_from_value(value)

        return self._structure(tf.nest.map_structure(spec_of, minibatch), describe(minibatch))

    def _structure(self, spec: Specs, found: str) -> Structure:
        if self.mode == Mode.PREDICTION:
            return Structure(spec)
        if not (isinstance(spec, tuple) and len(spec) in (2, 3)):
            raise ModelError(
                f"{self.name} must give (features, labels) or (features, labels, sample weights) "
                f"in mode {self.mode}, found {found}"
            )
        for part, instead in zip(spec[1:], _INSTEAD_OF_NONE, strict=False):
            if part is None or isinstance(part, tf.NoneTensorSpec):
                raise ModelError(f"{self.name} gives None in mode {self.mode}: {instead}")
        if len(spec) == 3:
            self._check_weights(spec[2], found)
        return Structure(*spec)

    def split(self, element: Nested) -> tuple[Nested, Nested, Nested]:
        """Take a minibatch apart into features, labels and sample weights; None: it has none.

        In PREDICTION all of it is features.
        """
        if self.mode == Mode.PREDICTION:
            return element, None, None
        assert isinstance(element, tuple), "its structure was looked at"
        features, labels, weights = (*element, None)[:3]
        return features, labels, weights

    def _check_weights(self, weights: Specs, found: str) -> None:
        for spec in tf.nest.flatten(weights):
            numeric = isinstance(spec, tf.TensorSpec) and (
                spec.dtype.is_floating or spec.dtype.is_integer or spec.dtype.is_bool
            )
            if not numeric:
                raise ModelError(
                    f"{self.name} gives as its third element sample weights, which must be "
                    f"numbers, one for each record; found {found}"
                )


def _columns_hint(error: Exception, records: Nested) -> str:
    return columns_there_are(error, records if isinstance(records, dict) else ())

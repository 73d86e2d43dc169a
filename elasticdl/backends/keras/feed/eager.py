"""`--run_eagerly`: the functions that `feed` maps are called in Python, on one record at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from elasticdl.backends.keras.feed.compile import as_element
from elasticdl.backends.keras.feed.dataset import Drawing, Noted, NotedDataset, unpacked
from elasticdl.backends.keras.feed.records import RecordBatch, cut
from elasticdl.backends.keras.feed.user import UserFeed
from elasticdl.backends.keras.feed.ways import Parsed, Way, mix
from elasticdl.data.base import Records
from elasticdl.errors import DataError
from elasticdl.job import Mode


class Eager(Way):
    """Runs the maps of `feed` on tensors that have values: `print` and `.numpy()` work."""

    def __init__(self, user: UserFeed, sample: RecordBatch) -> None:
        """Call the user's function, and its maps on a few records.

        Raises:
            ModelError: `feed` does more than `map`, `shuffle`, `batch`, `prefetch` and `cache`.
        """
        noted = user(sample, Drawing(eager=True)).noted
        assert noted is not None, "an eager dataset refuses what would end its notes"
        self._noted: Noted = noted
        self.user = user  # which `_parse` names
        first = sample.part(0, 1)
        parsed = self._parse(first)
        drawing = user.drawing()
        if drawing.numbered:
            parsed = (first.numbers, parsed)
        plain = tf.data.Dataset.from_tensor_slices(parsed)
        super().__init__(user, user.structure(NotedDataset(plain, drawing)))

    def run(self, records: Iterator[Records], size: int, seed: int) -> Iterator[Parsed]:
        """See `Way.run`. The order is that of the job without --run_eagerly."""
        tf.random.set_seed(mix(seed, 0))
        is_prediction = self.user.mode == Mode.PREDICTION
        is_shuffled = self._noted.shuffled and not is_prediction
        for batch in cut(records, size, seed if is_shuffled else None):
            yield self._parse(batch), batch.numbers if is_prediction else None

    def _parse(self, batch: RecordBatch) -> Any:
        source = tf.data.Dataset.from_tensor_slices(batch.tensors())
        elements = [
            self._apply(self._noted.record_maps, record, number)
            for record, number in zip(source, batch.numbers, strict=True)
        ]
        return self._apply(self._noted.batch_maps, _stack(elements), batch.numbers[0])

    def _apply(self, maps: Sequence[Callable[..., Any]], element: Any, number: Any) -> Any:
        for function in maps:
            try:
                element = as_element(unpacked(function, element))
            except Exception as error:
                raise DataError(
                    f"record {number} does not parse in {self.user.name}: "
                    f"{type(error).__name__}: {error}"
                ) from error
        return element


def _stack(elements: Sequence[Any]) -> Any:
    """Make one minibatch of records, as `batch` does."""

    def stack(*parts: Any) -> Any:
        if isinstance(parts[0], tf.SparseTensor):
            return tf.sparse.concat(0, [tf.sparse.expand_dims(part, 0) for part in parts])
        if isinstance(parts[0], tf.RaggedTensor):
            return tf.ragged.stack(parts)
        return tf.stack(parts)

    return tf.nest.map_structure(stack, *elements)

"""Running a user's `feed`: all records of a minibatch at once where that gives the same result.

Three ways, from the fastest to the most general; `docs/designs/feed.md` says how one is chosen:

- vectorised: the maps of `feed` run on whole minibatches (`tf.vectorized_map`);
- compiled: the maps run record by record, in one compiled function a minibatch;
- plain: TensorFlow runs the pipeline as the user wrote it, built for each task.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator

from elasticdl.backends.base import FeedWay, TellFeedWay, tell_nobody
from elasticdl.data.base import Metadata, Records
from elasticdl.errors import ElasticdlError
from elasticdl.job import Mode
from elasticdl.model_spec import is_batched
from elasticdl.packages.keras.feed.choice import choose, choose_batched
from elasticdl.packages.keras.feed.eager import Eager
from elasticdl.packages.keras.feed.minibatch import KerasMinibatch
from elasticdl.packages.keras.feed.proof import NUM_PROVED
from elasticdl.packages.keras.feed.records import RecordBatch, as_batch, take_chunks
from elasticdl.packages.keras.feed.user import Feed, UserFeed
from elasticdl.packages.keras.feed.ways import ChosenWay, mix


class FeedRunner:
    """Turns raw records into minibatches; the way is chosen once for each mode."""

    def __init__(
        self,
        feed: Feed,
        metadata: Metadata,
        run_eagerly: bool = False,
        tell: TellFeedWay = tell_nobody,
    ) -> None:
        self._feed = feed
        self._tell = tell
        self._told: set[str] = set()
        self._run_eagerly = run_eagerly
        self._metadata = metadata
        self._ways: dict[tuple[Mode, int], ChosenWay] = {}
        self._checks: dict[tuple[Mode, int], list[Callable[[Records], None]]] = {}
        self._choosing = threading.Lock()

    def minibatches(
        self, records: Iterator[Records], mode: Mode, minibatch_size: int, seed: int
    ) -> Iterator[KerasMinibatch]:
        """Yield the minibatches of one task; see `Predictor.minibatches`."""
        chunks = (chunk for chunk in records if len(chunk))
        first = take_chunks(chunks, NUM_PROVED)
        if not first:
            return
        way = self._way(first, mode, minibatch_size)
        checks = self._checks[mode, minibatch_size]
        checked = _checked(itertools.chain(first, chunks), checks)
        batches = way.run(checked, minibatch_size, seed)
        index = 0
        for element, numbers in batches:
            num_rows = way.check_rows(element, numbers)
            if not num_rows:
                continue  # a map after `batch` has left all of them out
            features, labels, weights = way.user.split(element)
            tensors = way.structure.flatten(features, labels, weights)
            yield KerasMinibatch(
                features=features,
                labels=labels,
                num_records=num_rows,
                structure=way.structure,
                tensors=tensors,
                mode=mode,
                seed=mix(seed, index),
                record_numbers=numbers,
                weights=weights,
            )
            index += 1

    def _way(self, first: list[Records], mode: Mode, minibatch_size: int) -> ChosenWay:
        with self._choosing:
            way = self._ways.get((mode, minibatch_size))
            if way is None:
                metadata = self._metadata.of(mode)
                metadata.checks.clear()
                user = UserFeed(self._feed, mode, metadata, minibatch_size, self._tell_once)
                sample = as_batch(first).part(0, NUM_PROVED)
                try:
                    way = self._choose(user, sample)
                except ElasticdlError:
                    for _ in _checked(first, metadata.checks):
                        pass  # the error of a check is plainer, and names the column
                    raise
                self._checks[mode, minibatch_size] = list(metadata.checks)
                self._ways[mode, minibatch_size] = way
            return way

    def _tell_once(self, way: FeedWay) -> None:
        if way.text not in self._told:
            self._told.add(way.text)
            self._tell(way)

    def _choose(self, user: UserFeed, sample: RecordBatch) -> ChosenWay:
        if is_batched(self._feed):
            return choose_batched(user, sample, self._run_eagerly)
        return Eager(user, sample) if self._run_eagerly else choose(user, sample)


def _checked(
    chunks: Iterable[Records], checks: Iterable[Callable[[Records], None]]
) -> Iterator[Records]:
    """Yield chunks that have passed all checks which the feed asked for."""
    for chunk in chunks:
        for check in checks:
            check(chunk)
        yield chunk

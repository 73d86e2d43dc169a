"""The dataset that `feed` is given with `--run_eagerly`: it notes maps and traces nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from elasticdl.backends.keras.feed.dataset import Drawing, Noted, NotedDataset
from elasticdl.errors import ModelError

_NEEDS_PIPELINE = (
    "bucket_by_sequence_length",
    "filter",
    "flat_map",
    "ignore_errors",
    "interleave",
    "padded_batch",
    "ragged_batch",
    "rebatch",
    "unbatch",
)


class EagerDataset(NotedDataset):
    """Notes `map`, `shuffle` and one `batch`; `plain` stays the records as they were read."""

    def map(self, map_func: Callable[..., Any], *args: Any, **kwargs: Any) -> EagerDataset:
        """Note a function of records, or of minibatches after `batch`."""
        noted = self.noted or Noted()
        if self.batch_size is None:
            return self._noting(replace(noted, record_maps=(*noted.record_maps, map_func)))
        return self._noting(replace(noted, batch_maps=(*noted.batch_maps, map_func)))

    def shuffle(self, buffer_size: Any, *args: Any, **kwargs: Any) -> EagerDataset:
        """Note a shuffle of all records of a task."""
        if self.batch_size is not None:
            raise _refused("shuffle after batch")
        return self._noting(replace(self.noted or Noted(), shuffled=True))

    def batch(
        self, batch_size: Any, drop_remainder: bool = False, *args: Any, **kwargs: Any
    ) -> EagerDataset:
        """Note that `feed` makes minibatches itself."""
        self._check_batch("batch", drop_remainder)
        done = self._noting(self.noted or Noted())
        done.batch_size = int(batch_size)
        return done

    def with_options(self, options: Any, name: str | None = None) -> EagerDataset:
        """Do nothing: there is no pipeline."""
        return self

    def _noting(self, noted: Noted) -> EagerDataset:
        return EagerDataset(self.plain, self._drawing, noted, self.batch_size)


def feed_root(source: Any, drawing: Drawing) -> NotedDataset:
    """Return the dataset of raw records that `feed` is given."""
    kind = EagerDataset if drawing.eager else NotedDataset
    return kind(source, drawing, noted=Noted())


def _refused(what: str) -> ModelError:
    return ModelError(
        f"feed uses {what}: with --run_eagerly it may map, shuffle and batch; leave the flag out, "
        "or that method while you look for the fault"
    )


def _refusing(name: str) -> Callable[..., Any]:
    def method(self: EagerDataset, *args: Any, **kwargs: Any) -> Any:
        raise _refused(f"dataset.{name}")

    method.__name__ = name
    method.__doc__ = f"Refuse `{name}`, which needs a pipeline."
    return method


for _name in _NEEDS_PIPELINE:
    setattr(EagerDataset, _name, _refusing(_name))

"""The dataset that `feed` is given with `--run_eagerly`: it notes what to do and traces nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from elasticdl.backends.keras.feed.dataset import Drawing, Noted, NotedDataset
from elasticdl.errors import ModelError

_NEEDS_PIPELINE = (
    "bucket_by_sequence_length",
    "ignore_errors",
    "interleave",
    "padded_batch",
    "ragged_batch",
    "rebatch",
    "unbatch",
)


class Kind(Enum):
    """What a step makes of what comes."""

    MAP = "map"
    FILTER = "filter"
    FLAT_MAP = "flat_map"
    SHUFFLE = "shuffle"


@dataclass(frozen=True, slots=True)
class Step:
    """One method of the dataset: the user's function, or the buffer size of a shuffle."""

    kind: Kind
    argument: Any


@dataclass(frozen=True, slots=True)
class Steps:
    """What `feed` did: to each example, and after `batch` to each minibatch."""

    examples: tuple[Step, ...] = ()
    minibatches: tuple[Step, ...] = ()

    @property
    def keeps_records(self) -> bool:
        """Whether one example is made of each record."""
        return all(step.kind in (Kind.MAP, Kind.SHUFFLE) for step in self.examples)

    @property
    def shuffles(self) -> bool:
        """Whether the order of the examples is drawn."""
        return any(step.kind is Kind.SHUFFLE for step in self.examples)


class EagerDataset(NotedDataset):
    """Notes maps, filters, shuffles and one `batch`; `plain` stays the records as they were read.

    Attributes:
        steps: What was noted, in its order.
    """

    def __init__(
        self,
        plain: Any,
        drawing: Drawing,
        batch_size: int | None = None,
        steps: Steps | None = None,
    ) -> None:
        super().__init__(plain, drawing, Noted(), batch_size)
        self.steps = steps or Steps()

    def map(self, map_func: Callable[..., Any], *args: Any, **kwargs: Any) -> EagerDataset:
        """Note a function of examples, or of minibatches after `batch`."""
        return self._noting(Step(Kind.MAP, map_func))

    def filter(self, predicate: Callable[..., Any], name: str | None = None) -> EagerDataset:
        """Note which examples, or after `batch` which minibatches, are left out."""
        return self._noting(Step(Kind.FILTER, predicate))

    def flat_map(self, map_func: Callable[..., Any], name: str | None = None) -> EagerDataset:
        """Note a function that makes any number of examples of one."""
        self._of_one_record("flat_map", map_func)
        return self._noting(Step(Kind.FLAT_MAP, map_func))

    def shuffle(self, buffer_size: Any, *args: Any, **kwargs: Any) -> EagerDataset:
        """Note a shuffle of the examples of a task."""
        if self.batch_size is not None:
            raise _refused("shuffle after batch")
        return self._noting(Step(Kind.SHUFFLE, buffer_size))

    def batch(
        self, batch_size: Any, drop_remainder: bool = False, *args: Any, **kwargs: Any
    ) -> EagerDataset:
        """Note that `feed` makes minibatches itself."""
        self._check_batch("batch", drop_remainder)
        return EagerDataset(self.plain, self._drawing, int(batch_size), self.steps)

    def with_options(self, options: Any, name: str | None = None) -> EagerDataset:
        """Do nothing: there is no pipeline."""
        return self

    def _noting(self, step: Step) -> EagerDataset:
        steps = self.steps
        if self.batch_size is None:
            steps = replace(steps, examples=(*steps.examples, step))
        else:
            steps = replace(steps, minibatches=(*steps.minibatches, step))
        return EagerDataset(self.plain, self._drawing, self.batch_size, steps)


def feed_root(source: Any, drawing: Drawing) -> NotedDataset:
    """Return the dataset of raw records that `feed` is given."""
    if drawing.eager:
        return EagerDataset(source, drawing)
    return NotedDataset(source, drawing, noted=Noted())


def _refused(what: str) -> ModelError:
    return ModelError(
        f"feed uses {what}: with --run_eagerly it may map, filter, flat_map, shuffle and batch; "
        "leave the flag out, or that method while you look for the fault"
    )


def _refusing(name: str) -> Callable[..., Any]:
    def method(self: EagerDataset, *args: Any, **kwargs: Any) -> Any:
        raise _refused(f"dataset.{name}")

    method.__name__ = name
    method.__doc__ = f"Refuse `{name}`, which needs a pipeline."
    return method


for _name in _NEEDS_PIPELINE:
    setattr(EagerDataset, _name, _refusing(_name))

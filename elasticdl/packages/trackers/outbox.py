"""Sends the numbers of a picture of the job, in a thread; for all trackers."""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

from elasticdl.config import JobConfig, free_settings, shown_setting
from elasticdl.errors import ElasticdlError
from elasticdl.job.status import JobStatus


def curves(
    status: JobStatus, learning_rate: float | None
) -> Iterator[tuple[str, float, tuple[object, ...]]]:
    """Yield for each number its name, its value, and a mark that changes with each measurement."""
    version = status.model_version
    if not version:
        return  # nothing is trained yet
    if status.loss is not None:
        yield "loss/training", status.loss, (version,)
    if status.epoch_loss is not None:
        yield "loss/epoch", status.epoch_loss, (status.epoch, status.epoch_loss)
    if learning_rate is not None:
        yield "learning_rate", learning_rate, (version,)
    yield "throughput/records_per_second", status.records_per_second, (version,)
    recent = status.recent_train_metrics or status.train_metrics
    of = (status.train_metrics_epoch, status.train_metrics_records)
    for name, value in recent.items():
        yield f"{name}/training", value, of
    for name, value in status.metrics.items():
        yield f"{name}/evaluation", value, (value, status.evaluated_records)


_AGAIN_SECONDS = 5.0
_MOST_WAITING = 100  # items; of what does not answer the rest is left out
_SECRET = ("data_reader_params", "state")

log = logging.getLogger(__name__)

Item = TypeVar("Item")

Picture = tuple[JobStatus, float | None]
"""A job, and its learning rate if it is known."""


class Outbox(Generic[Item]):
    """Gives items to a thread of its own, one after another.

    The caller never waits. At most a hundred items wait to be sent. Of items that may be left out,
    none is taken then; for any other item the oldest one is dropped.
    """

    def __init__(
        self,
        flag: str,
        send: Callable[[Item], None],
        *,
        end: Callable[[], None] = lambda: None,
        seconds_between: float,
        is_sent_again: bool,
    ) -> None:
        """Begin to send.

        Args:
            flag: The flag that asks for this; used in messages and as the thread's name.
            send: Sends an item. Its error is logged once; an `ElasticdlError` ends the outbox.
            end: Called after the last item, by the same thread.
            seconds_between: At most one item that may be left out is sent in this time.
            is_sent_again: Whether a failed item is sent again while there is no newer one. If not,
                the first failure ends the outbox.
        """
        self._flag, self._send, self._end = flag, send, end
        self._seconds_between, self._is_sent_again = seconds_between, is_sent_again
        self._next = 0.0
        self._is_away = False
        self._give_up_at: float | None = None  # monotonic time; None: there is no end yet
        self._items: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=flag.strip("-"), daemon=True)
        self._thread.start()

    def put(self, item: Item, may_be_left_out: bool = False) -> None:
        """Send an item.

        Args:
            item: The item to send.
            may_be_left_out: Whether a similar item comes soon.
        """
        now = time.monotonic()
        is_full = self._items.qsize() > _MOST_WAITING
        if may_be_left_out and (is_full or now < self._next):
            return
        if may_be_left_out:
            self._next = now + self._seconds_between
        elif is_full:
            # A server that is away must not fill the memory, and the end of a job must come there.
            with contextlib.suppress(queue.Empty):
                self._items.get_nowait()
        self._items.put(item)

    def close(self, seconds: float) -> None:
        """Send the rest; what is not sent in this time is dropped."""
        self._give_up_at = time.monotonic() + seconds
        self._items.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive() or self._is_away:
            log.warning(
                "%s: no answer for %.0f s; what came last is missing there", self._flag, seconds
            )

    def _work(self) -> None:
        try:
            while (item := self._items.get()) is not None:
                is_sent = self._try(item)
                # A newer item contains the numbers of this one, so it is sent in its place.
                while not is_sent and not self._is_followed():
                    time.sleep(_AGAIN_SECONDS)
                    is_sent = self._try(item)
            self._end()
        except Exception as error:  # of any library below
            log.warning("%s: %s; nothing more is written there", self._flag, error)

    def _is_followed(self) -> bool:
        """Return whether a newer item waits, or the time for the last one is over."""
        if self._give_up_at is None:
            return not self._items.empty()
        is_late = time.monotonic() >= self._give_up_at
        return is_late or self._items.qsize() > 1  # beside the mark of the end

    def _try(self, item: Item) -> bool:
        """Send an item; return whether it was sent."""
        try:
            self._send(item)
        except Exception as error:  # of any library below
            if not self._is_sent_again or isinstance(error, ElasticdlError):
                raise
            if not self._is_away:
                log.warning("%s: %s; it is tried again", self._flag, error)
            self._is_away = True
            return False
        if self._is_away:
            log.info("%s: it answers again", self._flag)
        self._is_away = False
        return True


class Untold:
    """Knows which numbers of a job were sent already."""

    def __init__(self) -> None:
        """Begin with nothing sent."""
        self._told: dict[str, tuple[object, ...]] = {}

    def of(self, picture: Picture) -> dict[str, float]:
        """Return the finite numbers that were measured since the last sending, by name."""
        return {
            name: value
            for name, value, measured in curves(*picture)
            if self._told.get(name) != measured and math.isfinite(value)
        }

    def told(self, picture: Picture) -> None:
        """Note that the numbers of a picture were sent."""
        for name, value, measured in curves(*picture):
            if math.isfinite(value):
                self._told[name] = measured


def parameters_of(config: JobConfig) -> dict[str, str]:
    """Return the flags that were given, without those that may have secrets."""
    found: dict[str, str] = {}
    sections = config.model_dump(mode="json", exclude_defaults=True)
    sections |= sections.pop("packages", {})
    left_out = {*_SECRET, *free_settings()}
    for section, values in sections.items():
        if isinstance(values, Mapping) and section != "seeing":
            given = {n: v for n, v in values.items() if n not in left_out and v not in (None, "")}
            found |= {name: str(shown_setting(name, value)) for name, value in given.items()}
    return found

"""A bounded queue between two threads that can be closed from either side."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from threading import Condition
from typing import Generic, TypeVar

T = TypeVar("T")


class Closed(Exception):
    """The channel was aborted: the pipeline ends with an error that its owner knows."""


class Channel(Generic[T]):
    """Holds at most `capacity` items. The writer ends it; anybody may abort it."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: deque[T] = deque()
        self._changed = Condition()
        self._ended = False
        self._aborted = False

    def put(self, item: T) -> None:
        """Append an item, waiting for room."""
        with self._changed:
            while len(self._items) >= self._capacity and not self._aborted:
                self._changed.wait()
            if self._aborted:
                raise Closed
            self._items.append(item)
            self._changed.notify_all()

    def end(self) -> None:
        """Say that no item follows."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def abort(self) -> None:
        """Drop what is inside and wake everybody with `Closed`."""
        with self._changed:
            self._aborted = True
            self._changed.notify_all()

    def __iter__(self) -> Iterator[T]:
        """Take items until the writer has ended the channel."""
        while True:
            with self._changed:
                while not self._items and not self._ended and not self._aborted:
                    self._changed.wait()
                if self._aborted:
                    raise Closed
                if not self._items:
                    return
                item = self._items.popleft()
                self._changed.notify_all()
            # The lock is free here: the reader works on the item while the writer goes on.
            yield item

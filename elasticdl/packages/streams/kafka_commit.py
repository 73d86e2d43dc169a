"""Commits positions for tools that show a group's lag. The job itself never reads them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from elasticdl.errors import AwayError
from elasticdl.packages.streams.kafka import Kafka

if TYPE_CHECKING:
    import confluent_kafka


log = logging.getLogger(__name__)

_EVERY_SECONDS = 3.0
_LAST_SECONDS = 2.0
_ANEW_SECONDS = 60.0
"""The least age of a client that is made anew because commits fail: it may have old credentials."""


class Commits:
    """Commits now and then. Logs a failure once, and tries again. Not for several threads.

    Args:
        kafka: The topic.
        group: A consumer group that nobody joins.
    """

    def __init__(self, kafka: Kafka, group: str) -> None:
        self._kafka, self._group = kafka, group
        self._consumer: confluent_kafka.Consumer | None = None
        self._last: dict[int, int] = {}
        self._next = 0.0
        self._is_under_way = False
        self._told = ""
        self._made_at = 0.0

    def commit(self, positions: Mapping[int, int], is_last: bool = False) -> None:
        """Commit the first untrained position of each partition, if it is time.

        Args:
            positions: The positions by partition.
            is_last: The commit is made now, and waited for within a short limit.
        """
        now = time.monotonic()
        if self._consumer is not None:
            self._consumer.poll(0)  # has it say what became of the last one
        # A commit at each call would load the broker, and tools show the lag every few seconds at
        # best.
        if positions != self._last and (is_last or now >= self._next):
            self._next, self._last = now + _EVERY_SECONDS, dict(positions)
            self._send(positions)
        while (
            self._consumer is not None
            and is_last
            and self._is_under_way
            and time.monotonic() < now + _LAST_SECONDS
        ):
            self._consumer.poll(0.05)

    def _send(self, positions: Mapping[int, int]) -> None:
        now = time.monotonic()
        if self._told and now - self._made_at >= _ANEW_SECONDS:
            self._consumer = None  # a new one reads the credentials again
        if self._consumer is None:
            self._made_at = now
            given = {"group.id": self._group, "on_commit": self._committed}
            try:
                self._consumer = self._kafka.consumer(given)
            except AwayError:
                self._last = {}  # it is tried again
                return
        self._is_under_way = True
        places = [self._kafka.position(partition, at) for partition, at in positions.items()]
        self._consumer.commit(offsets=places, asynchronous=True)

    def _committed(
        self,
        error: confluent_kafka.KafkaError | None,
        places: Sequence[confluent_kafka.TopicPartition],
    ) -> None:
        self._is_under_way = False
        errors = [error, *(place.error for place in places or ())]
        said = next((str(each.str()) for each in errors if each is not None), "")
        if not said:
            self._told = ""
            return
        # The positions are forgotten, so the next call commits them again.
        self._last = {}
        if said != self._told:
            self._told = said
            log.warning(
                "the positions of the group %s cannot be committed (%s); the job goes on without, "
                "and tries again",
                self._group,
                said,
            )

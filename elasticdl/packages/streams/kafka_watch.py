"""Waits for new messages of a topic, and reads almost none of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from elasticdl.errors import AwayError
from elasticdl.packages.streams.kafka import Kafka

if TYPE_CHECKING:
    import confluent_kafka


LONGEST_SECONDS = 1.0
_SETTINGS = {
    # The broker answers when a committed message is there; only a little of it is fetched.
    "fetch.wait.max.ms": int(1000 * LONGEST_SECONDS),
    "fetch.message.max.bytes": 1024,
    "queued.min.messages": 1,
    "queued.max.messages.kbytes": 1,
    "enable.partition.eof": False,
}


class PartitionWatch:
    """Waits at the ends of partitions. Not for several threads at once."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._consumer: confluent_kafka.Consumer | None = None
        self._ends: dict[int, int] = {}  # where it waits

    def wait(self, ends: Mapping[int, int], seconds: float) -> None:
        """Return when a message comes to a partition behind its end, or when the time is over.

        It may also return without a reason, so the caller must ask for the new ends.
        """
        # The ends have moved and this consumer has heard nothing, so a new one takes its place.
        if self._consumer is None or (self._ends and self._ends != ends):
            self._consumer, self._ends = None, {}  # the old one has heard of nothing
            try:
                self._consumer = self._kafka.consumer(_SETTINGS)
            except AwayError:
                time.sleep(seconds)  # who looks then is told why
                return
        if not self._ends:
            places = [self._kafka.position(partition, end) for partition, end in ends.items()]
            self._consumer.assign(places)
            self._ends = dict(ends)
        if self._consumer.poll(seconds) is not None:
            self._consumer.unassign()  # what comes until the next call is not read in vain
            self._ends = {}

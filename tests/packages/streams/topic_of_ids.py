"""A topic whose messages have ids, for the counting model: some in transactions."""

import threading
import time

import numpy as np
import pyarrow
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from scripts.chaos import job as counting

NUM_PARTITIONS = 4
BAD = b"1 2 three"
_LAST_SECONDS = 180.0


class TopicOfIds:
    """A topic of a broker; counts how often each id was in a message that is committed.

    A message is a line of ids, or, where it has several records, a stream of Arrow.
    """

    def __init__(self, broker, name, seed, rows_of_message=0):
        self._rows_of_message = rows_of_message  # at most
        self.name, self._servers = name, {"bootstrap.servers": broker.address, "log_level": 0}
        self.num_messages = self.num_bad = self.num_late = 0
        self.occurrences = np.zeros(counting.NUM_IDS, np.int64)
        self._rng = np.random.default_rng(seed)
        self._admin = AdminClient(self._servers)
        self._admin.create_topics([NewTopic(name, NUM_PARTITIONS)])[name].result(_LAST_SECONDS)
        self._plain = Producer({**self._servers, "enable.idempotence": True})
        self._whole = Producer({**self._servers, "transactional.id": name})
        self._whole.init_transactions(_LAST_SECONDS)

    def delete(self):
        """Have the broker forget it."""
        self._admin.delete_topics([self.name])[self.name].result(_LAST_SECONDS)

    def grow(self, num_partitions):
        """Give it more partitions."""
        asked = self._admin.create_partitions([NewPartitions(self.name, num_partitions)])
        asked[self.name].result(_LAST_SECONDS)
        self._plain = Producer(
            {**self._servers, "enable.idempotence": True}
        )  # the old one may not know

    def forget(self, partition, before):
        """Have the broker delete the messages of a partition before a position, as it may."""
        place = TopicPartition(self.name, partition, before)
        for asked in self._admin.delete_records([place]).values():
            asked.result(_LAST_SECONDS)

    def lags_of(self, group):
        """Return how many positions of each partition a group has not committed."""
        settings = {"group.id": group, "isolation.level": "read_committed"}
        consumer = Consumer({**self._servers, **settings})
        places = [TopicPartition(self.name, number) for number in range(NUM_PARTITIONS)]
        ends = [consumer.get_watermark_offsets(place, _LAST_SECONDS)[1] for place in places]
        committed = consumer.committed(places, _LAST_SECONDS)
        return [end - place.offset for end, place in zip(ends, committed, strict=True)]

    def send(self, num_messages):
        """Send messages, partly in a transaction, and as many of one that is aborted."""
        half = num_messages // 2
        self._send(self._plain, num_messages - half, counts=True)
        for counts in (False, True):
            self._whole.begin_transaction()
            self._send(self._whole, half, counts)
            end = self._whole.commit_transaction if counts else self._whole.abort_transaction
            end(_LAST_SECONDS)

    def send_bad(self, num_messages):
        """Send messages that have no ids."""
        for number in range(num_messages):
            self._plain.produce(self.name, BAD, partition=number % NUM_PARTITIONS)
        assert self._plain.flush(_LAST_SECONDS) == 0
        self.num_bad += num_messages

    def send_as_they_are(self, messages, partition=None):
        """Send messages of another kind, in turns to the partitions or to one of them.

        They count nowhere.
        """
        for number, message in enumerate(messages):
            at = number % NUM_PARTITIONS if partition is None else partition
            self._plain.produce(self.name, message, partition=at)
            self._plain.poll(0)
        assert self._plain.flush(_LAST_SECONDS) == 0

    def send_late(self, num_messages):
        """Send messages of yesterday; they count nowhere."""
        yesterday = int((time.time() - 86_400) * 1000)
        for number in range(num_messages):
            partition = number % NUM_PARTITIONS
            self._plain.produce(self.name, b"1 2 3 4", partition=partition, timestamp=yesterday)
        assert self._plain.flush(_LAST_SECONDS) == 0
        self.num_late += num_messages

    def keep_sending(self, num_times, num_messages, seconds):
        """Send messages so many times, with a pause after each, in a thread of its own."""

        def run():
            for _ in range(num_times):
                self.send(num_messages)
                time.sleep(seconds)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def _send(self, producer, num_messages, counts):
        ids = (counting.NUM_IDS * self._rng.random((num_messages, 4)) ** 3).astype(np.int64)
        for number, message in enumerate(self._messages(ids)):
            producer.produce(self.name, message, partition=number % NUM_PARTITIONS)
            producer.poll(0)
        assert producer.flush(_LAST_SECONDS) == 0
        if counts:
            self.num_messages += num_messages
            self.occurrences += np.bincount(ids.ravel(), minlength=counting.NUM_IDS)

    def _messages(self, ids):
        if not self._rows_of_message:
            return [" ".join(map(str, record)).encode() for record in ids.tolist()]
        messages = []
        while len(ids):
            count = self._rng.integers(self._rows_of_message + 1)
            messages.append(_stream_of(ids[:count]))
            ids = ids[count:]
        return messages


def _stream_of(ids):
    batch = pyarrow.record_batch(dict(zip("abcd", ids.T, strict=True)))
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()

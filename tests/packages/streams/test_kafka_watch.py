"""What hears of messages as they come (packages/streams/kafka_watch.py), without a broker."""

import pytest

from elasticdl.packages.streams.kafka_watch import PartitionWatch


class Client:
    """Makes consumers, which say what they are told to do."""

    def __init__(self):
        self.done, self.messages = [], []

    def consumer(self, settings):
        self.done.append("new")
        return self

    def position(self, partition, offset):
        return (partition, offset)

    def assign(self, places):
        self.done.append(places)

    def unassign(self):
        self.done.append("none")

    def poll(self, seconds):
        return self.messages.pop() if self.messages else None


@pytest.fixture
def client():
    return Client()


def test_a_watch_waits_where_partitions_end_and_reads_nothing_between_two_calls(client):
    watch = PartitionWatch(client)
    client.messages = ["news"]
    watch.wait({0: 5, 1: 7}, 1.0)
    assert client.done == ["new", [(0, 5), (1, 7)], "none"]
    watch.wait({0: 6, 1: 7}, 1.0)
    watch.wait({0: 6, 1: 7}, 1.0)  # nothing has come: it waits on
    assert client.done[3:] == [[(0, 6), (1, 7)]]


def test_a_watch_that_did_not_hear_of_what_came_is_replaced(client):
    watch = PartitionWatch(client)
    watch.wait({0: 5}, 1.0)
    watch.wait({0: 6}, 1.0)
    assert client.done == ["new", [(0, 5)], "new", [(0, 6)]]

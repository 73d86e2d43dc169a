import threading

import pytest

from elasticdl.worker.channel import Channel, Closed


def test_items_arrive_in_order_and_iteration_stops_at_the_end():
    channel = Channel(capacity=2)
    producer = threading.Thread(target=lambda: ([channel.put(n) for n in range(10)], channel.end()))
    producer.start()
    assert list(channel) == list(range(10))
    producer.join()


def test_a_full_channel_holds_the_writer_until_there_is_room():
    channel = Channel(capacity=1)
    channel.put(1)
    second_is_in = threading.Event()
    writer = threading.Thread(target=lambda: (channel.put(2), second_is_in.set()))
    writer.start()
    assert not second_is_in.is_set()
    assert next(iter(channel)) == 1
    assert second_is_in.wait(10)
    writer.join()


def test_abort_wakes_a_waiting_reader():
    channel = Channel(capacity=1)
    outcome = []

    def read():
        try:
            list(channel)
        except Closed:
            outcome.append("closed")

    reader = threading.Thread(target=read)
    reader.start()
    channel.abort()
    reader.join()
    assert outcome == ["closed"]


def test_abort_wakes_a_waiting_writer():
    channel = Channel(capacity=1)
    channel.put(1)
    outcome = []

    def write():
        try:
            channel.put(2)
        except Closed:
            outcome.append("closed")

    writer = threading.Thread(target=write)
    writer.start()
    channel.abort()
    writer.join()
    assert outcome == ["closed"]


def test_putting_into_an_aborted_channel_raises():
    channel = Channel(capacity=1)
    channel.abort()
    with pytest.raises(Closed):
        channel.put(1)

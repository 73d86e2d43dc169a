"""Positions that are committed for boards (packages/streams/kafka_commit.py), without a broker."""

from types import SimpleNamespace

import pytest

from elasticdl.packages.streams import kafka_commit
from elasticdl.packages.streams.kafka_commit import Commits


class Client:
    """Makes a consumer that takes commits, and answers when it is asked for news."""

    def __init__(self):
        self.committed, self.error, self.num_made = [], None, 0
        self._has_news = False

    def consumer(self, settings):
        assert settings["group.id"] == "board"
        self._answer = settings["on_commit"]
        self.num_made += 1
        return self

    def position(self, partition, offset):
        return SimpleNamespace(partition=partition, offset=offset, error=None)

    def commit(self, offsets, asynchronous):
        assert asynchronous
        self.committed.append({place.partition: place.offset for place in offsets})
        self._has_news = True

    def poll(self, seconds):
        if self._has_news:
            self._has_news = False
            self._answer(self.error, [])


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(kafka_commit, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_positions_are_committed_now_and_then_and_at_the_end(clock):
    client = Client()
    commits = Commits(client, "board")
    commits.commit({0: 5})
    commits.commit({0: 6})  # too soon
    clock.now += 10.0
    commits.commit({0: 5})  # no news
    commits.commit({0: 7})
    commits.commit({0: 8}, is_last=True)
    assert client.committed == [{0: 5}, {0: 7}, {0: 8}]


def test_what_cannot_be_committed_is_told_once_and_tried_again(clock, caplog):
    client = Client()
    commits = Commits(client, "board")
    client.error = SimpleNamespace(str=lambda: "Group authorization failed")
    for _ in range(3):
        commits.commit({0: 5})
        clock.now += 10.0
    client.error = None
    commits.commit({0: 5}, is_last=True)
    assert client.committed == [{0: 5}] * 3
    assert (
        caplog.text.count("the group board cannot be committed (Group authorization failed)") == 1
    )


def test_a_client_whose_commits_fail_is_made_anew_for_it_may_have_old_credentials(clock):
    client = Client()
    commits = Commits(client, "board")
    client.error = SimpleNamespace(str=lambda: "Local: Waiting for coordinator")
    for _ in range(10):
        commits.commit({0: 5})
        clock.now += 10.0
    assert client.num_made == 2
    client.error = None
    for at in range(60):
        commits.commit({0: at})
        clock.now += 10.0
    assert client.num_made == 2

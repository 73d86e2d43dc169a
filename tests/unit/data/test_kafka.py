"""What is asked of brokers that are away, or refuse (elasticdl/data/kafka.py), without a broker."""

from types import SimpleNamespace

import pytest

from elasticdl.data.kafka import Kafka
from elasticdl.data.topic import Topic
from elasticdl.errors import AwayError, DataError

FENCED, REFUSED, NOT_ALLOWED = 74, -169, 29


class Raised(Exception):
    pass


def raised(code, is_fatal=False):
    return Raised(SimpleNamespace(code=lambda: code, str=lambda: "trouble", fatal=lambda: is_fatal))


@pytest.fixture
def kafka(monkeypatch):
    monkeypatch.setattr("elasticdl.data.kafka._PAUSE_SECONDS", 0.0)
    codes = SimpleNamespace(
        _AUTHENTICATION=REFUSED,
        SASL_AUTHENTICATION_FAILED=58,
        _SSL=-181,
        TOPIC_AUTHORIZATION_FAILED=NOT_ALLOWED,
        CLUSTER_AUTHORIZATION_FAILED=31,
    )
    kafka = Kafka(Topic("b:9092", "clicks"))
    kafka.__dict__["_client"] = SimpleNamespace(KafkaException=Raised, KafkaError=codes)
    return kafka


def asking(kafka, *answers):
    """Have it be asked for extents, and answer with these in turn."""
    left = list(answers)
    kafka.__dict__["_admin"] = kafka.__dict__["_asker"] = "a client of before"
    clients = []

    def ask():
        clients.append(kafka.__dict__.get("_admin"))
        if isinstance(left[0], Exception):
            raise left.pop(0)
        return left[0]

    kafka._partitions = ask
    kafka._extents = lambda partitions: partitions
    return clients


def test_a_client_that_cannot_ask_is_replaced_by_a_new_one(kafka):
    clients = asking(kafka, raised(FENCED), raised(FENCED), {0: "an extent"})
    assert kafka.extents() == {0: "an extent"}
    assert clients == ["a client of before", None, None]


def test_a_broker_that_is_away_is_waited_for_no_longer_than_asked(kafka):
    asking(kafka, raised(-195), raised(-195))
    with pytest.raises(AwayError, match="kafka://b:9092/clicks: no broker answers"):
        kafka.extents(patience_seconds=0.0)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (raised(REFUSED), "without the right credentials.*credentials=file:/PATH"),
        (raised(NOT_ALLOWED), "may not read it"),
        (raised(1, is_fatal=True), "trouble"),
    ],
)
def test_what_no_waiting_can_mend_is_told_at_once(kafka, error, words):
    asking(kafka, error)
    with pytest.raises(DataError, match=words):
        kafka.extents()

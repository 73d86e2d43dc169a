"""What is asked of brokers that are away or refuse (packages/streams/kafka.py), without one."""

from types import SimpleNamespace

import pytest

from elasticdl.errors import AwayError, DataError
from elasticdl.packages.streams.kafka import Kafka
from elasticdl.packages.streams.topic import Topic

FENCED, REFUSED, NOT_ALLOWED, ALL_DOWN, AWAY = 74, -169, 29, -187, -195
BEFORE = SimpleNamespace(poll=lambda seconds: None)


class Raised(Exception):
    pass


def error(code, is_fatal=False, words="trouble"):
    return SimpleNamespace(code=lambda: code, str=lambda: words, fatal=lambda: is_fatal)


def raised(*said):
    return Raised(error(*said))


@pytest.fixture
def kafka(monkeypatch):
    monkeypatch.setattr("elasticdl.packages.streams.kafka._PAUSE_SECONDS", 0.0)
    codes = SimpleNamespace(
        _AUTHENTICATION=REFUSED,
        SASL_AUTHENTICATION_FAILED=58,
        _SSL=-181,
        TOPIC_AUTHORIZATION_FAILED=NOT_ALLOWED,
        CLUSTER_AUTHORIZATION_FAILED=31,
        _INVALID_ARG=-186,
        _ALL_BROKERS_DOWN=ALL_DOWN,
    )
    kafka = Kafka(Topic("b:9092", "clicks"), "sasl.username=me\nsasl.password=swordfish")
    kafka.__dict__["_client"] = SimpleNamespace(KafkaException=Raised, KafkaError=codes)
    return kafka


def asking(kafka, *answers):
    """Have it be asked for extents, and answer with these in turn."""
    left = list(answers)
    kafka.__dict__["_asker"] = BEFORE
    clients = []

    def ask():
        clients.append(kafka.__dict__.get("_asker"))
        if isinstance(left[0], Exception):
            raise left.pop(0)
        return left[0]

    kafka._partitions = ask
    kafka._extents = lambda partitions: partitions
    return clients


def test_a_client_that_cannot_ask_is_replaced_by_a_new_one(kafka):
    clients = asking(kafka, raised(FENCED), raised(FENCED), {0: "an extent"})
    assert kafka.extents() == {0: "an extent"}
    assert clients == [BEFORE, None, None]


@pytest.mark.parametrize("ids", [["old", "old", "new"], ["old", "", "new"]])
def test_a_topic_that_was_made_anew_while_a_job_runs_is_told(kafka, ids):
    left = iter(ids)
    listed = SimpleNamespace(error=None, partitions={0: "one"})
    answer = SimpleNamespace(topics={"clicks": listed})
    kafka.__dict__["_asker"] = SimpleNamespace(list_topics=lambda name, timeout: answer)
    kafka._extents, kafka._ask_id = tuple, lambda: next(left)
    assert [kafka.extents(), kafka.extents()] == [(0,), (0,)]
    with pytest.raises(DataError, match="clicks: the topic was deleted and created again"):
        kafka.extents()


@pytest.mark.parametrize("said", ["", "AAAAAAAAAAAAAAAAAAAAAA"])
def test_a_broker_that_knows_no_ids_of_topics_is_asked_for_one_once(kafka, said):
    asked = []
    kafka._ask_id = lambda: asked.append(1) or said
    kafka._require_same_topic()
    kafka._require_same_topic()
    assert asked == [1]


def test_a_broker_that_is_away_is_waited_for_no_longer_than_asked(kafka):
    asking(kafka, raised(-195), raised(-195))
    with pytest.raises(AwayError, match="kafka://b:9092/clicks: no broker answers"):
        kafka.extents(patience_seconds=0.0)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (raised(REFUSED), "do not agree.*credentials=file:/PATH"),
        (raised(NOT_ALLOWED), "may not read it"),
        (raised(-186), "does not take its settings"),
        (raised(1, True), "trouble"),
    ],
)
def test_what_no_waiting_can_mend_is_told_at_once(kafka, error, words):
    asking(kafka, error)
    with pytest.raises(DataError, match=words):
        kafka.extents()


def test_why_all_brokers_are_away_is_what_the_client_complained_of(kafka):
    kafka.__dict__["_asker"] = BEFORE
    asking(kafka, raised(AWAY))
    kafka._complained(error(ALL_DOWN, words="1/1 brokers are down"))
    kafka._complained(error(REFUSED, words="Authentication failed: swordfish of me"))
    kafka._complained(error(ALL_DOWN, words="1/1 brokers are down"))
    with pytest.raises(DataError, match=r"Authentication failed: \*\*\* of me"):
        kafka.extents()


def test_a_broker_that_has_let_somebody_in_and_refuses_then_is_waited_for(kafka):
    asking(kafka, {0: "an extent"})
    kafka.extents()
    asking(kafka, raised(REFUSED), raised(NOT_ALLOWED), {0: "another"})
    assert kafka.extents() == {0: "another"}


def test_a_job_that_was_let_in_before_waits_and_reads_its_credentials_anew(kafka):
    texts = iter(["", "sasl.password=old", "no credentials", "sasl.password=new"])
    tried = []

    def client(settings):
        tried.append(settings.get("sasl.password"))
        if len(tried) == 1:
            raise raised(-186, False, "ssl.ca.location failed")
        return BEFORE

    later = Kafka(Topic("b:9092", "t"), "", again=lambda: next(texts), was_let_in=True)
    later.__dict__["_client"] = kafka._client
    later._client.Consumer = client
    answers = [raised(REFUSED), raised(NOT_ALLOWED), {0: "an extent"}]

    def ask():
        assert later._asker is BEFORE
        if isinstance(answers[0], Exception):
            raise answers.pop(0)
        return answers[0]

    later._partitions, later._extents = ask, lambda partitions: partitions
    assert later.extents() == {0: "an extent"}
    assert tried == [None, "old", "old", "new"]


def test_an_answer_is_waited_for_longer_after_one_that_did_not_come(kafka):
    seconds = []

    def ask():
        seconds.append(kafka._ask_seconds)
        if len(seconds) in (1, 2, 3, 4, 6):
            raise raised(-185, False, "timed out")
        return {}

    kafka._partitions, kafka._extents = ask, lambda partitions: partitions
    kafka.extents()
    assert seconds == [1.0, 2.0, 4.0, 5.0, 5.0]
    kafka.extents()
    assert seconds[5:] == [1.0, 2.0]

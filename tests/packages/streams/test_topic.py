"""The name of a topic, and settings of its client (packages/streams/topic.py, kafka.py)."""

import pytest

from elasticdl.cli.flags import build_config
from elasticdl.cli.job_folder import holds_job
from elasticdl.config import JobConfig
from elasticdl.data.sources import reader_params
from elasticdl.errors import ConfigError
from elasticdl.job import Shard
from elasticdl.launchers.process.folder import prepare
from elasticdl.packages.streams.checks import check_topics
from elasticdl.packages.streams.kafka import parse_credentials
from elasticdl.packages.streams.topic import (
    Topic,
    is_endless,
    is_topic,
    parse,
)
from elasticdl.runtime import process


@pytest.mark.parametrize(
    ("place", "topic"),
    [
        ("kafka://b:9092/clicks", Topic("b:9092", "clicks")),
        ("kafka://b:9092/clicks?start=earliest", Topic("b:9092", "clicks", "earliest", True)),
        ("kafka://a:1,b:2/my.topic-1?start=latest", Topic("a:1,b:2", "my.topic-1", "latest", True)),
        ("kafka://b/clicks?start=earliest&end=latest", Topic("b", "clicks", "earliest", False)),
        (
            "kafka://b/clicks?end=latest&order=partition",
            Topic("b", "clicks", is_endless=False, keeps_order=True),
        ),
    ],
)
def test_a_place_says_where_the_messages_are(place, topic):
    assert parse(place) == topic
    assert parse(f"{place}{'&' if '?' in place else '?'}format=csv").settings == {"format": "csv"}
    assert is_topic(place)
    assert is_endless(place) == topic.is_endless


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("kafka://b:9092", "HOST:PORT/TOPIC"),
        ("kafka:///clicks", "HOST:PORT/TOPIC"),
        ("kafka://user:word@b/clicks", "HOST:PORT/TOPIC"),
        ("kafka://b/clicks/2", "HOST:PORT/TOPIC"),
        ("kafka://b/clicks?start=7", "earliest or latest, or a time"),
        ("kafka://b/clicks?start=2026-01-31T12:00:00", "a time with its zone"),
        ("kafka://b/clicks?end=never", "or no end"),
        ("kafka://b/clicks?order=key", "expected partition"),
        ("kafka://b/clicks?strat=earliest", "did you mean start"),
        ("kafka://b/clicks?commit=", "its name is empty"),
        ("kafka://b/clicks?commit=board&end=latest", "the data have an end, and no order"),
        ("kafka://b/clicks?disorder=5", "a length of time such as 5s"),
        ("kafka://b/clicks?group=x", "it has start, end, order, disorder, commit, format"),
        ("kafka://b/clicks?start=latest&end=latest", "nothing lies between"),
        ("kafka://b/clicks?start=latest&start=earliest", "the setting start is given twice"),
        ("kafka://b/clicks?credentials=sasl.password=word", "credentials=file:/PATH"),
    ],
)
def test_a_place_that_says_nothing_is_refused(place, words):
    with pytest.raises(ConfigError, match=words):
        parse(place)


def test_a_place_says_how_far_messages_may_be_out_of_order():
    assert parse("kafka://b/clicks?disorder=1.5m").disorder_seconds == 90.0


def test_a_shard_names_its_partition():
    topic = parse("kafka://b/my-clicks-2")
    assert topic.shard(11, 5, 9) == Shard("my-clicks-2-11", 5, 9)
    assert topic.partition_of(topic.shard(11, 5, 9)) == 11
    with pytest.raises(ValueError, match="is not a partition"):
        topic.partition_of(Shard("clicks-11", 5, 9))


def test_messages_of_many_records_are_expected_wherever_the_format_is_given():
    plain, arrow = parse("kafka://b/t"), parse("kafka://b/t?format=arrow")
    assert plain.guessed_records("") == plain.guessed_records("format=csv;columns=a") == 1.0
    assert arrow.guessed_records("format=csv") == plain.guessed_records("columns=a;format=arrow")
    assert arrow.guessed_records("") > 1.0


def test_credentials_are_lines():
    text = "# of the cluster\nsecurity.protocol = SASL_SSL\n\nsasl.password=a=b\n"
    assert parse_credentials(text) == {"security.protocol": "SASL_SSL", "sasl.password": "a=b"}


@pytest.mark.parametrize("text", ["x=1\nmy word", "=my word", "group.id=my word"])
def test_credentials_that_are_none_are_refused_without_a_word_of_them(text):
    with pytest.raises(ConfigError, match="credentials, line") as raised:
        parse_credentials(text)
    assert "word" not in str(raised.value)


ENDLESS, ORDERED = "kafka://b/clicks", "kafka://b/clicks?end=latest&order=partition"
BOUNDED = "kafka://b/clicks?end=latest"


def config_of(command="train", **flags):
    words = {"model_zoo": ".", "model_def": "m.forward"}
    if command == "train":
        words |= {"training_data": ENDLESS, "distribution_strategy": "ParameterServerStrategy"}
    else:
        words |= {"checkpoint_dir_for_init": "checkpoint"}
    words |= flags
    return build_config(command, {name: str(word) for name, word in words.items()})


def check(**flags):
    check_topics(config_of(**flags))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"training_data": ENDLESS, "distribution_strategy": "Local"}, "found Local"),
        ({"training_data": ORDERED, "distribution_strategy": "AllreduceStrategy"}, "order to keep"),
        ({"training_data": ENDLESS, "num_epochs": 2}, "--num_epochs=1"),
        ({"training_data": ENDLESS, "validation_data": "v.csv"}, "give --evaluation_steps"),
        ({"training_data": "t.csv", "validation_data": ENDLESS}, "add end=latest"),
        ({"command": "predict", "prediction_data": BOUNDED}, "positions have holes"),
        ({"training_data": "t.csv", "on_gap": "skip"}, "messages that a broker deletes"),
        ({"training_data": "t.csv", "bad_message_dir": "bad"}, "messages that cannot be read"),
        ({"training_data": "t.csv", "max_lateness": "1m"}, "messages that come late"),
        ({"training_data": "t.csv", "metrics_window": "1h"}, "messages that have a time"),
        ({"training_data": BOUNDED, "max_lateness": "1m"}, "or one with order=partition"),
        ({"training_data": ENDLESS, "on_late": "drop"}, "needs --max_lateness"),
        (
            {"training_data": ENDLESS, "on_late": "aside", "max_lateness": "1m"},
            "needs --bad_message_dir",
        ),
    ],
)
def test_a_topic_that_the_job_cannot_use_is_refused(flags, words):
    with pytest.raises(ConfigError, match=words):
        check(**flags)


def test_topics_that_a_job_can_use():
    check(training_data=ENDLESS)
    check(training_data=ENDLESS, validation_data=BOUNDED, evaluation_steps=100)
    check(training_data=ORDERED)
    check(training_data=BOUNDED, num_epochs=3, distribution_strategy="Local")
    check(training_data="t.csv", num_epochs=3, validation_data="v.csv")
    check(training_data=ENDLESS, validation_data="v.csv", evaluation_steps=100, on_gap="skip")
    check(training_data=ORDERED, max_lateness="1m", on_late="drop", metrics_window="1h")


def test_what_becomes_of_messages_and_who_looks_may_be_another_when_a_job_goes_on(tmp_path):
    folder = prepare(config_of(job_dir=tmp_path / "job", seed=9))
    now = config_of(job_dir=folder, seed=9, on_gap="skip", bad_message_dir="bad", dashboard_port=80)
    assert holds_job(now)
    prepare(now)
    found = JobConfig.read(folder / process.CONFIG_FILE)
    assert (found.packages, found.seeing) == (now.packages, now.seeing)
    with pytest.raises(ConfigError, match='--max_lateness was "", is "1h"'):
        holds_job(config_of(job_dir=folder, seed=9, max_lateness="1h"))


def test_gaps_and_bad_messages_are_the_business_of_readers_of_topics_alone():
    config = config_of(data_reader_params="columns=a,b", on_gap="skip", bad_message_dir="bad")
    assert reader_params(config, "v.csv") == "columns=a,b"
    assert reader_params(config, ENDLESS) == "columns=a,b;on_gap=skip;bad_messages=aside"
    assert reader_params(config, "v.csv", has_begun=True) == "columns=a,b"
    assert "waits=true" in reader_params(config, ENDLESS, has_begun=True)


@pytest.mark.parametrize(
    "time", ["2026-01-31T12:00:00Z", "2026-01-31T13:00:00+01:00", "2026-01-31T13:00:00%2B01:00"]
)
def test_a_topic_may_start_at_a_time(time):
    assert parse(f"kafka://b/clicks?start={time}").start_ms == 1_769_860_800_000
    assert parse("kafka://b/clicks").start_ms is None


@pytest.mark.parametrize(
    "time", ["1970-01-01T00:00:00Z", "1969-12-31T23:59:59.999Z", "0001-01-01T00:00:00+14:00"]
)
def test_a_topic_may_start_before_there_were_messages(time):
    assert parse(f"kafka://b/clicks?start={time}").start_ms == 0

"""The name of a stream: `kafka://HOST:PORT[,HOST:PORT]/TOPIC?start=earliest&end=latest`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import parse_qsl

from elasticdl.config import JobConfig
from elasticdl.errors import ConfigError
from elasticdl.job import Shard
from elasticdl.packages.streams.settings import StreamsSection
from elasticdl.settings.duration import seconds_in
from elasticdl.settings.reader_params import words_of

SCHEME = "kafka"
_STARTS = ("earliest", "latest")
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_READER = ("format", "columns", "delimiter", "credentials", "event_time")
_KNOWN = ("start", "end", "order", "disorder", "commit", *_READER)
_ROWS = 1024.0  # that a message of many records is believed to have until one was read
EXAMPLE = f"{SCHEME}://broker:9092/clicks?start=earliest"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, and the part of its messages that is the data.

    servers: The brokers to ask first, `host:port,host:port`.
    start: The first messages to read when the job begins: earliest, latest, or a time.
    is_endless: Whether messages that arrive later are read too.
    keeps_order: Whether the messages of a partition are trained one after the other.
    commit: The group for which trained positions are committed, for monitoring; "": none.
    disorder_seconds: The largest disorder of event times within a partition.
    settings: Settings of the reader in the name of the topic; they override those of all data.
    """

    servers: str
    name: str
    start: str = "earliest"
    is_endless: bool = True
    keeps_order: bool = False
    commit: str = ""
    disorder_seconds: float = 0.0
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_cut_as_it_comes(self) -> bool:
        """Return whether its tasks are made while the job runs."""
        return self.is_endless or self.keeps_order

    def guessed_records(self, params: str) -> float:
        """Return the number of records of a message that is assumed until a message was read.

        Args:
            params: The settings of all data; those in the name of the topic override them.
        """
        word = self.settings.get("format", words_of(params).get("format", ""))
        return _ROWS if word.strip("'\"") == "arrow" else 1.0

    @property
    def start_ms(self) -> int | None:
        """The time at which the data starts, in milliseconds since 1970; None: no time is given."""
        return None if self.start in _STARTS else _milliseconds(self.start)

    def reader_settings(self, config: JobConfig, has_begun: bool) -> list[str]:
        """Return the settings of the reader that flags imply, `name=value` each.

        Args:
            config: The settings of the job.
            has_begun: Whether the brokers have accepted the job before: then the reader waits if
                they refuse.
        """
        data = config.of(StreamsSection)
        found = [
            (has_begun, "waits=true"),
            (data.on_gap == "skip", "on_gap=skip"),
            (data.bad_message_dir is not None, "bad_messages=aside"),
            (bool(data.max_lateness), f"late={data.on_late}"),
        ]
        return [setting for is_so, setting in found if is_so]

    def shard(self, partition: int, start: int, end: int) -> Shard:
        """Return a range of positions of a partition."""
        return Shard(f"{self.name}-{partition}", start, end)

    def partition_of(self, shard: Shard) -> int:
        """Return the partition of a shard."""
        return self.number_of(shard.name)

    def number_of(self, name: str) -> int:
        """Return the partition in the name of a shard."""
        topic, _, number = name.rpartition("-")
        if topic != self.name or not number.isdecimal():
            raise ValueError(f"{name} is not a partition of the topic {self.name}")
        return int(number)


def is_topic(place: str) -> bool:
    """Return whether a place is a topic of Kafka."""
    return place.startswith(f"{SCHEME}://")


def is_endless(place: str) -> bool:
    """Return whether a place is a topic whose later messages are read too."""
    return is_topic(place) and parse(place).is_endless


def parse(place: str) -> Topic:
    """Return the topic that a name describes.

    Raises:
        ConfigError: The name is not valid.
    """
    address, _, query = place.removeprefix(f"{SCHEME}://").partition("?")
    servers, _, name = address.partition("/")
    if not servers or not _TOPIC.fullmatch(name) or "@" in servers:
        raise ConfigError(f"{place}: expected {SCHEME}://HOST:PORT/TOPIC, for example {EXAMPLE}")
    pairs = parse_qsl(query, keep_blank_values=True)
    given, names = dict(pairs), [setting for setting, _ in pairs]
    if twice := [setting for setting in names if names.count(setting) > 1]:
        raise ConfigError(f"{SCHEME}://{address}: the setting {twice[0]} is given twice")
    start, end = given.pop("start", "earliest"), given.pop("end", "")
    order, commit = given.pop("order", ""), given.pop("commit", None)
    disorder = given.pop("disorder", "0s")
    for unknown in given.keys() - set(_READER):
        near = difflib.get_close_matches(unknown, _KNOWN, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(_KNOWN)}"
        raise ConfigError(f"{place}: a topic has no setting {unknown!r}; {hint}")
    # The name of a topic is shown in logs and on pages.
    if (word := given.get("credentials", "file:/")) and not word.startswith(("file:/", "env:")):
        raise ConfigError(
            f"{SCHEME}://{address}: everybody can see the name of a topic, so it may not have "
            "credentials: expected credentials=file:/PATH or credentials=env:NAME"
        )
    if start not in _STARTS and _milliseconds(start) is None:
        raise ConfigError(
            f"{place}: start={start}: expected {' or '.join(_STARTS)}, or a time with its zone, "
            "such as 2026-01-31T12:00:00Z"
        )
    if seconds_in(disorder) is None:
        raise ConfigError(
            f"{place}: disorder={disorder}: expected a length of time such as 5s: how far messages "
            "may be out of the order of their event times"
        )
    if end not in ("", "latest"):
        raise ConfigError(
            f"{place}: end={end}: expected latest, what there is when the job begins, or no end: "
            "then it goes on with what arrives"
        )
    if start == "latest" and end == "latest":
        raise ConfigError(f"{place}: nothing lies between start=latest and end=latest")
    if order not in ("", "partition"):
        raise ConfigError(
            f"{place}: order={order}: expected partition, the messages of each partition one after "
            "the other, or no order"
        )
    found = Topic(
        servers,
        name,
        start,
        is_endless=not end,
        keeps_order=bool(order),
        commit=commit or "",
        disorder_seconds=seconds_in(disorder) or 0.0,
        settings=given,
    )
    if commit is not None and not (commit and found.is_cut_as_it_comes):
        what = "its name is empty" if not commit else "the data have an end, and no order"
        raise ConfigError(
            f"{place}: commit={commit}: expected the name of a consumer group, and a topic without "
            f"an end or with order=partition; {what}"
        )
    return found


def _milliseconds(time: str) -> int | None:
    """Return a time with its zone in milliseconds since 1970; None if it is not one."""
    try:
        # In the query of a URL a plus is decoded as a space.
        found = datetime.fromisoformat(time.replace(" ", "+"))
    except ValueError:
        return None
    # No message is older than 1970, and a negative number would ask Kafka for something else.
    return None if found.tzinfo is None else max(0, int(found.timestamp() * 1000))


def gap_words(name: str, start: int, end: int) -> str:
    """Return an error about positions that were deleted before they were read."""
    return (
        f"{name}: positions [{start}, {end}) were deleted by the broker before they were read: "
        "give the topic a longer retention (retention.ms, retention.bytes), or go on after what "
        "is gone by --on_gap=skip"
    )

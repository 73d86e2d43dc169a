"""The name of a stream: `kafka://HOST:PORT[,HOST:PORT]/TOPIC?start=earliest&end=latest`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import parse_qsl

from elasticdl.errors import ConfigError
from elasticdl.job import Shard, Strategy
from elasticdl.settings.data import DataSection
from elasticdl.settings.duration import seconds_in
from elasticdl.settings.training import TrainingSection

SCHEME = "kafka"
_STARTS = ("earliest", "latest")
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_READER = ("format", "columns", "delimiter", "credentials", "event_time")
_KNOWN = ("start", "end", "order", "disorder", "commit", *_READER)
_ROWS = 1024.0  # that a message of many records is believed to have until one was read
_EXAMPLE = f"{SCHEME}://broker:9092/clicks?start=earliest"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, and the part of its messages that is the data.

    servers: The brokers to ask first, `host:port,host:port`.
    start: The first messages to read when the job begins: earliest, latest, or a time.
    is_endless: Whether messages that arrive later are read too.
    keeps_order: Whether the messages of a partition are trained one after the other.
    commit: The group for which trained positions are committed, for monitoring; "": none.
    disorder_seconds: How far messages of a partition may be out of the order of their event times.
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

    @property
    def guessed_records(self) -> float:
        """The number of records of a message that is assumed until a message was read."""
        return _ROWS if self.settings.get("format") == "arrow" else 1.0

    @property
    def start_ms(self) -> int | None:
        """The time at which the data starts, in milliseconds since 1970; None: no time is given."""
        return None if self.start in _STARTS else _milliseconds(self.start)

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
            raise ValueError(f"{name} is no partition of the topic {self.name}")
        return int(number)


def is_topic(place: str) -> bool:
    """Return whether a place is a topic of Kafka."""
    return place.startswith(f"{SCHEME}://")


def is_endless(place: str) -> bool:
    """Return whether a place is a topic whose later messages are read too."""
    return is_topic(place) and parse(place).is_endless


def is_cut_as_it_comes(place: str) -> bool:
    """Return whether a place is a topic whose tasks are made while the job runs."""
    return is_topic(place) and parse(place).is_cut_as_it_comes


def reader_params(data: DataSection, place: str, has_begun: bool = False) -> str:
    """Return the settings of the reader of a place, which may be a topic or not.

    Args:
        data: The data settings of the job.
        place: The place to read.
        has_begun: Whether the brokers have accepted the job before: then the reader waits if they
            refuse.
    """
    params = [data.data_reader_params]
    if is_topic(place) and has_begun:
        params.append("waits=true")
    if is_topic(place) and data.on_gap == "skip":
        params.append("on_gap=skip")
    if is_topic(place) and data.bad_message_dir is not None:
        params.append("bad_messages=aside")
    if is_topic(place) and data.max_lateness:
        params.append(f"late={data.on_late}")
    return ";".join(params)


def check_topics(
    command: str, data: DataSection, training: TrainingSection, steps: int | None
) -> None:
    """Refuse topics where a job cannot use them.

    Args:
        command: The command of the job.
        data: The data settings of the job.
        training: The training settings of the job.
        steps: The number of updates between two evaluations, as given.

    Raises:
        ConfigError: A topic without an end is not possible here, or a setting needs a topic.
    """
    given = (
        ("on_gap", data.on_gap != "fail", "that a broker deletes"),
        ("bad_message_dir", data.bad_message_dir is not None, "that cannot be read"),
        ("max_lateness", bool(data.max_lateness), "that come late"),
        ("metrics_window", data.metrics_window != "1m", "that have a time"),
    )
    has_topic = is_topic(data.training_data) or is_topic(data.validation_data)
    for flag, is_given, which in given:
        if is_given and not has_topic:
            raise ConfigError(
                f"--{flag}={getattr(data, flag)} is about messages {which}: expected {_EXAMPLE} "
                "as data"
            )
    for flag in ("validation_data", "prediction_data"):
        place = getattr(data, flag)
        if is_topic(place) and flag == "prediction_data":
            raise ConfigError(
                f"--{flag}={place}: predictions are of records that can be counted, and a topic's "
                "positions have holes: expected files or tables"
            )
        if is_endless(place):
            raise ConfigError(
                f"--{flag}={place}: expected data with an end: add end=latest, or give files"
            )
    if data.validation_split and is_topic(data.training_data):
        raise ConfigError(
            f"--validation_split={data.validation_split:g} holds out records by their number, and "
            "a topic's positions have holes: expected --validation_data"
        )
    _check_lateness(data)
    if command != "train" or not is_topic(data.training_data):
        return
    require_watermark("max_lateness", data.max_lateness, data.training_data)
    topic = parse(data.training_data)
    if not topic.is_cut_as_it_comes:
        return
    why = "has no end" if topic.is_endless else "has an order to keep"
    where = f"--training_data={data.training_data} {why}"
    if training.distribution_strategy is not Strategy.PARAMETER_SERVER:
        raise ConfigError(
            f"{where}: expected --distribution_strategy={Strategy.PARAMETER_SERVER}, found "
            f"{training.distribution_strategy}; or train on what there is, in any order: end=latest"
        )
    for flag, is_so, expected in (
        ("num_epochs", training.num_epochs != 1, "1"),
        ("deterministic", training.deterministic, "false"),
    ):
        if is_so:
            raise ConfigError(f"{where}: expected --{flag}={expected}")
    if data.validation_data and steps is None:
        raise ConfigError(
            f"{where}, so no evaluation follows an epoch: give --evaluation_steps, the updates "
            "between two evaluations (0: one at the end)"
        )


def require_watermark(flag: str, value: str, place: str) -> None:
    """Refuse a setting that needs a watermark if the training data has none.

    Raises:
        ConfigError: They are no topic that is cut as it comes.
    """
    if value and not is_cut_as_it_comes(place):
        raise ConfigError(
            f"--{flag}={value}: {place} is cut into tasks before the job begins, and has no "
            "watermark: expected a topic without end=latest, or one with order=partition"
        )


def _check_lateness(data: DataSection) -> None:
    if data.on_late != "train" and not data.max_lateness:
        raise ConfigError(
            f"--on_late={data.on_late} needs --max_lateness, which says when a message is late"
        )
    if data.on_late == "aside" and data.bad_message_dir is None:
        raise ConfigError("--on_late=aside needs --bad_message_dir, where late messages are to go")


def parse(place: str) -> Topic:
    """Return the topic that a name describes.

    Raises:
        ConfigError: The name is not valid.
    """
    address, _, query = place.removeprefix(f"{SCHEME}://").partition("?")
    servers, _, name = address.partition("/")
    if not servers or not _TOPIC.fullmatch(name) or "@" in servers:
        raise ConfigError(f"{place}: expected {SCHEME}://HOST:PORT/TOPIC, for example {_EXAMPLE}")
    given = dict(parse_qsl(query, keep_blank_values=True))
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
            f"{SCHEME}://{address}: credentials are no part of a name, which everybody sees: "
            "expected credentials=file:/PATH or credentials=env:NAME"
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
            f"{place}: commit={commit}: expected the name of a consumer group, for which a topic "
            f"without an end, or with order=partition, has its trained positions committed; {what}"
        )
    return found


def _milliseconds(time: str) -> int | None:
    """Return a time with its zone in milliseconds since 1970; None if it is not one."""
    try:
        # In the query of a URL a plus is decoded as a space.
        found = datetime.fromisoformat(time.replace(" ", "+"))
    except ValueError:
        return None
    return None if found.tzinfo is None else int(found.timestamp() * 1000)


def gap_words(name: str, start: int, end: int) -> str:
    """Return an error about positions that were deleted before they were read."""
    return (
        f"{name}: positions [{start}, {end}) were deleted by the broker before they were read: "
        "give the topic a longer retention (retention.ms, retention.bytes), or go on after what "
        "is gone by --on_gap=skip"
    )

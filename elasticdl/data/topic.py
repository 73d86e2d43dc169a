"""The name of a stream: `kafka://HOST:PORT[,HOST:PORT]/TOPIC?start=earliest&end=latest`."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Literal, get_args
from urllib.parse import parse_qsl

from elasticdl.errors import ConfigError
from elasticdl.job import Shard, Strategy
from elasticdl.settings.data import DataSection
from elasticdl.settings.training import TrainingSection

SCHEME = "kafka"
Start = Literal["earliest", "latest"]
_STARTS: tuple[Start, ...] = get_args(Start)
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_EXAMPLE = f"{SCHEME}://broker:9092/clicks?start=earliest"


@dataclass(frozen=True, slots=True)
class Topic:
    """Where the messages are, and which of them are the data.

    servers: brokers to begin with, `host:port,host:port`.
    start: what is read first, of what there is when the job begins.
    is_endless: whether what arrives later is read too.
    """

    servers: str
    name: str
    start: Start = "earliest"
    is_endless: bool = True

    def shard(self, partition: int, start: int, end: int) -> Shard:
        """Return a range of positions of a partition."""
        return Shard(f"{self.name}-{partition}", start, end)

    def partition_of(self, shard: Shard) -> int:
        """Return the partition of which a shard is."""
        name, _, number = shard.name.rpartition("-")
        if name != self.name or not number.isdecimal():
            raise ValueError(f"{shard.name} is no partition of the topic {self.name}")
        return int(number)


def is_topic(place: str) -> bool:
    """Tell whether a place is a topic of Kafka's."""
    return place.startswith(f"{SCHEME}://")


def is_endless(place: str) -> bool:
    """Tell whether a place is a topic of which also what arrives later is read."""
    return is_topic(place) and parse(place).is_endless


def check_topics(
    command: str, data: DataSection, training: TrainingSection, steps: int | None
) -> None:
    """Refuse topics where a job cannot use them.

    Args:
        command: What the job does.
        data: Its data.
        training: How it trains.
        steps: Updates between two evaluations, as asked for.

    Raises:
        ConfigError: A topic without an end where there has to be one, or settings that need one.
    """
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
    if command != "train" or not is_endless(data.training_data):
        return
    where = f"--training_data={data.training_data} has no end"
    if training.distribution_strategy is not Strategy.PARAMETER_SERVER:
        raise ConfigError(
            f"{where}: expected --distribution_strategy={Strategy.PARAMETER_SERVER}, found "
            f"{training.distribution_strategy}; or add end=latest to train on what there is"
        )
    for flag, is_so, expected in (
        ("num_epochs", training.num_epochs != 1, "1"),
        ("deterministic", training.deterministic, "false"),
    ):
        if is_so:
            raise ConfigError(f"{where}: expected --{flag}={expected}")
    if data.validation_data and steps is None:
        raise ConfigError(
            f"{where}, so no epoch ever ends that an evaluation could follow: give "
            "--evaluation_steps, the updates between two evaluations"
        )


def parse(place: str) -> Topic:
    """Return what a name says.

    Raises:
        ConfigError: It says nothing that can be read.
    """
    address, _, query = place.removeprefix(f"{SCHEME}://").partition("?")
    servers, _, name = address.partition("/")
    if not servers or not _TOPIC.fullmatch(name) or "@" in servers:
        raise ConfigError(f"{place}: expected {SCHEME}://HOST:PORT/TOPIC, for example {_EXAMPLE}")
    given = dict(parse_qsl(query, keep_blank_values=True))
    start, end = given.pop("start", "earliest"), given.pop("end", "")
    for unknown in given:
        near = difflib.get_close_matches(unknown, ("start", "end"), n=1)
        hint = f"did you mean {near[0]}?" if near else "it has start and end"
        raise ConfigError(f"{place}: a topic has no setting {unknown!r}; {hint}")
    if start not in _STARTS:
        raise ConfigError(f"{place}: start={start}: expected {' or '.join(_STARTS)}")
    if end not in ("", "latest"):
        raise ConfigError(
            f"{place}: end={end}: expected latest, what there is when the job begins, or no end: "
            "then it goes on with what arrives"
        )
    if start == "latest" and end == "latest":
        raise ConfigError(f"{place}: nothing lies between start=latest and end=latest")
    return Topic(servers, name, start, is_endless=not end)


def gap_words(name: str, start: int, end: int) -> str:
    """Say that positions of a partition were deleted before they were read."""
    return (
        f"{name}: positions [{start}, {end}) were deleted by the broker before they were read: "
        "give the topic a longer retention (retention.ms, retention.bytes), or go on after what "
        "is gone by --on_gap=skip"
    )

"""Checks the settings of a job that trains on a stream, before the job starts."""

from __future__ import annotations

from elasticdl.config import JobConfig
from elasticdl.data.sources import is_cut_as_it_comes
from elasticdl.errors import ConfigError
from elasticdl.job import Strategy
from elasticdl.packages.streams.capture.settings import check_captured
from elasticdl.packages.streams.settings import StreamsSection
from elasticdl.packages.streams.topic import EXAMPLE, is_endless, is_topic, parse


def check(config: JobConfig) -> list[str]:
    """Refuse settings with which a job cannot train on its stream; return notes for the user.

    Raises:
        ConfigError: Says what was expected.
    """
    if config.launcher.sees_files:  # else the processes themselves check the settings
        check_topics(config)
        every = config.checkpoint.checkpoint_event_time
        require_watermark("checkpoint_event_time", every, config.data.training_data)
    return check_captured(config)


def check_topics(config: JobConfig) -> None:
    """Refuse topics where a job cannot use them.

    Raises:
        ConfigError: A topic without an end is not possible here, or a setting needs a topic.
    """
    data, own, training = config.data, config.of(StreamsSection), config.training
    given = (
        ("on_gap", own.on_gap != "fail", "that a broker deletes"),
        ("bad_message_dir", own.bad_message_dir is not None, "that cannot be read"),
        ("max_lateness", bool(own.max_lateness), "that come late"),
        ("metrics_window", own.metrics_window != "1m", "that have a time"),
    )
    has_topic = is_topic(data.training_data) or is_topic(data.validation_data)
    for flag, is_given, which in given:
        if is_given and not has_topic:
            raise ConfigError(
                f"--{flag}={getattr(own, flag)} is about messages {which}: expected {EXAMPLE} "
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
    _check_lateness(own)
    if config.command != "train" or not is_topic(data.training_data):
        return
    require_watermark("max_lateness", own.max_lateness, data.training_data)
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
    if training.num_epochs != 1:
        raise ConfigError(f"{where}: expected --num_epochs=1")
    if data.validation_data and config.evaluation.evaluation_steps is None:
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


def _check_lateness(data: StreamsSection) -> None:
    if data.on_late != "train" and not data.max_lateness:
        raise ConfigError(
            f"--on_late={data.on_late} needs --max_lateness, which says when a message is late"
        )
    if data.on_late == "aside" and data.bad_message_dir is None:
        raise ConfigError("--on_late=aside needs --bad_message_dir, where late messages are to go")

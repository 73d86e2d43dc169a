"""Decides which jobs capture their training data, and in which folder."""

from __future__ import annotations

from pathlib import Path

from elasticdl.config import JobConfig
from elasticdl.errors import ConfigError
from elasticdl.job import Strategy
from elasticdl.packages.streams.settings import StreamsSection

FOLDER = "captured"
"""The folder of the records, in the folder of the job."""


def is_captured(config: JobConfig) -> bool:
    """Return whether the training data come from a source that is read once, in order."""
    own = config.of(StreamsSection)
    return config.command == "train" and (bool(own.reader_command) or own.reader_state)


def is_captured_as_it_trains(config: JobConfig) -> bool:
    """Return whether tasks are cut while the source is read; else it is read to its end first.

    Only ps replicas know their progress in each task of a stream, and a stream has one epoch.
    """
    training = config.training
    return (
        is_captured(config)
        and training.distribution_strategy is Strategy.PARAMETER_SERVER
        # A second epoch would have to know the end of the first one.
        and training.num_epochs == 1
        and training.shuffle == "tasks"
        and not training.deterministic
    )


def folder_of(config: JobConfig) -> Path:
    """Return the folder of a job's captured records."""
    assert config.cluster.job_dir is not None, "a job that captures has a folder"
    return config.cluster.job_dir / FOLDER


def check_captured(config: JobConfig) -> list[str]:
    """Refuse settings with which a job cannot capture; return notes for the user.

    Raises:
        ConfigError: Says what was expected.
    """
    if not is_captured(config):
        return []
    own = config.of(StreamsSection)
    flag = "reader_command" if own.reader_command else "reader_state"
    if own.reader_state:
        _check_reader(config)
    if config.is_on_cluster:
        raise ConfigError(
            f"--{flag}: one process reads the source, for workers on the same machine: expected "
            "--launcher=process, or data that each worker can read by itself"
        )
    if is_captured_as_it_trains(config) and config.data.validation_split:
        raise ConfigError(
            f"--{flag}: records are trained as they are read, so none can be held out before: "
            f"expected --validation_data, not --validation_split={config.data.validation_split:g}"
        )
    if not is_captured_as_it_trains(config):
        return [
            f"--{flag}: the source is read to its end before training begins; with "
            f"--distribution_strategy={Strategy.PARAMETER_SERVER}, one epoch and --shuffle=tasks "
            "it is trained while it is read"
        ]
    if config.data.validation_data and config.evaluation.evaluation_steps is None:
        raise ConfigError(
            f"--{flag}: the data may have no end, so no evaluation follows an epoch: give "
            "--evaluation_steps, the updates between two evaluations (0: one at the end)"
        )
    return []


def _check_reader(config: JobConfig) -> None:
    """Refuse a model file that has no reader of its own."""
    from elasticdl.cli.preflight import check_function, defined_names, find_model_file

    if config.model.script is not None:
        raise ConfigError(
            "--reader_state=true: the reader is custom_data_reader of a model file: expected "
            "elasticdl train, or --reader_command"
        )
    path = find_model_file(config)
    check_function(path, defined_names(path), "custom_data_reader", config.model.custom_data_reader)

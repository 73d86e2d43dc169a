"""Finds the sources of data that packages bring: databases, topics, data that is read once."""

from __future__ import annotations

from elasticdl import registry
from elasticdl.config import JobConfig
from elasticdl.data.kinds import DataSource, ReadOnce, StreamPlace


def source_at(place: str, wanted: str = "") -> tuple[str, DataSource] | None:
    """Return the name of the source that has a place, and the source; None: the place is files.

    Args:
        place: The place, as a user gives it.
        wanted: The format that the user asks for; "": none.
    """
    sources: dict[str, DataSource] = registry.brought("sources")
    for name, source in sources.items():
        if wanted == source.format if wanted and source.format else source.has(place):
            return name, source
    return None


def stream_at(place: str) -> StreamPlace | None:
    """Return how records arrive at a place; None if all of them are there."""
    sources: dict[str, DataSource] = registry.brought("sources")
    for source in sources.values():
        if source.stream is not None and source.has(place):
            return source.stream(place)
    return None


def is_cut_as_it_comes(place: str) -> bool:
    """Return whether the tasks of a place are made while the job runs."""
    stream = stream_at(place)
    return stream is not None and stream.is_cut_as_it_comes


def reader_params(config: JobConfig, place: str, has_begun: bool = False) -> str:
    """Return the settings of the reader of a place.

    Args:
        config: The settings of the job.
        place: The place to read.
        has_begun: Whether the source has answered the job before; see `StreamPlace`.
    """
    stream = stream_at(place)
    own = [] if stream is None else stream.reader_settings(config, has_begun)
    return ";".join([config.data.data_reader_params, *own])


def read_once_of(config: JobConfig) -> ReadOnce | None:
    """Return the training data of a job that can be read only once; None: it has other data."""
    kinds: dict[str, ReadOnce] = registry.brought("read_once")
    return next((kind for kind in kinds.values() if kind.is_used_by(config)), None)


def is_stream(config: JobConfig) -> bool:
    """Return whether the training tasks of a job are cut while it runs."""
    if (kept := read_once_of(config)) is not None:
        return kept.is_cut_as_it_comes(config)
    return config.command == "train" and is_cut_as_it_comes(config.data.training_data)

"""Declares kinds of data and their readers; `open_reader` chooses by these."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from elasticdl.config import JobConfig
from elasticdl.data.base import DataReader, Stream
from elasticdl.data.params import Params


@dataclass(frozen=True, slots=True)
class FileFormat:
    """Files of one format. Its name is what `--data_reader_params=format=` says.

    Attributes:
        extension: Is found in the names of such files, in small letters.
        reader: Returns the reader of some files, with the settings that the user gives it.
    """

    extension: re.Pattern[str]
    reader: Callable[[Sequence[str], Params], DataReader]


class StreamPlace(Protocol):
    """A place whose records are read in the order in which they came."""

    @property
    def is_cut_as_it_comes(self) -> bool:
        """Return whether its tasks are made while the job runs."""
        ...

    def reader_settings(self, config: JobConfig, has_begun: bool) -> list[str]:
        """Return the settings of its reader that flags imply, `name=value` each.

        Args:
            config: The settings of the job.
            has_begun: Whether the source has answered the job before. Then the reader waits for
                it, also if it refuses.
        """
        ...


@dataclass(frozen=True, slots=True)
class DataSource:
    """Data that is no list of files, such as the tables of a database.

    Attributes:
        has: Tells whether a place, as a user gives it, is such data.
        reader: Returns the reader of a place, with the settings that the user gives it.
        format: Asks for this reader as `--data_reader_params=format=`; empty where `has` is enough.
        stream: Describes a place whose records arrive one after the other; None: they are there.
    """

    has: Callable[[str], bool]
    reader: Callable[[str, Params], DataReader]
    format: str = ""
    stream: Callable[[str], StreamPlace] | None = None


class ReadOnce(Protocol):
    """Training data that can be read only once, so the job keeps the records in its folder."""

    def is_used_by(self, config: JobConfig) -> bool:
        """Return whether the settings of a job name such data."""
        ...

    def is_cut_as_it_comes(self, config: JobConfig) -> bool:
        """Return whether its tasks are made while the source is read, else after its end."""
        ...

    def read_to_end(self, config: JobConfig) -> None:
        """Read the source, and return when all of it is kept.

        Raises:
            DataError: The source cannot be read.
        """
        ...

    def reader(self, config: JobConfig) -> DataReader:
        """Return the reader of the records that are kept."""
        ...

    def stream(self, config: JobConfig) -> Stream:
        """Return the records as a stream; the source is read while somebody looks at it."""
        ...

    def remove(self, config: JobConfig) -> None:
        """Remove the records, which nobody needs any more."""
        ...

"""Declares kinds of data and their readers; `open_reader` chooses by these."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from elasticdl.data.base import DataReader
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


@dataclass(frozen=True, slots=True)
class DataSource:
    """Data that is no list of files, such as the tables of a database.

    Attributes:
        has: Tells whether a place, as a user gives it, is such data.
        reader: Returns the reader of a place, with the settings that the user gives it.
        format: Asks for this reader as `--data_reader_params=format=`; empty where `has` is enough.
    """

    has: Callable[[str], bool]
    reader: Callable[[str, Params], DataReader]
    format: str = ""

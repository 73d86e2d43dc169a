"""Statistics of a data set's columns: the file that `elasticdl data analyze` writes.

`docs/data.md` has the format. Model files read it through `elasticdl.preprocessing`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from elasticdl.config import JobConfig
from elasticdl.errors import ConfigError, DataError

VERSION = 1
Number = int | float


class _Part(BaseModel):
    """A part of the file. Fields that only later versions have are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Distinct(_Part):
    """The number of different values in a column.

    relative_error: Standard error of `count` as a part of it; 0 if the count is exact.
    """

    count: int = Field(ge=0)
    is_exact: bool = True
    relative_error: float = Field(default=0.0, ge=0)


class Vocabulary(_Part):
    """Values of a column with their counts: the most frequent first, equal counts by value.

    threshold: Values that occur fewer times are left out.
    is_complete: All other values are here. Otherwise rarer values are left out for lack of room.
    count_error: Largest error of a count, which may be too low; 0 if the counts are exact.
    """

    values: list[str] | list[int]
    counts: list[int]
    threshold: int = Field(default=1, ge=1)
    is_complete: bool = True
    count_error: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _each_has_a_count(self) -> Vocabulary:
        if len(self.values) != len(self.counts):
            raise ValueError(f"{len(self.values)} values have {len(self.counts)} counts")
        return self


class Column(_Part):
    """Statistics of one column. Numbers are None if the column is text or has no values.

    count: Records that have a value.
    missing: Records without a value (empty, null, NaN).
    num_values: Values in all; more than `count` where records have several.
    infinite: Values that are infinite. They are in `num_values` and nowhere else.
    stddev: The standard deviation of the values themselves (divided by n, not by n - 1).
    quantiles: Values of the column, n of them, of probability 0, 1/(n-1), 2/(n-1), ... 1.
    quantile_error: Largest error of a quantile's rank, as a part of all values (with 99 %
        probability); 0 if they are exact.
    boundaries: Bounds of buckets with about equally many values, ascending and without repeats.
    """

    kind: Literal["int64", "float", "text"]
    count: int = Field(ge=0)
    missing: int = Field(ge=0)
    num_values: int = Field(ge=0)
    infinite: int = Field(default=0, ge=0)
    min: Number | None = None
    max: Number | None = None
    mean: float | None = None
    stddev: float | None = None
    quantiles: list[Number] = []
    quantile_error: float = Field(default=0.0, ge=0)
    boundaries: list[Number] = []
    distinct: Distinct
    vocabulary: Vocabulary | None = None


class Source(_Part):
    """The data that was read: its name on the command line, and the number of files there."""

    path: str
    num_files: int = Field(ge=0)


class Statistics(_Part):
    """Statistics of a data set."""

    format: Literal["elasticdl-statistics"] = "elasticdl-statistics"
    version: Literal[1] = 1
    source: Source
    num_records: int = Field(ge=0)
    columns: dict[str, Column]

    def column(self, name: str) -> Column:
        """Return the statistics of a column.

        Raises:
            ConfigError: There is no column of this name. The message lists the columns.
        """
        found = self.columns.get(name)
        if found is None:
            raise ConfigError(
                f"the statistics of {self.source.path} have no column {name!r}; they have "
                f"{', '.join(self.columns)}"
            )
        return found


def read_statistics(path: str | Path) -> Statistics:
    """Read the file that `elasticdl data analyze --output=PATH` wrote.

    Raises:
        DataError: There is no such file, or it holds something else.
    """
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read: {error.strerror}; "
            f"`elasticdl data analyze DATA --output={path}` writes it"
        ) from error
    try:
        return Statistics.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise DataError(
            f"{path}: not a file of `elasticdl data analyze` (version {VERSION}): "
            f"{place}: {first['msg']}"
        ) from error


def check_statistics(config: JobConfig) -> list[str]:
    """Check that the file of `--statistics` can be read, if the processes see what is here."""
    if config.model.statistics is not None and config.launcher.sees_files:
        read_statistics(config.model.statistics)
    return []

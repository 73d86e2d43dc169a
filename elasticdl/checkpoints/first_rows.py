"""Finds the package that reads the rows with which tables begin: `--pretrained_rows`."""

from __future__ import annotations

from typing import Protocol

from elasticdl import registry
from elasticdl._core import Progress, Store
from elasticdl.errors import ConfigError


class FirstRows(Protocol):
    """Reads the rows that the flag names."""

    def check(self, flag: str) -> None:
        """Look whether there are such files.

        Raises:
            ConfigError: The words do not parse, or there is no such file.
            CheckpointError: A URL cannot be reached.
        """
        ...

    def begin(
        self,
        store: Store,
        flag: str,
        progress: Progress | None = None,
        replica: int = 0,
        num_replicas: int = 1,
    ) -> None:
        """Let the tables of a new store begin with the rows.

        Raises:
            ConfigError: As for `check`. DataError: A file has another form.
            CheckpointError: A checkpoint cannot be read.
        """
        ...


def first_rows() -> FirstRows:
    """Return what reads rows.

    Raises:
        ConfigError: No package brings it.
    """
    found: FirstRows | None = registry.only("first_rows")
    if found is None:
        raise ConfigError("--pretrained_rows: no package here reads rows; reinstall elasticdl")
    return found

"""Finds the package that advises a job: on what is unusual, and on more ps replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from elasticdl import registry
from elasticdl.config import JobConfig
from elasticdl.job import Progress, Role, Usage
from elasticdl.observe.kind import Kind
from elasticdl.observe.kinds import ParameterTables


class Adviser(Protocol):
    """Hears what processes report. Times are in seconds from any moment."""

    def heard(self, role: Role, index: int, progress: Progress | None, usage: Usage | None) -> None:
        """Note a heartbeat; this is cheap."""
        ...

    def tabled(self, tables: ParameterTables) -> None:
        """Note what the ps replicas hold."""
        ...

    def look(self, now: float, loss: float | None) -> Sequence[tuple[Kind, str]]:
        """Return what has become unusual since the last look, with a sentence each.

        Args:
            now: The time.
            loss: Mean over recent records.
        """
        ...

    def why_more_replicas(self, number: int, is_moving: bool, now: float) -> str:
        """Return why the job needs one more ps replica (`--ps_autoscale`); "": it does not.

        Args:
            number: Ps replicas that there are.
            is_moving: Whether the model moves.
            now: The time.
        """
        ...


class _NoAdviser:
    """Says nothing."""

    def heard(self, role: Role, index: int, progress: Progress | None, usage: Usage | None) -> None:
        pass

    def tabled(self, tables: ParameterTables) -> None:
        pass

    def look(self, now: float, loss: float | None) -> Sequence[tuple[Kind, str]]:
        return ()

    def why_more_replicas(self, number: int, is_moving: bool, now: float) -> str:
        return ""


def adviser(config: JobConfig, now: float) -> Adviser:
    """Return what advises a job; it says nothing if no package brings it."""
    make: Callable[[JobConfig, float], Adviser] | None = registry.only("advisers")
    return _NoAdviser() if make is None else make(config, now)

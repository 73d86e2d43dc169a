"""Collects what packages show in the status of a job, beside the facts of every job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from rich.table import Table

from elasticdl import registry
from elasticdl.job.status import JobStatus


class StatusView(Protocol):
    """Shows a part of the status of a job; a package brings it."""

    def rows(self, status: JobStatus, is_over: bool) -> Iterable[tuple[str, str]]:
        """Return lines of the panel or, when the job is over, of its summary: name and text."""
        ...

    def tables(self, status: JobStatus, is_over: bool) -> Iterable[Table]:
        """Return tables, which `elasticdl status` and the end of a job show."""
        ...


def rows(status: JobStatus, is_over: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the lines of all packages."""
    for view in _views():
        yield from view.rows(status, is_over)


def tables(status: JobStatus, is_over: bool = False) -> Iterator[Table]:
    """Yield the tables of all packages."""
    for view in _views():
        yield from view.tables(status, is_over)


def _views() -> Iterable[StatusView]:
    views: dict[str, StatusView] = registry.brought("views")
    return views.values()

"""Progress bars for records and bytes, and amounts in units that people can read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

Advance = Callable[[int], None]


@contextmanager
def record_progress(what: str, total: int) -> Iterator[Advance]:
    """Show on a terminal how many records are done; the bar vanishes at the end."""
    with _progress(what, total, MofNCompleteColumn()) as advance:
        yield advance


@contextmanager
def byte_progress(what: str, total: int) -> Iterator[Advance]:
    """Show on a terminal how many bytes are done, and how fast; the bar vanishes at the end."""
    with _progress(what, total, DownloadColumn(), TransferSpeedColumn()) as advance:
        yield advance


@contextmanager
def _progress(what: str, total: int, *amounts: ProgressColumn) -> Iterator[Advance]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), *amounts, TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(what, total=total)
        yield lambda amount: progress.advance(task, amount)


def size(num_bytes: int) -> str:
    """Return a number of bytes in the largest unit that fits it."""
    amount = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            return f"{amount:,.0f} {unit}" if unit == "B" else f"{amount:,.1f} {unit}"
        amount /= 1024
    raise AssertionError("the last unit returns")

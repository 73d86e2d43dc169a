"""Prints words of others without their control characters, and checks paths of commands."""

from __future__ import annotations

import errno
import sys
import termios
from collections.abc import Iterable
from typing import Any

import rich_click as click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from elasticdl.runtime.printable import printable


class Terminal(Console):
    """A console on which only its own control characters have an effect."""

    def __init__(self, **options: Any) -> None:
        # Texts have words of users in them: [fd00::1] is no style, and :100: is no picture.
        super().__init__(markup=False, emoji=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the parts of the printed text."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


class LocalPath(click.Path):
    """A path of this machine. A URL is refused: it would be a folder below the current one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if "://" in str(value):
            self.fail(f"expected a path of this machine, found the URL {value}", param, ctx)
        return super().convert(value, param, ctx)


def echo(text: str, **options: Any) -> None:
    """Print a line that may have words of users or files in it."""
    click.echo(printable(text), **options)


def is_closed() -> bool:
    """Return whether this process prints to a terminal that was closed."""
    try:
        termios.tcgetattr(sys.__stdout__ or 1)
    except termios.error as error:
        return bool(error.args[0] == errno.EIO)
    return False

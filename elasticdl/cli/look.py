"""Reads `--quiet` and `--log_format`: how a command shows the job that it starts."""

from __future__ import annotations

import rich_click as click


def look_options() -> list[click.Option]:
    """Return both options."""
    return [
        click.RichOption(
            ["--quiet"],
            is_flag=True,
            panel="Command",
            help="Print errors only. --summary writes the result to a file.",
        ),
        click.RichOption(
            ["--log_format"],
            type=click.Choice(["text", "json"]),
            default="text",
            show_default=True,
            panel="Command",
            help="How to print progress: as text, or as one JSON object a line.",
        ),
    ]


def look_of(context: click.Context, quiet: bool, log_format: str) -> str:
    """Return the form that the options ask for: text, json or quiet.

    Raises:
        UsageError: The options ask for two forms.
    """
    if quiet and log_format == "json":
        raise click.UsageError("--quiet and --log_format=json: expected one of them", context)
    return "quiet" if quiet else log_format

"""Reads `--detach`, `--wait` and `--dry_run`: what a command does with its job."""

from __future__ import annotations

from enum import StrEnum

import rich_click as click

from elasticdl.settings.launcher import launchers


class Stay(StrEnum):
    """The ways a command can go on after it has started a job."""

    TIED = "tied"  # shows it to its end; the job ends with the command, if the launcher can do that
    WAIT = "wait"  # shows it to its end; the job goes on without the command
    DETACH = "detach"  # ends; the job goes on


def stay_options() -> list[click.Option]:
    """Return `--detach` and `--wait`."""
    return [
        click.RichOption(
            ["--detach"],
            is_flag=True,
            panel="Command",
            help="Start the job and return. elasticdl attach shows the job later.",
        ),
        click.RichOption(
            ["--wait"],
            is_flag=True,
            panel="Command",
            help="Show the job until it ends. If this command ends earlier, the job goes on. (A "
            "job on this machine without --wait or --detach ends with its command.)",
        ),
    ]


def stay_of(context: click.Context, wait: bool, detach: bool) -> Stay:
    """Return the way that the two flags ask for.

    Raises:
        UsageError: Both flags are given.
    """
    if wait and detach:
        raise click.UsageError("--wait and --detach: expected one of them", context)
    return Stay.DETACH if detach else Stay.WAIT if wait else Stay.TIED


def dry_run_options() -> list[click.RichOption]:
    """Return `--dry_run`, if a launcher can print what it would ask for."""
    return [
        click.RichOption(["--dry_run"], is_flag=True, help=facts.dry_run, panel=facts.title)
        for facts in launchers().values()
        if facts.dry_run
    ][:1]

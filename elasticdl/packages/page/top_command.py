"""Implements `elasticdl top`, which shows what every process of a running job does now."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import rich_click as click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from elasticdl.cli.terminal import Terminal
from elasticdl.errors import UnavailableError
from elasticdl.job import Role, Usage
from elasticdl.job.status import JobStatus, MemberStatus

_ANSWER_SECONDS = 5.0
_MOST_LOOKS = 10  # with --once, until every process was heard twice
_MOST_MISSES = 3  # with --once, of a master that does not answer
_ROOM_LINES = 14  # of the terminal, for what is not a process

Known = dict[tuple[Role, int], tuple[Usage | None, Usage]]
"""The last usage that each process sent, and the one before."""


@click.command()
@click.argument("name", metavar="JOB")
@click.option("--seconds", type=click.FloatRange(min=0.2), default=1.0, help="Between two updates.")
@click.option("--once", is_flag=True, help="Print the table once, and end.")
def top(name: str, seconds: float, once: bool) -> int:
    """Show what each process of a running job does: its label, cores, memory and network.

    JOB is the folder or name of a job. The display ends with the job; restarts of the master do not
    end it. Ctrl-C ends only the display: the job goes on.
    """
    from elasticdl.cli.display import panel
    from elasticdl.launchers import choose

    job = choose.find(name)
    console = Terminal()
    known: Known = {}
    looks, misses, problem = 0, 0, ""
    found: JobStatus | None = None
    live = Live(console=console, screen=not once and console.is_terminal, auto_refresh=False)
    with contextlib.ExitStack() as ends:
        if not once:
            ends.enter_context(live)
        while job.end(0.0) is None:
            try:
                with contextlib.closing(job.connect(_ANSWER_SECONDS)) as client:
                    found = client.status(_ANSWER_SECONDS, with_members=True)
                looks, problem = looks + 1, ""
            except UnavailableError as error:
                misses, problem = misses + 1, str(error)
                if once and misses == _MOST_MISSES and job.end(0.0) is None:
                    raise
            if found is None:
                live.update(Text(f"no answer yet: {problem}"), refresh=not once)
            else:
                problem = problem and f"{problem}; the numbers are those of its last answer"
                most = len(found.members) if once else max(1, console.height - _ROOM_LINES)
                known = heard(found.members, known)
                rows = table(found.members, known, most)
                shown: RenderableType = Group(panel(found, last_event=problem), rows)
                is_known = all(earlier is not None for earlier, _ in known.values())
                # Rates need two heartbeats of each process, and a silent process must not delay the
                # answer for ever.
                if once and looks >= 2 and (is_known or looks == _MOST_LOOKS):
                    console.print(shown)
                    return 0
                live.update(shown, refresh=not once)
            job.end(seconds)
    click.echo("the job has ended; elasticdl status tells how")
    return 0


def heard(members: Sequence[MemberStatus], known: Known) -> Known:
    """Return what is known of processes after a look; a look may come without a new heartbeat."""
    found: Known = {}
    for member in members:
        key, usage = (member.role, member.index), member.usage
        if usage is None:
            continue
        earlier, last = known.get(key, (None, usage))
        if usage.began != last.began:
            earlier, last = None, usage  # another process than before
        found[key] = (last, usage) if usage != last else (earlier, last)
    return found


def table(members: Sequence[MemberStatus], known: Known, most: int) -> RenderableType:
    """Return a table of what processes do, with at most so many lines."""
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("process", "state", "at", "trains", "cores", "memory", "sent/s", "received/s"):
        grid.add_column(head, justify="left" if head in ("process", "state", "at") else "right")
    for member in members[:most]:
        words = _row(*known[member.role, member.index]) if member.usage else ["-"] * 6
        grid.add_row(f"{member.role}-{member.index}", member.state, *words)
    if len(members) <= most:
        return grid
    return Group(grid, Text(f"... and {len(members) - most} more", "dim"))


def _row(earlier: Usage | None, last: Usage) -> list[str]:
    """Return label, share of training, cores, memory and network, between two heartbeats."""
    label, memory = str(last.label), _bytes(last.resident_bytes)
    passed = 0.0 if earlier is None else _seconds(last) - _seconds(earlier)
    if earlier is None or passed <= 0.0:
        return [label, "-", "-", memory, "-", "-"]
    trained = last.label_seconds.get("train", 0.0) - earlier.label_seconds.get("train", 0.0)
    return [
        label,
        f"{trained / passed:.0%}",
        f"{(last.cpu_seconds - earlier.cpu_seconds) / passed:.2f}",
        memory,
        _bytes((last.bytes_sent - earlier.bytes_sent) / passed),
        _bytes((last.bytes_received - earlier.bytes_received) / passed),
    ]


def _seconds(usage: Usage) -> float:
    return sum(usage.label_seconds.values())


def _bytes(value: float) -> str:
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"

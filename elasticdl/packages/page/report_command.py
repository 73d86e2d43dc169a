"""Implements `elasticdl report`, which tells as text, page or pictures how a job spent its time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import rich_click as click
from rich.table import Table
from rich.text import Text

from elasticdl.cli.terminal import LocalPath, Terminal
from elasticdl.distribution import install
from elasticdl.errors import ConfigError, ElasticdlError
from elasticdl.runtime import open_files

if TYPE_CHECKING:  # what --help need not wait for
    from elasticdl.job.status import JobStatus
    from elasticdl.packages.page.history.fold import History


Format = Literal["svg", "png"]

_INCHES = (7.0, 3.2)
_DOTS_PER_INCH = 150


def write_plots(board: Mapping[str, Any], folder: Path, formats: Sequence[Format]) -> list[Path]:
    """Write loss and throughput over time; return the files.

    Args:
        board: A whole history, as `history.board.board` returns it.
        folder: Gets the files.
        formats: The formats of each picture.

    Raises:
        ConfigError: Matplotlib is not installed, or a file cannot be written.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(f"--svg and --png need Matplotlib: {install('plots')}") from error
    written = []
    series, step = board["series"], board["grid"]["step"]
    for name, label in (("throughput", "records/s"), ("loss", "loss")):
        values = series[name]
        minutes = [(series["from"] + at + 0.5) * step / 60 for at in range(len(values))]
        # Text stays text in SVG, and the same job always gives the same file.
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "elasticdl"}):
            figure = Figure(figsize=_INCHES, layout="constrained")
            axes = figure.subplots()
            axes.plot(minutes, [float("nan") if value is None else value for value in values])
            axes.set_xlabel("minutes")
            axes.set_ylabel(label)
            axes.grid(alpha=0.3)
            if name == "throughput":
                axes.set_ylim(bottom=0.0)
                for dip in board["dips"]:
                    began = board["grid"]["began"]
                    axes.axvspan(
                        (dip["begin"] - began) / 60, (dip["end"] - began) / 60, alpha=0.2, lw=0
                    )
            for format in formats:
                path = folder / f"{name}.{format}"
                # A date would make each file different.
                metadata = {"Date": None} if format == "svg" else None
                with writing(path):
                    figure.savefig(path, dpi=_DOTS_PER_INCH, metadata=metadata)
                written.append(path)
    return written


PAGE = "report.html"


@click.command()
@click.argument("name", metavar="JOB")
@click.option("--html", "as_html", is_flag=True, help=f"Write {PAGE}, a single file.")
@click.option("--svg", is_flag=True, help="Write loss.svg and throughput.svg.")
@click.option("--png", is_flag=True, help="Write loss.png and throughput.png.")
@click.option(
    "--output",
    type=LocalPath(path_type=Path, file_okay=False),
    help="Folder to write to [default: the job's folder, or the current one].",
)
def report(name: str, as_html: bool, svg: bool, png: bool, output: Path | None) -> None:
    """Show how a job spent its time, and what slowed it down.

    JOB is the folder or name of a job, running or ended, or a folder with a copy of its events/.
    The report is made from these events alone, so you can make it at any time.
    """
    from elasticdl.packages.page.history.board import board
    from elasticdl.packages.page.history.fold import History

    # The log of each process is a file or more, and all are read side by side.
    open_files.raise_limit()
    events, config, folder, end = _job(name)
    history = History.of(events)
    if not history.version:
        raise ConfigError(f"{name}: expected the event log of a job, found no event")
    found = with_end(board(history, config=config), end)
    place = output or folder
    with writing(place):
        place.mkdir(parents=True, exist_ok=True)
    written = [_write_page(found, place / PAGE)] if as_html else []
    formats = [f for f, is_wanted in (("svg", svg), ("png", png)) if is_wanted]
    written += write_plots(found, place, formats) if formats else []  # type: ignore[arg-type]
    if not written:
        _print(history, found)
    for path in written:
        click.echo(path)


def with_end(found: dict[str, Any], end: JobStatus | None) -> dict[str, Any]:
    """Return the facts of a report with a job's end, for a job whose processes could not log it."""
    if end is None or found["ended"] is not None:
        return found
    return {**found, "phase": end.status, "message": end.message, "ended": found["latest"]}


def _write_page(found: dict[str, Any], path: Path) -> Path:
    from elasticdl.packages.page.document import html

    with writing(path):
        path.write_text(html(found), "utf-8")
    return path


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name a file or folder if it cannot be written within the block.

    Raises:
        ConfigError: It cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error


def _job(
    name: str,
) -> tuple[Iterable[dict[str, Any]], dict[str, Any], Path, JobStatus | None]:
    """Return the events of a job, its settings without secrets, its folder, and its end."""
    from elasticdl.launchers import choose
    from elasticdl.observe.events import FOLDER, read_events
    from elasticdl.runtime import process

    bare = Path(name)
    if (bare / FOLDER).is_dir():
        end = None
        if (bare / process.CONFIG_FILE).is_file():
            with suppress(ElasticdlError):  # of another machine, or cluster: its log is enough
                end = choose.find(name).end(0.0)
        return read_events(bare), _settings(bare / process.CONFIG_FILE), bare, end
    job = choose.find(name)
    job_dir = Path(job.places.get("job_dir", "."))
    events = job.events(follow=False, with_beats=True)
    return events, _settings(job_dir / process.CONFIG_FILE), job_dir, job.end(0.0)


def _settings(path: Path) -> dict[str, Any]:
    """Return the settings of a job; empty if there are none, or another version wrote them."""
    from elasticdl.config import JobConfig
    from elasticdl.errors import ConfigError

    try:
        return JobConfig.read(path).shown()
    except ConfigError:
        return {}


def _print(history: History, found: dict[str, Any]) -> None:
    console = Terminal()
    workers = found["goodput"]["workers"]
    table = Table(title="Where the seconds of the workers went", title_justify="left")
    for head in ("", "seconds", "share"):
        table.add_column(head, justify="left" if not head else "right")
    parts = {"training that counted": workers["good"], **workers["losses"]}
    for label, seconds in parts.items():
        share = seconds / workers["seconds"] if workers["seconds"] else 0.0
        table.add_row(label, f"{seconds:,.1f}", f"{share:.1%}")
    table.add_section()
    table.add_row("all", f"{workers['seconds']:,.1f}", "100.0%")
    console.print(table)
    if found["bound"]:
        bound = f"{found['bound']['text']} {found['bound']['advice']}\n"
        console.print(bound, soft_wrap=True)
    if found["overfitting"]:
        console.print(f"{found['overfitting']}\n", soft_wrap=True)
    if found["dips"]:
        dips = Table(title="When the throughput dipped", title_justify="left")
        for head in ("at", "for", "of usual", "cause"):
            dips.add_column(head, justify="left" if head == "cause" else "right")
        for dip in found["dips"]:
            begin = dip["begin"] - (history.bins.began or 0.0)
            seconds = dip["end"] - dip["begin"]
            dips.add_row(
                f"{begin:,.0f} s", f"{seconds:,.0f} s", f"{dip['share']:.0%}", Text(dip["cause"])
            )
        console.print(dips)

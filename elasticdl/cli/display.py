"""Shows a running job: by a live panel on a terminal, elsewhere by lines in a log."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from elasticdl.cli import status_views
from elasticdl.cli.pace import Pace
from elasticdl.cli.terminal import Terminal
from elasticdl.job import OF_MODEL, Role
from elasticdl.job.status import BestEvaluation, EpochLedger, JobStatus, MemberStatus, moment

LINE_SECONDS = 5.0
PROBLEM_SECONDS = 10.0
"""The failure of a task is printed after this time: if the job ends by it, the job's error says so.
"""

_MANY_EPOCHS = 20
_SET_ASIDE = " set aside: "  # begins in a picture's message what is said of tasks that failed


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to the job, and when, in seconds since the command began."""

    seconds: float
    text: str


class Display:
    """Shows pictures of a job and the events of the job; a display is made for one job.

    A display is used as a context. `show` may be called for every picture: the panel is drawn a few
    times a second, and a line is printed every few seconds, at any rate of calls. One thread uses a
    display.
    """

    def __init__(
        self,
        has_processes: bool = True,
        may_redraw: bool = True,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        loading: str = "the model",
    ) -> None:
        """Prepare to show a job.

        Args:
            has_processes: Whether there are workers and ps replicas to count.
            may_redraw: Whether the panel may be drawn on a terminal; else lines alone are printed,
                which leave room for a debugger.
            console: Prints the display; by default it prints to stdout.
            clock: Returns seconds, for the times of events and the rate of lines.
            loading: The name of what processes load before the first record: TensorFlow, PyTorch.
        """
        self._has_processes = has_processes
        self._may_redraw = may_redraw
        self._console = console or Terminal()
        self._clock = clock
        self._next_line = clock()
        self._started = clock()
        self._live: Live | None = None
        self.last: JobStatus | None = None
        self.events: list[Event] = []
        self._problems: dict[str, float] = {}  # -> when it was heard of; inf once it is printed
        self._told_data: tuple[str, ...] = ()
        self._loading = loading
        self._pace = Pace()

    def __enter__(self) -> Self:
        is_screen = self._console.is_terminal and not self._console.is_dumb_terminal
        if is_screen and self._may_redraw:
            self._live = Live(
                get_renderable=self._panel,
                console=self._console,
                refresh_per_second=5,
                # The panel vanishes at the end, and the summary takes its place.
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def starts(self) -> None:
        """Print what the processes load; there is no picture of the job yet."""
        if self._live is None:
            self.tell(f"loading {self._loading}")

    def show(self, status: JobStatus) -> None:
        """Take in a new picture of the job, and show it."""
        before = self.last
        self.last = status
        self._pace.note(status.seconds, status.records_done)
        is_news = before is not None and status.message != before.message
        if is_news and status.message and status.status not in ("pending", "failed"):
            # A task that was set aside fails the job later, whose error then repeats the message.
            tell = self.problem if _SET_ASIDE in status.message else self.note
            tell(status.message)
        self._say_problems(self._clock() - PROBLEM_SECONDS)
        if status.data_check and not self._told_data:
            self._told_data = status.data_check
            for line in status.data_check:
                self._print(": ".join(_found(line)), "yellow" if is_warning(line) else "dim")
        if self._live is not None:
            return
        has_news = before is None or before.status != status.status
        if has_news or self._clock() >= self._next_line:
            self._next_line = self._clock() + LINE_SECONDS
            self._print(self._line(status))

    def note(self, event: str) -> None:
        """Show an event, such as that a process was replaced."""
        if self.events and self.events[-1].text == event:
            return  # an event that is in the picture of the job as well
        self._keep(event)
        self._print(event, style="dim")

    def problem(self, text: str) -> None:
        """Show once why a task failed; if the job soon ends by it, the error alone says so."""
        if text not in self._problems:
            self._problems[text] = self._clock()
            self._keep(text)

    def _say_problems(self, before: float) -> None:
        """Print the problems from before a time that were not printed yet."""
        for text, at in self._problems.items():
            if at <= before:
                self._problems[text] = math.inf
                if not any(other != text and other in text for other in self._problems):
                    self._print(text, style="yellow")

    def tell(self, words: str) -> None:
        """Print words for the person at the terminal; they are not in `--summary`."""
        self._print(words, style="dim")

    def finish(self, status: JobStatus, places: dict[str, str]) -> None:
        """Print how the job ended: its ledger, its metrics, and the places of its results."""
        self.last = status
        if status.status == "failed":
            # The message of a failed job repeats the problem by which it failed.
            left = {text: at for text, at in self._problems.items() if text not in status.message}
            self._problems = left
        self._say_problems(self._clock())
        self._console.print(_summary(status), soft_wrap=True, highlight=False)
        for line in status.data_check or self._told_data:
            subject, said = _found(line)
            words = Text.assemble(f"{subject:<12}", (said, "yellow" if is_warning(line) else ""))
            self._console.print(words, soft_wrap=True, highlight=False)
        if status.ledger:
            self._console.print(_ledger_table(status.ledger))
        for table in status_views.tables(status, is_over=True):
            self._console.print(table)
        for skipped in status.skipped:
            self._console.print(Text(f"skipped: {skipped}", "yellow"), soft_wrap=True)
        for name, path in places.items():
            self._console.print(Text.assemble((f"{name:<16}", "dim"), path), soft_wrap=True)

    def _keep(self, event: str) -> None:
        self.events.append(Event(self._seconds(), event))

    def _seconds(self) -> float:
        return self._clock() - self._started

    def _print(self, words: str, style: str = "") -> None:
        words = words.replace("\n", "\n       ")  # what begins a line is ours
        line = Text.assemble((f"[{duration(self._seconds())}] ", "dim"), (words, style))
        self._console.print(line, soft_wrap=True, highlight=False)

    def _panel(self) -> RenderableType:
        if self.last is None:
            text = Text(f"starting: loading {self._loading} ...")
            return Panel(text, title="elasticdl", title_align="left")
        left = self._seconds_left(self.last)
        return panel(self.last, self._has_processes, self._last_event(), left, self._loading)

    def _seconds_left(self, status: JobStatus) -> float | None:
        """Return how many seconds the job still needs; None if unknown, and for a stream."""
        # A stream has no end, so its total grows while it is trained.
        return None if status.partitions else self._pace.seconds_left(status.records_total)

    def _last_event(self) -> str:
        return self.events[-1].text if self.events else ""

    def _line(self, status: JobStatus) -> str:
        """Return one line for a log; the command's error says why a job failed."""
        is_said = status.status == "failed" or _SET_ASIDE in status.message
        says_why = status.message and not is_said
        parts = [
            f"{status.status} ({status.message})" if says_why else status.status,
            *_epochs(status),
            f"{status.records_done:,} of {status.records_total:,} records ({_percent(status)})",
        ]
        if _is_loading(status):
            return " | ".join([*parts, f"loading {self._loading}", *self._processes(status)])
        parts += _speed(status, self._seconds_left(status))
        if status.loss is not None:
            parts.append(f"loss {_losses(status)}")
        if status.train_metrics:
            parts.append(f"training {_train_metrics(status)}")
        if status.metrics:
            parts.append(f"validation {_evaluation(status)}")
        return " | ".join([*parts, *self._processes(status)])

    def _processes(self, status: JobStatus) -> list[str]:
        return [_processes(status)] if self._has_processes else []


def panel(
    status: JobStatus,
    has_processes: bool = True,
    last_event: str = "",
    seconds_left: float | None = None,
    loading: str = "the model",
) -> RenderableType:
    """Return a picture of a job that runs."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim")
    rows.add_column()
    for name, value in _rows(status, has_processes, seconds_left, loading):
        rows.add_row(name, Text(value, "yellow" if name == "warning" else ""))
    for name, text in (("note", status.message), ("last event", last_event)):
        if text:
            rows.add_row(name, Text(text, "yellow", overflow="ellipsis", no_wrap=True))
    bar = ProgressBar(total=max(status.records_total, 1), completed=status.records_done)
    title = f"{status.job_name}: {status.status}"
    return Panel(Group(Padding(bar), rows), title=title, title_align="left")


def members_table(members: Sequence[MemberStatus]) -> Table:
    """Return who belongs to a job."""
    table = Table(title="Processes", title_justify="left")
    for name in ("process", "state", "for", "last heard of", "tasks done", "pid", "address"):
        table.add_column(name, justify="left" if name in ("process", "state") else "right")
    for member in members:
        silent = "-" if member.state != "alive" else f"{member.silent_seconds:.0f} s ago"
        table.add_row(
            f"{member.role}-{member.index}",
            member.state,
            duration(member.seconds),
            silent,
            f"{member.tasks_done:,}" if member.role is Role.WORKER else "",
            str(member.pid or ""),
            member.address,
        )
    return table


def _rows(
    status: JobStatus, has_processes: bool, seconds_left: float | None, loading: str
) -> Iterator[tuple[str, str]]:
    """Yield the lines of the panel."""
    now = [f"loading {loading}"] if _is_loading(status) else _speed(status, seconds_left)
    done = f"{status.records_done:,} of {status.records_total:,} ({_percent(status)})"
    yield "records", ", ".join([done, *now])
    yield from status_views.rows(status)
    if status.num_epochs and not status.partitions:
        yield "epoch", f"{min(status.epoch + 1, status.num_epochs)} of {status.num_epochs}"
    yield (
        "tasks",
        f"{status.tasks_todo} to do, {status.tasks_doing} under way, {status.tasks_done} done",
    )
    yield "loss", _losses(status)
    if status.train_metrics:
        yield "training", _train_metrics(status)
    if status.metrics:
        yield "validation", _evaluation(status)
    if status.best is not None:
        yield "best", _best(status.best)
    if has_processes:
        yield "processes", _processes(status)
    yield "updates", _updates(status)
    if status.overfitting:
        yield "warning", status.overfitting


def _is_loading(status: JobStatus) -> bool:
    """Return whether no record was trained yet because the model is not loaded yet."""
    return status.status == "running" and not status.records_done and not status.message


def _speed(status: JobStatus, seconds_left: float | None) -> list[str]:
    """Return how fast records are done and when all will be done, as far as this is known."""
    parts = [_rate(status)] if status.records_per_second else []
    if seconds_left is not None and status.status == "running":
        parts.append(f"{duration(seconds_left)} left")
    return parts


def _rate(status: JobStatus) -> str:
    rate = status.records_per_second
    return f"{rate:,.0f} records/s" if rate >= 10 else f"{rate:.2g} records/s"


def _processes(status: JobStatus) -> str:
    workers, replicas = status.num_workers_alive, status.num_ps_alive
    parts = [f"{workers} worker{'' if workers == 1 else 's'}"]
    if replicas:
        parts.append(f"{replicas} ps replica{'' if replicas == 1 else 's'}")
    return ", ".join(parts)


def _updates(status: JobStatus) -> str:
    """Return the number of updates, and how late gradients came if some did."""
    if not status.max_staleness:
        return f"{status.model_version:,}"
    return (
        f"{status.model_version:,}; a gradient was {status.mean_staleness:.1f} updates late on "
        f"average, {status.max_staleness} at most"
    )


def _summary(status: JobStatus) -> Text:
    """Return the end of a job: its result first, then its work."""
    is_finished = status.status == "finished"
    text = Text.assemble(
        (f"{status.job_name}: {status.status}", "bold green" if is_finished else "bold red"),
        f" {'in' if is_finished else 'after'} {duration(status.seconds)}",
    )
    if status.metrics:
        text.append(f"\nvalidation  {_evaluation(status)}")
    if status.best is not None:
        text.append(f"\nbest        {_best(status.best)}")
    if status.train_metrics:
        text.append(f"\ntraining    {_train_metrics(status)}")
    if status.loss is not None:
        text.append(f"\nloss        {_losses(status)}")
    speed = f", {_rate(status)}" if status.records_per_second else ""
    text.append(f"\nrecords     {status.records_done:,} of {status.records_total:,}{speed}")
    if status.model_version:
        text.append(f"\nupdates     {_updates(status)}")
    for name, words in status_views.rows(status, is_over=True):
        text.append(f"\n{name:<12}{words}")
    if status.num_recomputed:
        text.append(f"\nrecomputed  {status.num_recomputed:,} minibatches were computed again")
    if status.overfitting:
        text.append(f"\nwarning     {status.overfitting}", "yellow")
    return text


def is_warning(line: str) -> bool:
    """Return whether a line that was found before the first record is a warning."""
    return line.startswith(("warning: ", OF_MODEL))


def _found(line: str) -> tuple[str, str]:
    """Split a line that was found before the first record into its subject and its statement."""
    said = line.removeprefix(OF_MODEL)
    return ("data" if said == line else "model"), said


def _ledger_table(ledger: tuple[EpochLedger, ...]) -> Table:
    table = Table(title="Ledger: what became of each record", title_justify="left")
    # `feed` may leave records out or make several examples of one, so examples have their own
    # column.
    has_examples = any(row.examples != row.records for row in ledger)
    examples = ("examples",) if has_examples else ()
    for name in ("epoch", "records", "trained once", "repeated", "lost", *examples):
        table.add_column(name, justify="right")
    for row in ledger:
        is_exact = row.repeated == row.lost == 0
        if is_exact and _MANY_EPOCHS // 2 < row.epoch + 1 <= len(ledger) - _MANY_EPOCHS // 2:
            continue  # of many epochs the first, the last, and those that are not as they should
        table.add_row(str(row.epoch + 1), *_ledger_cells(row, has_examples))
    if len(ledger) > 1:
        table.add_section()
        total = EpochLedger(
            epoch=-1,
            records=sum(row.records for row in ledger),
            trained_once=sum(row.trained_once for row in ledger),
            repeated=sum(row.repeated for row in ledger),
            lost=sum(row.lost for row in ledger),
            examples=sum(row.examples for row in ledger),
        )
        table.add_row("all", *_ledger_cells(total, has_examples))
    return table


def _ledger_cells(row: EpochLedger, has_examples: bool) -> list[Text]:
    wrong = [Text(f"{n:,}", "bold red" if n else "") for n in (row.repeated, row.lost)]
    cells = [Text(f"{row.records:,}"), Text(f"{row.trained_once:,}"), *wrong]
    return [*cells, Text(f"{row.examples:,}")] if has_examples else cells


def _epochs(status: JobStatus) -> list[str]:
    """Return the epoch that the job is in; a job without epochs has none."""
    if not status.num_epochs or status.status in ("finished", "failed"):
        return []
    return [f"epoch {min(status.epoch + 1, status.num_epochs)} of {status.num_epochs}"]


def _percent(status: JobStatus) -> str:
    return f"{status.records_done / max(status.records_total, 1):.0%}"


def _losses(status: JobStatus) -> str:
    """Return the loss of recent records, and the loss of the epoch so far."""
    if status.loss is None:
        return "-"
    epoch = "" if status.epoch_loss is None else f" (epoch {status.epoch_loss:.5g})"
    return f"{status.loss:.5g}{epoch}"


def _train_metrics(status: JobStatus) -> str:
    """Return the metrics of recently trained records, and of the epoch where it was measured."""
    epoch = status.train_metrics_epoch + 1
    parts = [
        f"{name} {status.recent_train_metrics.get(name, value):.5g} (epoch {epoch}: {value:.5g})"
        for name, value in sorted(status.train_metrics.items())
    ]
    return f"{', '.join(parts)}, {status.train_metrics_records:,} records measured"


def _evaluation(status: JobStatus) -> str:
    """Return the metrics of the last evaluation, and the number of its records."""
    of = f", of {status.evaluated_records:,} records" if status.evaluated_records else ""
    return _metrics(status.metrics) + of


def _best(best: BestEvaluation) -> str:
    """Return the best evaluation, its time, and the place of its model."""
    when = moment(best.num_epochs, best.version)
    kept = (
        f"kept in the checkpoint of version {best.checkpoint}"
        if best.checkpoint is not None
        else "no checkpoint of it is written"
    )
    return f"{best.metric} {best.value:.5g} {when}; {kept}"


def _metrics(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.5g}" for name, value in sorted(metrics.items()))


def duration(seconds: float) -> str:
    """Return a time in the form 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"

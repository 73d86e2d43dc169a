"""Implements commands for running jobs: attach, status, logs, events, scale, stop."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import rich_click as click

from elasticdl.cli.terminal import Terminal, echo
from elasticdl.errors import (
    ConfigError,
    ElasticdlError,
    JobFailedError,
    LaunchError,
    UnavailableError,
)
from elasticdl.job import Role
from elasticdl.job.status import JobStatus, no_status

if TYPE_CHECKING:  # what --help need not wait for
    from elasticdl.launchers.base import SubmittedJob
    from elasticdl.rpc.client import JobClient

T = TypeVar("T")

ANSWER_SECONDS = 5.0  # what a master gets to answer one question
_STOP_SECONDS = 60.0  # what a job gets to be gone after it was cancelled
_LOOK_SECONDS = 1.0  # how often to look for logs of new processes
_WAITING_LINES = 10_000  # of all logs, while the terminal or the next command of a pipe is slow

_JOB = click.argument("name", metavar="JOB")


@click.command()
@_JOB
def attach(name: str) -> int:
    """Show a running job until it ends.

    JOB is the folder of a job, or its name (the newest job of this name below jobs/). Ctrl-C ends
    only this command: the job goes on. The exit code is that of the job: 0 if it has finished.
    """
    from elasticdl.cli.display import Display
    from elasticdl.cli.run import exit_code, left_alone
    from elasticdl.cli.view import LeftError, view

    job = _find(name)
    display = Display()
    status = job.end(0.0)
    if status is None:
        try:
            with display:
                status = view(job, display, since=time.time())
        except LeftError as left:
            return left_alone(str(left))
    display.finish(status, job.places)
    return exit_code(status)


@click.command()
@_JOB
@click.option("--json", "as_json", is_flag=True, help="Print JSON, like --summary.")
def status(name: str, as_json: bool) -> None:
    """Show the progress and the processes of a job, or how it ended."""
    from elasticdl.cli import display, status_views
    from elasticdl.cli.summary import summarise

    job = _find(name)
    found, is_running = picture_now(job, name, with_members=True)
    if as_json:
        picture = summarise(found, (), job.places)
        picture["members"] = [dataclasses.asdict(member) for member in found.members]
        echo(json.dumps(picture, indent=2))
    elif is_running:
        console = Terminal()
        console.print(display.panel(found))
        console.print(display.members_table(found.members))
        for table in status_views.tables(found):
            console.print(table)
        if job.page:
            echo(f"page  {job.page}")
        targets = Path(job.places.get("job_dir", "")) / "metrics"
        if "job_dir" in job.places and targets.is_dir():
            echo(f"metrics  {targets}/*.json")
        if found.message:
            echo(found.message)
    else:
        display.Display().finish(found, job.places)
        if found.message:
            echo(found.message)


@click.command()
@_JOB
@click.argument("processes", metavar="[PROCESS]...", nargs=-1)
@click.option("--follow", "-f", is_flag=True, help="Follow the output until the job ends.")
def logs(name: str, processes: tuple[str, ...], follow: bool) -> None:
    """Print the output of the processes of a job.

    PROCESS is master, worker-3, ps-0 or modelserver-0. Without PROCESS the output of all is
    printed, and each line begins with the name of its process.
    """
    job = _find(name)
    wanted = [_process(word) for word in processes]
    if follow:
        begun = job.processes()
        for word, process in zip(processes, wanted, strict=True):
            if process not in begun:
                echo(f"{word} has not begun; waiting for it", err=True)
    if len(wanted) == 1:
        for line in job.logs(*wanted[0], follow):
            echo(line)
        return
    for who, line in _all_logs(job, wanted, follow):
        echo(f"{who} | {line}")


@click.command()
@_JOB
@click.option("--follow", "-f", is_flag=True, help="Follow the events until the job ends.")
@click.option("--json", "as_json", is_flag=True, help="Print each event as one line of JSON.")
@click.option("--beats", is_flag=True, help="Also print the reports of each heartbeat.")
def events(name: str, follow: bool, as_json: bool, beats: bool) -> None:
    """Print the events of a job."""
    from elasticdl.observe.events import finite

    for event in _find(name).events(follow, with_beats=beats):
        echo(json.dumps(finite(event)) if as_json else _event_line(event))


@click.command()
@_JOB
@click.option("--workers", type=click.IntRange(min=1), help="The new number of workers.")
@click.option("--ps", type=click.IntRange(min=1), help="The new number of ps replicas.")
def scale(name: str, workers: int | None, ps: int | None) -> None:
    """Change the number of workers or ps replicas of a running job.

    New workers start at once. If there are too many workers, the youngest finish their tasks and
    leave. If the number of ps replicas changes, the model moves to the new replicas while it is
    trained. No record is lost or trained twice.
    """
    if workers is None and ps is None:
        raise ConfigError("give the number of workers (--workers), of ps replicas (--ps), or both")
    job = _find(name)
    if workers is not None:
        ask(job, lambda client: client.set_num_workers(workers, ANSWER_SECONDS))
        echo(f"{job.name} goes on with {workers} workers")
    if ps is not None:
        ask(job, lambda client: client.set_num_ps(ps, ANSWER_SECONDS))
        echo(f"the model of {job.name} moves to {ps} ps replicas: see elasticdl events")


@click.command()
@_JOB
@click.option("--pause", is_flag=True, help="End the processes; the job can be continued.")
@click.option("--now", is_flag=True, help="End the processes at once, even if no master answers.")
@click.option(
    "--drain", is_flag=True, help="On a stream: train what has arrived by now, then finish."
)
def stop(name: str, pause: bool, now: bool, drain: bool) -> None:
    """Cancel a job: its processes end, and it counts as failed.

    A cancelled job cannot be continued, but a new job can begin with its newest checkpoint
    (--checkpoint_dir_for_init). With --pause the job is not cancelled: the same train command with
    --job_dir continues it. With --drain a job on a stream trains the data that has arrived,
    evaluates and exports the model, and finishes.
    """
    if pause + now + drain > 1:
        raise ConfigError("--pause, --now and --drain end a job in different ways: give one")
    job = _find(name)
    if job.end(0.0) is not None:
        raise JobFailedError(f"the job {job.name} has ended already; see elasticdl status")
    if drain:
        ask(job, lambda client: client.drain(ANSWER_SECONDS))
        echo(f"{job.name} finishes when what has arrived is trained; elasticdl attach shows it")
        return
    last: JobStatus | None = None
    if now:
        job.delete()
    elif pause:
        job.interrupt()
    else:
        try:
            last = ask(job, _cancel)
        except UnavailableError as error:
            if job.end(0.0) is not None:
                raise
            if not (why := job.waiting()):
                raise UnavailableError(
                    f"{error}; elasticdl stop --now {job.name} ends its processes all the same"
                ) from error
            echo(f"{job.name} has no running master ({why}); what it has started is deleted")
            job.delete()
    end = job.end(_STOP_SECONDS)
    if end is None:
        raise UnavailableError(
            f"the job {job.name} was told to stop, and its processes have not ended after "
            f"{_STOP_SECONDS:.0f} s; elasticdl stop --now {job.name} does not wait for them"
        )
    echo(f"{job.name}: {end.status}{f' ({end.message})' if end.message else ''}")
    if last is not None and last.checkpoints:
        echo(
            f"its newest checkpoint is version {max(last.checkpoints)}; a new job with "
            "--checkpoint_dir_for_init begins there"
        )
    elif pause and end.status != "suspended":  # else its message says how
        echo(f"the same command with --job_dir={job.name} continues the job")


def _find(name: str) -> SubmittedJob:
    from elasticdl.launchers import choose

    return choose.find(name)


def picture_now(job: SubmittedJob, name: str, with_members: bool = False) -> tuple[JobStatus, bool]:
    """Return the newest or the last picture of a job, and whether the job goes on.

    Raises:
        UnavailableError: The job's master does not answer, and the reason is unknown.
    """
    if (end := job.end(0.0)) is not None:
        return end, False
    try:
        return ask(job, lambda client: client.status(ANSWER_SECONDS, with_members)), True
    except UnavailableError:
        if (end := job.end(0.0)) is not None:  # it has ended meanwhile
            return end, False
        if why := job.waiting():
            before = job.before() or no_status(name, 0)
            return dataclasses.replace(before, status="pending", message=why), True
        raise


def ask(job: SubmittedJob, question: Callable[[JobClient], T]) -> T:
    """Ask the master of a job a question.

    Raises:
        UnavailableError: The master does not answer, or the job has ended.
    """
    with contextlib.closing(job.connect(ANSWER_SECONDS)) as client:
        try:
            return question(client)
        except UnavailableError:
            if job.end(0.0) is None:
                raise
            raise UnavailableError(f"the job {job.name} has ended") from None


def _cancel(client: JobClient) -> JobStatus:
    last = client.status(ANSWER_SECONDS)
    client.stop("by elasticdl stop", ANSWER_SECONDS)
    # Its master waits for a while until somebody has asked how it went, if it is not gone already.
    with contextlib.suppress(UnavailableError):
        last = client.status(0.0)
    return last


def _process(word: str) -> tuple[Role, int]:
    role, _, index = word.partition("-")
    if word == Role.MASTER:
        return Role.MASTER, 0
    if role in {*Role} - {Role.MASTER} and index.isdecimal():
        return Role(role), int(index)
    raise ConfigError(
        f"PROCESS: expected master, worker-NUMBER, ps-NUMBER or modelserver-NUMBER, found {word!r}"
    )


def _all_logs(
    job: SubmittedJob, wanted: list[tuple[Role, int]], follow: bool
) -> Iterator[tuple[str, str]]:
    """Yield (process, line) of several logs; if all logs are wanted, logs of new processes too.

    A log that cannot be read ends this only if it was named. Otherwise stderr tells of it: its
    process may not have begun.
    """
    if not follow:
        for role, index in wanted or job.processes():
            try:
                for line in job.logs(role, index, follow=False):
                    yield f"{role}-{index}", line
            except LaunchError as error:
                if wanted:
                    raise
                echo(f"{role}-{index}: {error}", err=True)
        return
    lines: queue.Queue[tuple[str, str | ElasticdlError | OSError]] = queue.Queue(_WAITING_LINES)
    readers: dict[tuple[Role, int], threading.Thread] = {}

    def read(role: Role, index: int) -> None:
        try:
            for line in job.logs(role, index, follow=True):
                lines.put((f"{role}-{index}", line))
        except (ElasticdlError, OSError) as error:  # the main thread's to tell
            lines.put((f"{role}-{index}", error))

    next_look = 0.0
    while True:
        if time.monotonic() >= next_look:
            has_ended = job.end(0.0) is not None
            for process in wanted or job.processes():
                if process not in readers:
                    readers[process] = threading.Thread(target=read, args=process, daemon=True)
                    readers[process].start()
            next_look = time.monotonic() + _LOOK_SECONDS
        is_last = has_ended and not any(reader.is_alive() for reader in readers.values())
        try:
            who, item = lines.get(timeout=0.0 if is_last else _LOOK_SECONDS)
        except queue.Empty:
            if is_last:
                return
            continue
        if isinstance(item, str):
            yield who, item
        elif wanted or not isinstance(item, LaunchError):
            raise item
        else:
            echo(f"{who}: {item}", err=True)


def _event_line(event: dict[str, Any]) -> str:
    when = datetime.fromtimestamp(event["time"]).isoformat(" ", "milliseconds")
    who = f"{event['role']}-{event['index']}"
    rest = {k: v for k, v in event.items() if k not in ("time", "role", "index", "event", "text")}
    text = event.get("text") or ", ".join(f"{k} {json.dumps(v)}" for k, v in rest.items())
    return f"{when} {who} {event['event']}: {text}" if text else f"{when} {who} {event['event']}"


COMMANDS = (attach, status, logs, events, scale, stop)
